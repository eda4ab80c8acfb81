"""Runs the virtual loop from plain code: turns of the loop, and between them the ``def`` tasks.

A ``def`` task must find what it finds in a worker's process: no running loop in its thread, and the
right to block. So it is not called by a turn of the loop: the loop stops, whoever drives it calls the
function, and goes on. A call into the cluster from there drives the loop in its turn, one level deeper.

Where a loop of somebody else's runs (an async test), one thread of the driver's own drives instead. Threads
take turns: the one that calls a function lets others drive meanwhile, which the function may wait for.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ostinato.errors import UserError
from ostinato.testing.virtual_clock import VirtualTimeLoop

#: How often what is left is told to end, at the end; what goes on then is asyncio's to complain of.
_CANCEL_ROUNDS = 5

Value = TypeVar("Value")
Work: TypeAlias = Callable[[], Coroutine[Any, Any, Value]]


class _Ended(NamedTuple):
    value: object
    error: BaseException | None


class _Waiting(NamedTuple):
    """A ``def`` function that waits for the end of a turn."""

    context: Context
    function: Callable[[], object]
    ended: asyncio.Future[_Ended]


class Driver:
    """Owns the loop. `run` and `run_async` may be called from anywhere, tasks included."""

    def __init__(self) -> None:
        self.loop = VirtualTimeLoop()
        #: What the test must hear of, whatever it was doing: the first is raised by the outermost call.
        self.faults: list[BaseException] = []
        self._waiting: deque[_Waiting] = deque()
        #: Held by whoever runs the loop.
        self._turn = threading.Lock()
        #: Functions that are being called, one inside the other.
        self._call_count = 0
        self._thread: ThreadPoolExecutor | None = None
        self._is_closing = False

    # ── from outside ──────────────────────────────────────────────────────────────────────────────────

    def run(self, work: Work[Value]) -> Value:
        """What the coroutine of `work` returns, run to its end on virtual time; blocks the caller.

        Raises ``INVALID_VALUE`` for something that waits, inside an async task.
        """
        self._require_open()
        running = asyncio._get_running_loop()
        if running is self.loop:
            return _step(work())
        if running is not None:
            return self._elsewhere(work).result()
        return self._drive(work)

    async def run_async(self, work: Work[Value]) -> Value:
        """As `run`; the caller's own loop goes on meanwhile."""
        self._require_open()
        if asyncio.get_running_loop() is self.loop:
            return await work()
        return await asyncio.wrap_future(self._elsewhere(work))

    def close_with(self, work: Work[None]) -> None:
        """Run the beginning of the end: nobody hears of faults any more."""
        self._is_closing = True
        self.run(work)

    def close(self) -> None:
        """Cancel what is left on the loop and close it; idempotent."""
        if self.loop.is_closed():
            return
        self.close_with(self._cancel_all)
        if self._thread is not None:
            self._thread.shutdown()
        self.loop.close()

    async def _cancel_all(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for _ in range(_CANCEL_ROUNDS):
            for task in left:
                task.cancel()
            if left:
                _, left = await asyncio.wait(left, timeout=1)
        await self.loop.shutdown_asyncgens()
        await self.loop.shutdown_default_executor()

    def _require_open(self) -> None:
        if self.loop.is_closed():
            raise UserError(
                "INVALID_VALUE",
                "the cluster of this test is closed",
                field="cluster",
                hint="ask it inside its with block, or before the test ends",
            )

    def _elsewhere(self, work: Work[Value]) -> Future[Value]:
        """Drive in the driver's own thread; while a function is called, which may be there, in a new one."""
        if self._call_count:
            once = _one_thread()
            future = once.submit(self._drive, work)
            once.shutdown(wait=False)
            return future
        if self._thread is None:
            self._thread = _one_thread()
        return self._thread.submit(self._drive, work)

    # ── turns ─────────────────────────────────────────────────────────────────────────────────────────

    def _drive(self, work: Work[Value]) -> Value:
        with self._turn:
            task = self.loop.create_task(work())
        task.add_done_callback(lambda _: self.loop.stop())
        try:
            while not task.done():
                with self._turn:
                    if not (task.done() or self._waiting):
                        self.loop.run_forever()
                    waiting = self._waiting.popleft() if self._waiting else None
                if waiting is not None:
                    self._call(waiting)
        except BaseException:
            # An interrupt of the test: nobody waits for this any more.
            task.cancel()
            raise
        finally:
            self._tell_faults()
        return task.result()

    def _tell_faults(self) -> None:
        if self._call_count == 0 and not self._is_closing:
            faults, self.faults = self.faults, []
            if faults:
                raise faults[0]

    def _call(self, waiting: _Waiting) -> None:
        if waiting.ended.done():
            return
        self._call_count += 1
        try:
            ended = _Ended(waiting.context.run(waiting.function), None)
        # Others are meant for the test: interrupts, and what pytest ends a test with.
        except (Exception, SystemExit, GeneratorExit, asyncio.CancelledError) as error:  # noqa: BLE001 - raised where the task is awaited
            ended = _Ended(None, error)
        finally:
            self._call_count -= 1
        with self._turn:
            if not waiting.ended.done():
                waiting.ended.set_result(ended)

    async def call_between_turns(self, function: Callable[[], object]) -> object:
        """Call a function that may block, in the context of the caller; for coroutines of the loop."""
        waiting = _Waiting(copy_context(), function, self.loop.create_future())
        self._waiting.append(waiting)
        self.loop.stop()
        ended = await waiting.ended
        if ended.error is not None:
            raise ended.error
        return ended.value


def _one_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="ostinato-testing")


def _step(work: Coroutine[Any, Any, Value]) -> Value:
    """The value of a coroutine that needs not wait for anything."""
    try:
        work.send(None)
    except StopIteration as ended:
        value: Value = ended.value
        return value
    work.close()
    raise UserError(
        "INVALID_VALUE",
        "this call waits for the scheduler, which cannot go on before the task lets it",
        field="call",
        hint="in an async task await the _async twin: result_async, cancel_async, submit_async",
    )
