"""Slot processes for ``def`` tasks and isolated ``async def`` ones: one attempt at a time each, killed alone.

How attempts end here:

* **timeout, missed heartbeat, lease's end**: the process is killed at once, with all that it started. A
  function that blocks in a call or a loop cannot be asked, and these limits are promises.
* **cancel, drain**: the task's context says so from now on; what has not returned after the grace is killed.
* **an attempt with isolation: process** has a process that has run nothing else, and that ends with it; the
  end is told when its tree is gone. So it is after one that has left children or cannot be tidied up.
* **killed from outside, or ended by itself** (``os._exit``): a failure of the attempt, by exit status or
  signal. A process that says what cannot be read is killed, and its attempt ends with ``EXECUTOR_ERROR``.

Processes are started as they are needed, one ahead of need, and stay. An attempt that waits for a process
does not run yet, so its time-outs do not either.
"""

from __future__ import annotations

import asyncio
from collections import deque

from ostinato.clock import Clock
from ostinato.core.definition import PythonSpec
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.worker.executors.protocol import AttemptFinished, AttemptStart, EventSink, StopReason
from ostinato.worker.executors.task_based import unstarted
from ostinato.worker.frames import Beats, Finished, LogText, Ready, Run, RunItem, Stop, ToSupervisor
from ostinato.worker.guardian_process import NotStartedError
from ostinato.worker.known_tasks import KnownTasks
from ostinato.worker.output import OutputCapture
from ostinato.worker.process_limits import ProcessLimits
from ostinato.worker.python_process import PythonSettings
from ostinato.worker.resources import Holding, Limits, LimitsUnavailable, Resources
from ostinato.worker.workspace import remove_scratch, scratch_path

SLOT_MODULE = "ostinato.worker.slot_main"
#: Longest time from the start of a process until it has imported the app.
READY_SECONDS_MAX = 120.0
#: So often the first process is started again if it is lost before it has told which tasks there are.
LOST_COUNT_MAX = 5
RESTART_SECONDS = 0.5
_FLUSH_SECONDS = 0.1
#: After the end of an attempt, until the guardian hears that a process depends on no lease: most find another
#: attempt before, and under the same lease. Were it over meanwhile, only an idle process would be ended.
UNMARK_SECONDS = 0.1
_COOPERATIVE = frozenset({StopReason.CANCELLED, StopReason.DRAIN})


def run_item(start: AttemptStart, limits: ProcessLimits | None = None) -> RunItem:
    """What a process must know of an attempt."""
    assert isinstance(start.spec.executor, PythonSpec)
    return RunItem(
        start.assignment,
        start.spec.executor.call,
        start.spec.timeout_us,
        lease_ends_us=start.lease_ends_us,
        is_async=start.spec.executor.is_async,
        limits=limits,
    )


def is_isolated(start: AttemptStart) -> bool:
    """Whether an attempt has a fresh process to itself."""
    return start.spec.isolation == "process"


class SlotPool:
    """Up to `size` slot processes, and the attempts that wait for one."""

    def __init__(
        self, *, size: int, settings: PythonSettings, resources: Resources, clock: Clock, sink: EventSink
    ) -> None:
        self._size = size
        self._resources = resources
        self._settings = settings
        self._clock = clock
        self._sink = sink
        self._slots: set[_Slot] = set()
        self._idle: list[_Slot] = []
        self._waiting: deque[AttemptStart] = deque()
        self._by_attempt: dict[str, _Slot] = {}
        self._unmarking: asyncio.TimerHandle | None = None
        #: Whether there ever was one: then the process that is kept ahead is to be an unused one.
        self._has_isolated = False
        self._is_closed = False
        #: Processes that were lost before any had told which tasks there are.
        self._lost_count = 0
        self.known: asyncio.Future[KnownTasks] = asyncio.get_running_loop().create_future()

    @property
    def process_ids(self) -> list[int]:
        """Of the slot processes, those that are busy first."""
        busy = [slot for slot in self._slots if slot not in self._idle]
        return [slot.process.pid for slot in [*busy, *self._idle]]

    def warm_up(self) -> None:
        """Start the first process."""
        self._keep_one_ahead()

    def start(self, attempt: AttemptStart) -> None:
        """Run an attempt as soon as a process is free for it."""
        if self._is_closed:
            self._sink.finished([unstarted(attempt, "the worker is closing", now_us=self._clock.wall_us())])
            return
        self._waiting.append(attempt)
        self._has_isolated = self._has_isolated or is_isolated(attempt)
        self._serve()

    def stop(self, attempt_id: str, *, reason: StopReason, grace_us: int) -> bool:
        """End an attempt; False if it is not here."""
        slot = self._by_attempt.get(attempt_id)
        if slot is not None:
            slot.stop(attempt_id, reason=reason, grace_us=grace_us)
            return True
        for attempt in self._waiting:
            if attempt.assignment.attempt_id == attempt_id:
                self._waiting.remove(attempt)
                self._sink.finished([unstarted(attempt, "it was stopped", now_us=self._clock.wall_us())])
                return True
        return False

    def leases_moved(self) -> None:
        """Tell the guardian how long running attempts may go on now."""
        for slot in self._by_attempt.values():
            slot.lease_moved()

    def unmark_soon(self) -> None:
        """Tell the guardian in a while which processes depend on no lease any more."""
        if self._unmarking is None and not self._is_closed:
            self._unmarking = asyncio.get_running_loop().call_later(UNMARK_SECONDS, self._unmark)

    def _unmark(self) -> None:
        self._unmarking = None
        for slot in self._slots:
            slot.lease_moved()

    async def close(self) -> None:
        """Kill all processes and wait for them; idempotent."""
        self._is_closed = True
        _cancel(self._unmarking)
        while self._waiting:
            attempt = self._waiting.popleft()
            self._sink.finished([unstarted(attempt, "the worker is closing", now_us=self._clock.wall_us())])
        await asyncio.gather(*(slot.close() for slot in self._slots))
        self.known.cancel()

    def _serve(self) -> None:
        for attempt in list(self._waiting):
            slot = self._take_idle(isolated=is_isolated(attempt))
            if slot is not None:
                self._waiting.remove(attempt)
                self._run(attempt, slot)
        self._replace_used()
        self._keep_one_ahead()

    def _take_idle(self, *, isolated: bool) -> _Slot | None:
        # One that has just died is left out; that it is gone will be said soon.
        self._idle = [slot for slot in self._idle if slot.process.takes_work]
        used = [slot for slot in self._idle if slot.is_used]
        unused = [slot for slot in self._idle if not slot.is_used]
        # The unused are kept for those who need one.
        fitting = unused if isolated else (used or unused)
        if not fitting:
            return None
        self._idle.remove(fitting[-1])
        return fitting[-1]

    def _run(self, attempt: AttemptStart, slot: _Slot) -> None:
        attempt_id = attempt.assignment.attempt_id
        try:
            holding = self._resources.hold(attempt_id, Limits.of(attempt.spec))
        except LimitsUnavailable as error:
            finished = unstarted(attempt, str(error), now_us=self._clock.wall_us())
            finished.failure = error.failure
            self._idle.append(slot)
            self._sink.finished([finished])
            return
        self._by_attempt[attempt_id] = slot
        slot.run(attempt, holding)

    def _replace_used(self) -> None:
        """End idle processes that have been used, if there is no room otherwise for unused ones."""
        needed = sum(map(is_isolated, self._waiting))
        if needed:
            needed -= sum(not slot.is_used or slot.is_ending for slot in self._slots)
        while needed > 0 and self._idle and len(self._slots) >= self._size:
            self._idle.pop().process.kill()
            needed -= 1

    def _keep_one_ahead(self) -> None:
        wanted = len(self._by_attempt) + len(self._waiting) + 1
        while len(self._slots) < self._size and not self._is_closed:
            lacks_unused = self._has_isolated and all(slot.is_used for slot in self._slots)
            if len(self._slots) >= wanted and not lacks_unused:
                return
            slot = _Slot(self, settings=self._settings, clock=self._clock, sink=self._sink)
            self._slots.add(slot)
            slot.open()

    def slot_ready(self, slot: _Slot, known: KnownTasks) -> None:
        """A process has imported the app."""
        if not self.known.done():
            self.known.set_result(known)
        self.slot_idle(slot)

    def slot_idle(self, slot: _Slot) -> None:
        """A process has nothing to do."""
        if slot.process.takes_work:
            self._idle.append(slot)
        self._serve()

    def attempt_ended(self, finished: AttemptFinished) -> None:
        """The attempt of a slot has ended; called before the slot is idle or gone."""
        del self._by_attempt[finished.attempt_id]
        self._sink.finished([finished])

    def slot_lost(self, slot: _Slot, failure: Failure) -> None:
        """A process has ended before it was ready, and nothing is wrong with it: the next one is tried."""
        if not self.known.done():
            self._lost_count += 1
        self.slot_gone(slot, failure, was_ready=self._lost_count <= LOST_COUNT_MAX)

    def slot_gone(self, slot: _Slot, failure: Failure, *, was_ready: bool) -> None:
        """A process has ended; one that never was ready fails an attempt, or that would wait for ever."""
        self._slots.discard(slot)
        if slot in self._idle:
            self._idle.remove(slot)
        if self._is_closed:
            return
        if was_ready:
            self._serve()
            return
        if not self.known.done():
            self.known.set_result(KnownTasks(problems=[failure.message]))
        if self._waiting:
            attempt = self._waiting.popleft()
            finished = unstarted(attempt, failure.message, now_us=self._clock.wall_us())
            finished.failure = failure
            self._sink.finished([finished])
        if self._waiting:
            self._serve()


class _Slot:
    """One process and the attempt that it runs."""

    def __init__(self, pool: SlotPool, *, settings: PythonSettings, clock: Clock, sink: EventSink) -> None:
        self._pool = pool
        self._settings = settings
        self._clock = clock
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self.process = settings.new_process(self._on_message, self._on_exit, on_output=self._on_output)
        self._opening: asyncio.Task[None] | None = None
        self._ready_limit: asyncio.TimerHandle | None = None
        self._is_ready = False
        self._attempt_id = ""
        self._attempt: AttemptStart | None = None
        #: Whether it has begun an attempt.
        self.is_used = False
        self._holding = Holding()
        #: The end of the attempt, told when all of the process's tree is gone.
        self._ended: AttemptFinished | None = None
        self._ending: asyncio.Task[None] | None = None
        self._started_us = 0
        self._capture: OutputCapture | None = None
        self._flush: asyncio.TimerHandle | None = None
        self._kill: asyncio.TimerHandle | None = None

    @property
    def is_ending(self) -> bool:
        """Whether its process was ready and takes nothing more: there will be room for another."""
        return self._is_ready and not self.process.takes_work

    def open(self) -> None:
        """Start the process."""
        self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        try:
            await self.process.start(SLOT_MODULE, self._settings)
        except NotStartedError as error:
            # Not at once, as it takes a moment until there is another guardian.
            failure = safe_failure("SPAWN_FAILED", str(error))
            self._loop.call_later(RESTART_SECONDS, self._pool.slot_lost, self, failure)
            return
        except OSError as error:
            failure = safe_failure("SPAWN_FAILED", f"no slot process could be started: {error}")
            self._pool.slot_gone(self, failure, was_ready=False)
            return
        if not self._is_ready:
            self._ready_limit = self._loop.call_later(READY_SECONDS_MAX, self.process.kill)

    def run(self, attempt: AttemptStart, holding: Holding) -> None:
        """Run an attempt in the idle process, within the limits that are held for it."""
        self.is_used = True
        self._holding = holding
        self._attempt_id = attempt.assignment.attempt_id
        self._capture = OutputCapture(attempt.assignment)
        self._started_us = self._clock.wall_us()
        self._attempt = attempt
        # Before it runs: the guardian must know, should this process freeze at once.
        self.process.mark(attempt.lease_ends_us)
        self._sink.started([self._attempt_id])
        self.process.send([Run([run_item(attempt, holding.process_limits)])])

    def stop(self, attempt_id: str, *, reason: StopReason, grace_us: int) -> None:
        """Ask the attempt to end and kill the process after the grace; at once where asking is no use."""
        # A coroutine can be asked whatever the reason is; what has ended has only its tree left.
        can_ask = reason in _COOPERATIVE or self._is_async
        if not can_ask or grace_us <= 0 or self._ended is not None:
            self.process.kill()
            return
        self.process.send([Stop(attempt_id, reason)])
        kill_at = self._loop.time() + grace_us / 1e6
        if self._kill is None or kill_at < self._kill.when():
            _cancel(self._kill)
            self._kill = self._loop.call_at(kill_at, self.process.kill)

    @property
    def _is_async(self) -> bool:
        if self._attempt is None:
            return False
        executor = self._attempt.spec.executor
        return isinstance(executor, PythonSpec) and executor.is_async

    def lease_moved(self) -> None:
        """Tell the guardian how long the running attempt may go on now, if there is one."""
        self.process.mark(None if self._attempt is None else self._attempt.lease_ends_us)

    async def close(self) -> None:
        """Kill the process and wait for it."""
        if self._opening is not None:
            await self._opening
        self.process.kill()
        await self.process.wait_until_gone()
        if self._ending is not None:
            await self._ending

    def _on_message(self, message: ToSupervisor) -> None:
        if isinstance(message, Finished):
            self._on_finished(message)
        elif isinstance(message, Beats):
            self._sink.beat([beat for beat in message.items if beat.attempt_id == self._attempt_id])
        elif isinstance(message, LogText):
            if message.attempt_id == self._attempt_id:
                self._on_output("log", message.data)
        elif isinstance(message, Ready) and not self._is_ready:
            self._is_ready = True
            _cancel(self._ready_limit)
            self._pool.slot_ready(self, message.known)

    def _on_finished(self, message: Finished) -> None:
        finished = message.items[0]
        if finished.attempt_id != self._attempt_id:
            return
        self.process.drain_output()
        assert self._attempt is not None
        if message.is_last or is_isolated(self._attempt):
            self._ended = finished
            self.process.kill()
            return
        self._end_attempt(finished)
        if self._kill is not None:
            # The attempt made it within its grace; the process goes on to the next one.
            _cancel(self._kill)
            self._kill = None
        self._pool.slot_idle(self)

    def _on_exit(self, return_code: int) -> None:
        _cancel(self._kill)
        _cancel(self._ready_limit)
        self._ending = asyncio.create_task(self._end(return_code))

    async def _end(self, return_code: int) -> None:
        failure = self.process.failure_of_exit(return_code, what="the slot process")
        if self._attempt_id:
            finished = self._ended or AttemptFinished(
                attempt_id=self._attempt_id,
                started_us=self._started_us,
                finished_us=self._clock.wall_us(),
                failure=self.process.failure_of_exit(return_code, what="the task's process"),
            )
            if finished.failure is not None:
                finished.failure = self._holding.explain(finished.failure)
            await self._loop.run_in_executor(None, self._clean_up, self._attempt_id)
            self._end_attempt(finished)
        if not self._is_ready and failure.category == "lost":
            self._pool.slot_lost(self, failure)
            return
        if not self._is_ready:
            failure = safe_failure(
                "SPAWN_FAILED", f"a slot process ended before it was ready: {failure.message}"
            )
        self._pool.slot_gone(self, failure, was_ready=self._is_ready)

    def _clean_up(self, attempt_id: str) -> None:
        """What a process that was killed could not do itself, in a thread."""
        self._holding.release()
        remove_scratch(scratch_path(self._settings.data_dir, attempt_id))

    def _end_attempt(self, finished: AttemptFinished) -> None:
        _cancel(self._flush)
        self._flush = None
        if self._capture is not None:
            chunks = self._capture.finish(self._clock.wall_us())
            if chunks:
                self._sink.output(chunks)
        self._attempt_id, self._attempt, self._capture = "", None, None
        self._pool.unmark_soon()
        self._pool.attempt_ended(finished)

    def _on_output(self, stream: str, data: bytes) -> None:
        # Between attempts it belongs to none: the noise of imports and of threads left behind.
        if self._capture is None:
            return
        self._capture.write(stream, data)
        if self._flush is None and self._capture.has_pending:
            self._flush = self._loop.call_later(_FLUSH_SECONDS, self._send_output)

    def _send_output(self) -> None:
        self._flush = None
        if self._capture is not None:
            self._sink.output(self._capture.take(self._clock.wall_us()))


def _cancel(handle: asyncio.TimerHandle | None) -> None:
    if handle is not None:
        handle.cancel()
