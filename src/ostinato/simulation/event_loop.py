"""An event loop on virtual time that many simulated processes share.

Time is an integer of microseconds and moves only when nothing is left to do at the present instant: then it
jumps to the next timer. Of the processes that can run at one instant the seed chooses which has the next
turn; a turn runs what was due in the process when it began, first in, first out, as asyncio does it.

::

    timer, future, message ──► Process.ready ──► runnable ──(seed)──► a turn
                                     ▲               ▲
                     paused: waits here    busy (``turn_us``): waits here

There is no selector, no socket, no thread and no real clock. What asyncio's own parts need of a loop is here
(tasks, futures, timeouts, executors); the rest of ``AbstractEventLoop`` raises ``NotImplementedError``.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from itertools import count
from random import Random
from typing import Any, TypeVar, cast

import msgspec

from ostinato.errors import InternalError
from ostinato.simulation.process import PROCESS, Process
from ostinato.testing.virtual_clock import BOOT_START_US, START_US

Value = TypeVar("Value")

#: So many turns at one instant are a loop that waits for nothing.
TURNS_AT_ONE_INSTANT_MAX = 200_000
#: What a call in a thread takes, at least and at most.
_THREAD_US_MIN, _THREAD_US_MAX = 20, 400
#: Cancelled timers stay in the heap until they are due, or until they are this many and half of it.
_CANCELLED_COUNT_MAX = 256
#: A coroutine that ends may await in a ``finally``; so often it is told again.
_CLOSE_ROUNDS_MAX = 100


class StuckError(Exception):
    """The run cannot go on: nothing will ever happen again, or time does not move any more."""


class Handle(msgspec.Struct, eq=False):
    """A callback that is due now or later; what ``call_soon`` and its like return."""

    #: None once it was cancelled or called.
    callback: Callable[..., object] | None
    args: tuple[Any, ...]
    context: Context
    process: Process
    #: Of a timer that is not due yet: when it is, and whose it is.
    at_us: int = 0
    loop: SimulatedLoop | None = None

    def cancel(self) -> None:
        """Never call it. Idempotent."""
        if self.callback is not None:
            self.callback = None
            self.args = ()
            if self.loop is not None:
                self.loop.timer_cancelled()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.at_us / 1e6


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The world's loop. `run` a coroutine on it, then `close` it: nothing of the run is left."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        #: True time: microseconds since the run began.
        self.true_us = 0
        self._chance = Random(f"loop {seed}").random
        self._runnable: list[Process] = []
        self._timers: list[tuple[int, int, Handle]] = []
        self._next_number = count().__next__
        self._cancelled_count = 0
        self._is_stopping = False
        self._is_running = False
        self._is_closed = False
        self._is_letting_go = False
        #: When they died, in whose context they ran, and what they were doing.
        self._buried: deque[tuple[int, Context, asyncio.Task[Any]]] = deque()
        self._processes: list[Process] = []
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        #: What nobody else could be told of: bugs, which the run reports.
        self.unhandled: list[dict[str, Any]] = []
        #: Told of every process that is paused, when it is.
        self.pause_listeners: list[Callable[[Process], None]] = []
        #: True time, as a clock.
        self.true_clock = TrueClock(self)
        #: The network, the database, the driver of the faults: what is no process of the system.
        self.world = self.process("world")

    def process(self, name: str, *, machine: str = "") -> Process:
        """A new process, on a machine of its own unless one is named."""
        process = Process(self, name, machine=machine or name)
        self._processes = [known for known in self._processes if known.is_alive]
        self._processes.append(process)
        return process

    def random_for(self, *names: object) -> Random:
        """A generator of its own for each use, so that one more draw here changes nothing elsewhere."""
        return Random(" ".join([str(self.seed), *map(str, names)]))

    def run_in_world(self, callback: Callable[..., Value], *args: Any, **named: Any) -> Value:
        """Call `callback` now, as the world: what it starts belongs to no process of the system."""
        return self.world.context.copy().run(callback, *args, **named)

    # ── who can run ───────────────────────────────────────────────────────────────────────────────────

    def withdraw(self, process: Process) -> None:
        """A process has been paused or has died."""
        process.is_waiting = False
        if process in self._runnable:
            self._runnable.remove(process)

    def offer(self, process: Process) -> None:
        """A process that was paused or busy may run again, if it is neither any more."""
        if process.is_paused or process.is_busy or not process.is_alive:
            return
        if process.ready:
            self._runnable.append(process)
        else:
            process.is_waiting = True

    def bury(self, process: Process, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Keep tasks of a dead process, so that nothing of them is finalised before `let_go`."""
        for task in tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own switch
                self._buried.append((self.true_us, process.context, task))

    def let_go(self, *, died_before_us: int) -> None:
        """Take apart what processes were doing that died before a true time.

        By then whatever they were connected with must have noticed that they are dead: what a ``finally`` of
        theirs does still runs, as theirs, and must find nothing to have an effect on.
        """
        self._is_letting_go = True
        while self._buried and self._buried[0][0] < died_before_us:
            _, context, task = self._buried.popleft()
            context.copy().run(_take_apart, task)
        self._is_letting_go = False

    # ── callbacks ─────────────────────────────────────────────────────────────────────────────────────

    def call_soon(  # type: ignore[override]  # a handle of our own, which asyncio only cancels
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        if context is None:
            context = copy_context()
        process = context.get(PROCESS, self.world)
        handle = Handle(callback, args, context, process)
        process.ready.append(handle)
        if process.is_waiting:
            process.is_waiting = False
            self._runnable.append(process)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def call_at_us(
        self, at_us: int, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """Call `callback` at a true time, as the process whose code this is."""
        if context is None:
            context = copy_context()
        handle = Handle(callback, args, context, context.get(PROCESS, self.world), at_us, self)
        heappush(self._timers, (at_us, self._next_number(), handle))
        return handle

    def call_later(  # type: ignore[override]  # as call_soon
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Handle:
        delay_us = max(0, round(delay * 1e6))
        return self.call_at_us(self.true_us + delay_us, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # as call_soon
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at_us(max(self.true_us, round(when * 1e6)), callback, *args, context=context)

    def time(self) -> float:
        return self.true_us / 1e6

    def timer_cancelled(self) -> None:
        """A timer in the heap will not be called."""
        self._cancelled_count += 1
        if self._cancelled_count > _CANCELLED_COUNT_MAX and 2 * self._cancelled_count > len(self._timers):
            self._timers[:] = [entry for entry in self._timers if entry[2].callback is not None]
            heapify(self._timers)
            self._cancelled_count = 0

    # ── tasks and futures ─────────────────────────────────────────────────────────────────────────────

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]  # typeshed's form of it changes with the version
        self,
        coro: Coroutine[Any, Any, Value],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Value]:
        # asyncio numbers tasks without a name through the whole interpreter.
        task: asyncio.Task[Value] = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        (PROCESS.get(self.world) if context is None else context.get(PROCESS, self.world)).keep(task)
        return task

    def run_in_executor(  # type: ignore[override]  # typeshed's form of it changes with the version
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call `func` here, a little later: there are no threads."""
        future = self.create_future()
        took_us = _THREAD_US_MIN + int(self._chance() * (_THREAD_US_MAX - _THREAD_US_MIN))
        self.call_at_us(self.true_us + took_us, _call_into, future, func, args)
        return future

    # ── running ───────────────────────────────────────────────────────────────────────────────────────

    def run(self, main: Coroutine[Any, Any, Value]) -> Value:
        """Run `main` as the world until it ends; others stay where they are. Raises what it raises.

        Raises ``StuckError`` if it can never end, or if time stands still.
        """
        task = self.world.spawn(main, name="main")
        task.add_done_callback(self._on_main_done, context=self.world.context)
        self.run_forever()
        return task.result()

    def run_until_complete(self, future: Any) -> Any:
        return self.run(future)

    def _on_main_done(self, _: object) -> None:
        self.stop()

    def run_forever(self) -> None:
        before = events._get_running_loop()
        events._set_running_loop(self)
        self._is_running, self._is_stopping = True, False
        try:
            self._turn_for_ever()
        finally:
            self._is_running = False
            events._set_running_loop(before)

    def _turn_for_ever(self) -> None:
        # One function, as each call costs more than what it would do.
        runnable, chance = self._runnable, self._chance
        turns_left, instant_us = TURNS_AT_ONE_INSTANT_MAX, self.true_us
        while not self._is_stopping:
            size = len(runnable)
            if size == 1:
                process = runnable.pop()
            elif size:
                # The last one fills the gap: cheap, and the order among them means nothing.
                chosen = int(chance() * size)
                process = runnable[chosen]
                runnable[chosen] = runnable[-1]
                runnable.pop()
            else:
                self._advance()
                continue
            turns_left -= 1
            if not turns_left:
                if self.true_us == instant_us:
                    raise StuckError(f"time stands still at {instant_us} µs, with {process.name} running")
                turns_left, instant_us = TURNS_AT_ONE_INSTANT_MAX, self.true_us
            ready = process.ready
            left = len(ready)
            while left and ready:  # it may die of what it does
                left -= 1
                handle = ready.popleft()
                callback, args = handle.callback, handle.args
                if callback is not None:
                    # Who keeps the handle keeps nothing else, so that nothing waits for the collector.
                    handle.callback, handle.args = None, ()
                    try:
                        handle.context.run(callback, *args)
                    except Exception as error:  # noqa: BLE001 - as asyncio has it: told, and the loop goes on
                        self._tell_failed(process, error)
            if process.turn_us:
                self._charge(process)
            elif ready and not process.is_paused:
                runnable.append(process)
            else:
                process.is_waiting = process.is_alive and not process.is_paused

    def _tell_failed(self, process: Process, error: Exception) -> None:
        self.call_exception_handler({"message": f"a callback of {process.name}", "exception": error})

    def _charge(self, process: Process) -> None:
        """A turn is over, and takes its time."""
        if process.is_alive:
            process.is_busy = True
            wake_us = self.true_us + process.turn_us
            self.call_at_us(wake_us, self._turn_paid, process, context=self.world.context)

    def _turn_paid(self, process: Process) -> None:
        process.is_busy = False
        self.offer(process)

    def _advance(self) -> None:
        """Jump to the next timer, and make due whatever is due then."""
        timers, now_us, is_due = self._timers, self.true_us, False
        while timers:
            at_us = timers[0][0]
            if is_due and at_us > now_us:
                return
            handle = heappop(timers)[2]
            if handle.callback is None:
                self._cancelled_count -= 1
                continue
            is_due = True
            if at_us > now_us:
                self.true_us = now_us = at_us
            handle.loop = None
            process = handle.process
            process.ready.append(handle)
            if process.is_waiting:
                process.is_waiting = False
                self._runnable.append(process)
        if not is_due:
            raise StuckError(f"nothing will ever happen again after {self.true_us} µs")

    def stop(self) -> None:
        self._is_stopping = True

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """End every process and take apart what they were doing, without any effect. Idempotent."""
        if self._is_closed:
            return
        for process in self._processes:
            # asyncio tells of these when memory is collected, which is at no certain time.
            for task in process.failures():
                told = {"message": f"a task of {process.name}", "exception": task.exception(), "task": task}
                self.call_exception_handler(told)
            process.end_silently()
        self._is_closed = True
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            while self._buried:
                _take_apart(self._buried.pop()[2])
        finally:
            events._set_running_loop(before)
        self._timers.clear()
        self._runnable.clear()

    # ── what asyncio asks for besides ─────────────────────────────────────────────────────────────────

    def get_debug(self) -> bool:
        return False

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        self._handler = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._handler is not None:
            self._handler(self, context)
        elif not (self._is_closed or self._is_letting_go):
            self.unhandled.append(context)

    async def shutdown_asyncgens(self) -> None:
        """Nothing is kept of them."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""


class TrueClock:
    """The clock of whoever has no machine: never wrong."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def wall_us(self) -> int:
        return START_US + self._loop.true_us

    def boot_us(self) -> int:
        return BOOT_START_US + self._loop.true_us

    def sleep_until_us(self, boot_us: int) -> Coroutine[Any, Any, None]:
        sleep = Sleep(loop=self._loop)
        at_us = boot_us - BOOT_START_US
        if at_us <= self._loop.true_us:
            sleep.handle = self._loop.call_soon(wake, sleep)
        else:
            sleep.handle = self._loop.call_at_us(at_us, wake, sleep)
        return cast(Coroutine[Any, Any, None], sleep)


class Sleep(asyncio.Future[None]):
    """A sleep that takes its timer along when it is cancelled."""

    handle: Handle

    def cancel(self, msg: Any | None = None) -> bool:
        self.handle.cancel()
        return super().cancel(msg)


def wake(future: asyncio.Future[None]) -> None:
    """Set the result of a future that somebody may have given up."""
    if not future.done():
        future.set_result(None)


def _call_into(future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if future.done():
        return
    try:
        result = func(*args)
    except Exception as error:  # noqa: BLE001 - not hidden: raised where the call is awaited
        future.set_exception(error)
    else:
        future.set_result(result)


def _take_apart(task: asyncio.Task[Any]) -> None:
    """Close the coroutine of a task that never ran to its end; what it still tries to do reaches nobody."""
    coroutine = task.get_coro()
    if coroutine is None:
        return
    failure: BaseException | None = None
    for _ in range(_CLOSE_ROUNDS_MAX):
        try:
            coroutine.close()
        except BaseException as error:  # noqa: BLE001 - it awaits in a finally, or fails there: nothing to nobody
            failure = error
        else:
            return
    raise InternalError("INTERNAL", f"{coroutine} does not end") from failure
