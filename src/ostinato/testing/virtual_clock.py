"""A clock that jumps: an event loop whose time moves only when nothing is left to do at the present instant.

A day of waiting takes a moment, and every run with the same seed is the same run: whoever is woken at one
virtual instant is woken in the order in which they began to wait.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

Value = TypeVar("Value")
Arguments = TypeVarTuple("Arguments")

#: 2026-01-01T00:00:00Z, where virtual wall time starts unless said otherwise.
START_US = 1_767_225_600_000_000
#: Origin of the virtual monotonic clock; far from the wall time, so that mixing the two fails at once.
BOOT_START_US = 5_000_000_000


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time: instead of waiting for the next timer it jumps to it."""

    def __init__(self) -> None:
        self._virtual_us = 0
        self._thread_call_count = 0
        self._idle: list[asyncio.Future[None]] = []
        super().__init__(_JumpingSelector(self))
        # asyncio adds this to the time to see what is due. The real clock's nanosecond vanishes in a float of
        # half a year's seconds, and a timer would be due for ever without being run.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._virtual_us / 1e6

    @property
    def elapsed_us(self) -> int:
        """Virtual microseconds since the loop was made."""
        return self._virtual_us

    def jump(self, seconds: float) -> None:
        """Let virtual time pass, once those know it that wait for the present instant to be over."""
        if self._idle:
            waiting, self._idle = self._idle, []
            for future in waiting:
                _wake(future)
            return
        # Timers are floats of seconds; rounding up by one microsecond never leaves one just ahead.
        self._virtual_us += max(1, round(seconds * 1e6))

    async def idle(self) -> None:
        """Return when nothing is left to do at the present instant."""
        future: asyncio.Future[None] = self.create_future()
        self._idle.append(future)
        await future

    # ── threads ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_held(self) -> bool:
        """Whether a thread works for the loop: time stands still until it has ended."""
        return self._thread_call_count > 0

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], Value], *args: *Arguments
    ) -> asyncio.Future[Value]:
        future = super().run_in_executor(executor, func, *args)
        self._thread_call_count += 1
        future.add_done_callback(self._thread_call_ended)
        return future

    def _thread_call_ended(self, _: asyncio.Future[Any]) -> None:
        self._thread_call_count -= 1


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            # Nothing is scheduled: only a thread or a socket can wake us, in real time.
            return super().select(None)
        if timeout > 0 and self._loop.is_held:
            return super().select(None)
        ready = super().select(0)
        if not ready and timeout > 0:
            self._loop.jump(timeout)
        return ready


class VirtualClock:
    """The ``Clock`` of a ``VirtualTimeLoop``: of `loop`, also while it does not run, else of the running one.

    `skew_us` shifts the wall time of this clock alone.
    """

    def __init__(
        self, *, start_us: int = START_US, skew_us: int = 0, loop: VirtualTimeLoop | None = None
    ) -> None:
        self._start_us = start_us + skew_us
        self._loop = loop

    def wall_us(self) -> int:
        return self._start_us + (self._loop or _loop()).elapsed_us

    def boot_us(self) -> int:
        return BOOT_START_US + (self._loop or _loop()).elapsed_us

    async def sleep_until_us(self, boot_us: int) -> None:
        loop = _loop()
        wait_us = max(0, boot_us - self.boot_us())
        woken: asyncio.Future[None] = loop.create_future()
        handle = loop.call_later(wait_us / 1e6, _wake, woken)
        try:
            await woken
        finally:
            handle.cancel()


def run_virtual(main: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine to its end on virtual time, then cancel what it left behind."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualTimeLoop):
        raise RuntimeError("a VirtualClock works only inside run_virtual()")
    return loop
