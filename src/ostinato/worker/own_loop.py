"""An event loop for one coroutine alone, which another thread may cancel."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any


class OwnLoop:
    """Runs one coroutine as ``asyncio.run`` does: what it has left behind is cancelled at its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    def run(self, work: Callable[[], Coroutine[Any, Any, object]]) -> object:
        """What `work` gives. Raises what it raises, ``CancelledError`` among it."""
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(self._main(work))

    def cancel(self) -> None:
        """Cancel the coroutine, as often as this is called; before its start it counts from there."""
        with self._lock:
            self._is_cancelled = True
            if self._loop is not None and self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)

    async def _main(self, work: Callable[[], Coroutine[Any, Any, object]]) -> object:
        with self._lock:
            if self._is_cancelled:
                raise asyncio.CancelledError
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            return await work()
        finally:
            with self._lock:
                self._loop = None


def new_event_loop() -> asyncio.AbstractEventLoop:
    """On uvloop where there is one."""
    return event_loop_class()()


def event_loop_class() -> type[asyncio.AbstractEventLoop]:
    """That of uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.SelectorEventLoop
    return uvloop.Loop
