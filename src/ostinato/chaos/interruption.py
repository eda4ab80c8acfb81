"""Signals that end a run early: it is cancelled once, and then left to restore what it broke."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """While the block lasts, these signals cancel what `run` runs; further ones change nothing.

    The handlers stay in place to the end of the block, so that no second Ctrl-C keeps anything from being
    restored.
    """

    def __init__(self) -> None:
        #: Name of the first signal; empty: none came.
        self.name = ""
        self._before: dict[signal.Signals, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` on a loop of its own; returns when it has ended, also because of a signal."""
        with asyncio.Runner() as runner:
            runner.run(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.ensure_future(work)
        if self.name:
            self._task.cancel()
        try:
            await self._task
        except asyncio.CancelledError:
            if not self.name:
                raise
        finally:
            self._task = None

    def _take(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.name:
            return
        self.name = signal.Signals(number).name
        if self._loop is not None and self._task is not None:
            # The loop may be waiting: a signal alone would not wake it.
            self._loop.call_soon_threadsafe(self._task.cancel)

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            # What was started with nohup goes on.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        # Stopped by Ctrl-Z, it would restore nothing. No SIG_IGN: what it starts would inherit that.
        self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, _pass_over)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _pass_over(number: int, frame: FrameType | None) -> None:
    """A signal that changes nothing."""
