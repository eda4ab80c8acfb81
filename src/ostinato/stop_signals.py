"""SIGTERM and SIGINT of a process that has something to end first."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable


class StopSignals:
    """SIGTERM and SIGINT: the first completes `first`, the second calls `on_second`, a third acts as ever."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.first: asyncio.Future[signal.Signals] = loop.create_future()
        self.on_second: Callable[[], None] = self.release
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if not self.first.done():
            self.first.set_result(number)
            return
        self.release()
        self.on_second()

    def release(self) -> None:
        """Give the signals back to the process; idempotent."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)

    def end(self) -> None:
        """Everything has been ended: after a first signal the next one ends the process as it is.

        An exception in the midst of the interpreter's own end would only be a traceback.
        """
        self.release()
        if self.first.done():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
