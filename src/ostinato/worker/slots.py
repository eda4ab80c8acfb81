"""Slot processes for ``def`` tasks: one attempt at a time each, killed alone, replaced when gone.

How attempts end here:

* **timeout, missed heartbeat, lease's end**: the process is killed at once, with all that it started. A
  function that blocks in a call or a loop cannot be asked, and these limits are promises.
* **cancel, drain**: the task's context says so from now on; what has not returned after the grace is killed.
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
from ostinato.worker.known_tasks import KnownTasks
from ostinato.worker.output import OutputCapture
from ostinato.worker.python_process import PythonProcess, PythonSettings

SLOT_MODULE = "ostinato.worker.slot_main"
#: Longest time from the start of a process until it has imported the app.
READY_SECONDS_MAX = 120.0
_FLUSH_SECONDS = 0.1
_COOPERATIVE = frozenset({StopReason.CANCELLED, StopReason.DRAIN})


def run_item(start: AttemptStart) -> RunItem:
    """What a process must know of an attempt."""
    assert isinstance(start.spec.executor, PythonSpec)
    return RunItem(start.assignment, start.spec.executor.call, start.spec.timeout_us)


class SlotPool:
    """Up to `size` slot processes, and the attempts that wait for one."""

    def __init__(self, *, size: int, settings: PythonSettings, clock: Clock, sink: EventSink) -> None:
        self._size = size
        self._settings = settings
        self._clock = clock
        self._sink = sink
        self._slots: set[_Slot] = set()
        self._idle: list[_Slot] = []
        self._waiting: deque[AttemptStart] = deque()
        self._by_attempt: dict[str, _Slot] = {}
        self._is_closed = False
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

    async def close(self) -> None:
        """Kill all processes and wait for them; idempotent."""
        self._is_closed = True
        while self._waiting:
            attempt = self._waiting.popleft()
            self._sink.finished([unstarted(attempt, "the worker is closing", now_us=self._clock.wall_us())])
        await asyncio.gather(*(slot.close() for slot in self._slots))
        self.known.cancel()

    def _serve(self) -> None:
        while self._waiting and self._idle:
            slot = self._idle.pop()
            if not slot.process.takes_work:
                # It has just died; that it is gone will be said soon.
                continue
            attempt = self._waiting.popleft()
            self._by_attempt[attempt.assignment.attempt_id] = slot
            slot.run(attempt)
        self._keep_one_ahead()

    def _keep_one_ahead(self) -> None:
        wanted = len(self._by_attempt) + len(self._waiting) + 1
        while len(self._slots) < min(self._size, wanted) and not self._is_closed:
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
        self.process = PythonProcess(self._on_message, self._on_exit, on_output=self._on_output)
        self._opening: asyncio.Task[None] | None = None
        self._ready_limit: asyncio.TimerHandle | None = None
        self._is_ready = False
        self._attempt_id = ""
        self._started_us = 0
        self._capture: OutputCapture | None = None
        self._flush: asyncio.TimerHandle | None = None
        self._kill: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Start the process."""
        self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        try:
            await self.process.start(SLOT_MODULE, self._settings)
        except OSError as error:
            failure = safe_failure("SPAWN_FAILED", f"no slot process could be started: {error}")
            self._pool.slot_gone(self, failure, was_ready=False)
            return
        if not self._is_ready:
            self._ready_limit = self._loop.call_later(READY_SECONDS_MAX, self.process.kill)

    def run(self, attempt: AttemptStart) -> None:
        """Run an attempt in the idle process."""
        self._attempt_id = attempt.assignment.attempt_id
        self._capture = OutputCapture(attempt.assignment)
        self._started_us = self._clock.wall_us()
        self._sink.started([self._attempt_id])
        self.process.send([Run([run_item(attempt)])])

    def stop(self, attempt_id: str, *, reason: StopReason, grace_us: int) -> None:
        """Ask the attempt to end and kill the process after the grace; at once where asking is no use."""
        if reason not in _COOPERATIVE or grace_us <= 0:
            self.process.kill()
            return
        self.process.send([Stop(attempt_id, reason)])
        kill_at = self._loop.time() + grace_us / 1e6
        if self._kill is None or kill_at < self._kill.when():
            _cancel(self._kill)
            self._kill = self._loop.call_at(kill_at, self.process.kill)

    async def close(self) -> None:
        """Kill the process and wait for it."""
        if self._opening is not None:
            await self._opening
        self.process.kill()
        await self.process.wait_until_gone()

    def _on_message(self, message: ToSupervisor) -> None:
        if isinstance(message, Finished):
            self._on_finished(message)
        elif isinstance(message, Beats):
            self._sink.beat([beat for beat in message.items if beat.attempt_id == self._attempt_id])
        elif isinstance(message, LogText):
            if message.attempt_id == self._attempt_id:
                self._on_output("log", message.data)
        elif isinstance(message, Ready):
            self._is_ready = True
            _cancel(self._ready_limit)
            self._pool.slot_ready(self, message.known)

    def _on_finished(self, message: Finished) -> None:
        finished = message.items[0]
        if finished.attempt_id != self._attempt_id:
            return
        self.process.drain_output()
        if message.is_last:
            self.process.kill()
        self._end_attempt(finished)
        if self._kill is not None:
            # The attempt made it within its grace; the process goes on to the next one.
            _cancel(self._kill)
            self._kill = None
        self._pool.slot_idle(self)

    def _on_exit(self, return_code: int) -> None:
        _cancel(self._kill)
        _cancel(self._ready_limit)
        failure = self.process.failure_of_exit(return_code, what="the slot process")
        if self._attempt_id:
            finished = AttemptFinished(
                attempt_id=self._attempt_id,
                started_us=self._started_us,
                finished_us=self._clock.wall_us(),
                failure=self.process.failure_of_exit(return_code, what="the task's process"),
            )
            self._end_attempt(finished)
        if not self._is_ready:
            failure = safe_failure(
                "SPAWN_FAILED", f"a slot process ended before it was ready: {failure.message}"
            )
        self._pool.slot_gone(self, failure, was_ready=self._is_ready)

    def _end_attempt(self, finished: AttemptFinished) -> None:
        _cancel(self._flush)
        self._flush = None
        if self._capture is not None:
            chunks = self._capture.finish(self._clock.wall_us())
            if chunks:
                self._sink.output(chunks)
        self._attempt_id, self._capture = "", None
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
