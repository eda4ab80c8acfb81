"""The loop process that all ``async def`` tasks of a worker share.

A stop cancels the attempt's coroutine at once. If that has not ended it within the grace, the whole process
is killed, and its other attempts end as *collateral*: lost, uncounted (design section 3, Worker). So it is
when the lease of an attempt has ended, in any case: what that has hidden must not act under it. When the
process ends otherwise, by itself or killed from outside, with several attempts in it, nobody knows whose
doing it was: each ends with the exit status or signal as its code, in category *lost*, whose own cap
(``max_lost``) stops a task that would end its process for ever. A single attempt bears it as its own failure
(design section 4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ostinato.clock import Clock
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.worker.executors.protocol import AttemptFinished, AttemptStart, EventSink, StopReason
from ostinato.worker.executors.task_based import unstarted
from ostinato.worker.frames import Beats, Chunks, Finished, Ready, Run, Stop, ToSupervisor
from ostinato.worker.guardian_process import NotStartedError
from ostinato.worker.known_tasks import KnownTasks
from ostinato.worker.python_process import PythonSettings
from ostinato.worker.slots import (
    LOST_COUNT_MAX,
    READY_SECONDS_MAX,
    RESTART_SECONDS,
    UNMARK_SECONDS,
    run_item,
)
from ostinato.worker.workspace import remove_scratch, scratch_path

LOOP_MODULE = "ostinato.worker.loop_main"


class LoopHost:
    """Keeps one loop process, started when it is first needed and again after it has died."""

    def __init__(self, *, settings: PythonSettings, clock: Clock, sink: EventSink) -> None:
        self._settings = settings
        self._clock = clock
        self._sink = sink
        self._current: _LoopProcess | None = None
        self._is_closed = False
        #: Processes that were lost before any had told which tasks there are.
        self._lost_count = 0
        self._dying: set[_LoopProcess] = set()
        self.known: asyncio.Future[KnownTasks] = asyncio.get_running_loop().create_future()

    @property
    def process_id(self) -> int:
        """Of the process that takes attempts; 0 when there is none."""
        return 0 if self._current is None else self._current.process.pid

    def warm_up(self) -> None:
        """Start the process before it is needed."""
        self._process()

    def start(self, attempts: Sequence[AttemptStart]) -> None:
        """Run attempts."""
        if self._is_closed:
            now_us = self._clock.wall_us()
            self._sink.finished(
                [unstarted(item, "the worker is closing", now_us=now_us) for item in attempts]
            )
            return
        self._process().start(attempts)

    def stop(self, attempt_id: str, *, reason: StopReason, grace_us: int) -> None:
        """End an attempt; ignored if it is not here."""
        for process in [self._current, *self._dying]:
            if process is not None:
                process.stop(attempt_id, reason=reason, grace_us=grace_us)

    def leases_moved(self) -> None:
        """Tell the guardian how long running attempts may go on now."""
        for process in [self._current, *self._dying]:
            if process is not None:
                process.leases_moved()

    async def close(self) -> None:
        """Kill the process and wait for it; idempotent."""
        self._is_closed = True
        for process in [self._current, *self._dying]:
            if process is not None and not process.is_gone:
                process.kill()
        for process in list(self._dying):
            await process.wait_until_gone()
        self.known.cancel()

    def _process(self) -> _LoopProcess:
        if self._current is not None and self._current.is_gone:
            self.dies(self._current)
        if self._current is None:
            self._current = _LoopProcess(self, settings=self._settings, clock=self._clock, sink=self._sink)
            self._current.open()
        return self._current

    def ready(self, known: KnownTasks) -> None:
        """The process has imported the app."""
        if not self.known.done():
            self.known.set_result(known)

    def dies(self, process: _LoopProcess) -> None:
        """The process takes nothing more."""
        if self._current is process:
            self._current = None
        self._dying.add(process)

    def gone(self, process: _LoopProcess, failure: Failure, *, is_lost: bool) -> None:
        """The process has ended; `is_lost` if that says nothing about it and the app."""
        self.dies(process)
        self._dying.discard(process)
        if self.known.done():
            return
        if is_lost and not self._is_closed and self._lost_count < LOST_COUNT_MAX:
            self._lost_count += 1
            # Not at once, as it takes a moment until there is another guardian.
            asyncio.get_running_loop().call_later(RESTART_SECONDS, self._try_again)
            return
        self.known.set_result(KnownTasks(problems=[failure.message]))

    def _try_again(self) -> None:
        if not self._is_closed:
            self._process()


class _LoopProcess:
    """One process and the attempts in it, by attempt id; the value is when it was handed over (UTC)."""

    def __init__(self, host: LoopHost, *, settings: PythonSettings, clock: Clock, sink: EventSink) -> None:
        self._host = host
        self._settings = settings
        self._clock = clock
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self.process = settings.new_process(self._on_message, self._on_exit)
        self._opening: asyncio.Task[None] | None = None
        self._ready_limit: asyncio.TimerHandle | None = None
        self._is_ready = False
        self._is_killed = False
        self._waiting: dict[str, AttemptStart] = {}
        self._running: dict[str, int] = {}
        #: Attempts that depend on a lease, and the earliest end of those as the guardian has it.
        self._leased: dict[str, AttemptStart] = {}
        self._lease_ends_us: int | None = None
        self._unmarking: asyncio.TimerHandle | None = None
        self._kills: dict[str, asyncio.TimerHandle] = {}
        #: Attempts that did not end within their grace: the process dies because of them.
        self._overdue: set[str] = set()
        #: Attempts whose lease has ended: the process ends too, even if they have ended within their grace.
        self._lease_ended: set[str] = set()
        self._end: asyncio.TimerHandle | None = None

    @property
    def is_gone(self) -> bool:
        """Whether the process has died; that its attempts have ended is said soon after."""
        return self._is_ready and not self.process.takes_work

    def open(self) -> None:
        """Start the process."""
        self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        try:
            await self.process.start(LOOP_MODULE, self._settings)
        except NotStartedError as error:
            self._gone(safe_failure("SPAWN_FAILED", str(error)), refused=str(error))
            return
        except OSError as error:
            self._gone(safe_failure("SPAWN_FAILED", f"no loop process could be started: {error}"))
            return
        if self._is_killed:
            self.process.kill()
        elif not self._is_ready:
            self._ready_limit = self._loop.call_later(READY_SECONDS_MAX, self.kill)

    def start(self, attempts: Sequence[AttemptStart]) -> None:
        """Run attempts, or keep them until the process is ready."""
        if not self._is_ready:
            self._waiting.update((item.assignment.attempt_id, item) for item in attempts)
            return
        now_us = self._clock.wall_us()
        ids = [item.assignment.attempt_id for item in attempts]
        for item in attempts:
            self._running[item.assignment.attempt_id] = now_us
            if item.lease_ends_us is not None:
                self._leased[item.assignment.attempt_id] = item
                self._lease_ends_us = min(item.lease_ends_us, self._lease_ends_us or item.lease_ends_us)
        # Before they run: the guardian must know, should this process freeze at once.
        self.process.mark(self._lease_ends_us)
        self._sink.started(ids)
        self.process.send([Run([run_item(item) for item in attempts])])

    def stop(self, attempt_id: str, *, reason: StopReason, grace_us: int) -> None:
        """Cancel an attempt; the process is killed if it has not ended after the grace."""
        waiting = self._waiting.pop(attempt_id, None)
        if waiting is not None:
            self._sink.finished([unstarted(waiting, "it was stopped", now_us=self._clock.wall_us())])
        if attempt_id not in self._running:
            return
        previous = self._kills.get(attempt_id)
        kill_at = self._loop.time() + max(0, grace_us) / 1e6
        if reason is StopReason.LEASE_ENDED:
            self._lease_ended.add(attempt_id)
            self._end_at(kill_at)
        if previous is None:
            self.process.send([Stop(attempt_id, reason)])
        elif previous.when() <= kill_at:
            return
        else:
            previous.cancel()
        self._kills[attempt_id] = self._loop.call_at(kill_at, self._kill_for, attempt_id)

    def _end_at(self, kill_at: float) -> None:
        """Take nothing more, and end: what nobody knows of may act under a lease that is over."""
        if self._end is None or kill_at < self._end.when():
            if self._end is not None:
                self._end.cancel()
            self._end = self._loop.call_at(kill_at, self.kill)
        self._host.dies(self)

    def leases_moved(self) -> None:
        """Tell the guardian the earliest end of the leases of running attempts."""
        ends = [attempt.lease_ends_us for attempt in self._leased.values()]
        self._lease_ends_us = min((end for end in ends if end is not None), default=None)
        self.process.mark(self._lease_ends_us)

    def _forget(self, attempt_id: str) -> bool:
        """Take an attempt out; False if it is not here."""
        # The guardian goes on watching over what such an attempt may have left, until the process has ended.
        is_over = attempt_id not in self._lease_ended
        is_known = self._running.pop(attempt_id, None) is not None
        if is_over and self._leased.pop(attempt_id, None) is not None and not self._leased:
            self._lease_ends_us = None
            if self._running:
                # What depends on no lease shall not end with one.
                self._unmark()
            elif self._unmarking is None:
                self._unmarking = self._loop.call_later(UNMARK_SECONDS, self._unmark)
        return is_known

    def _unmark(self) -> None:
        self._unmarking = None
        self.process.mark(self._lease_ends_us)

    def _kill_for(self, attempt_id: str) -> None:
        self._overdue.add(attempt_id)
        self.kill()

    def kill(self) -> None:
        """Kill the process with everything in it."""
        self._is_killed = True
        self._host.dies(self)
        self.process.kill()

    async def wait_until_gone(self) -> None:
        """Return when the process has been reaped and its attempts have ended."""
        if self._opening is not None:
            await self._opening
        await self.process.wait_until_gone()

    def _on_message(self, message: ToSupervisor) -> None:
        if isinstance(message, Finished):
            kills = self._kills
            ended = [item for item in message.items if self._forget(item.attempt_id)]
            if kills:
                for item in ended:
                    handle = kills.pop(item.attempt_id, None)
                    if handle is not None:
                        handle.cancel()
            self._sink.finished(ended)
        elif isinstance(message, Chunks):
            self._sink.output(message.items)
        elif isinstance(message, Beats):
            self._sink.beat(message.items)
        elif isinstance(message, Ready):
            self._is_ready = True
            if self._ready_limit is not None:
                self._ready_limit.cancel()
            self._host.ready(message.known)
            waiting, self._waiting = list(self._waiting.values()), {}
            if waiting:
                self.start(waiting)

    def _on_exit(self, return_code: int) -> None:
        failure = self.process.failure_of_exit(return_code, what="the loop process")
        is_lost = not self._is_ready and failure.category == "lost"
        if not self._is_ready:
            failure = safe_failure(
                "SPAWN_FAILED", f"the loop process ended before it was ready: {failure.message}"
            )
        elif not self._is_killed and len(self._running) > 1:
            what = f"the loop process with {len(self._running)} attempts"
            shared = self.process.failure_of_exit(return_code, what=what)
            failure = safe_failure(shared.code, shared.message, category="lost")
        self._gone(failure, refused=failure.message if is_lost else "")

    def _gone(self, failure: Failure, *, refused: str = "") -> None:
        if self._ready_limit is not None:
            self._ready_limit.cancel()
        for timer in (self._end, self._unmarking):
            if timer is not None:
                timer.cancel()
        for handle in self._kills.values():
            handle.cancel()
        now_us = self._clock.wall_us()
        ended = [
            AttemptFinished(
                attempt_id=attempt_id,
                started_us=started_us,
                finished_us=now_us,
                failure=failure,
                collateral=self._is_killed and attempt_id not in self._overdue,
            )
            for attempt_id, started_us in self._running.items()
        ]
        for attempt in self._waiting.values():
            finished = unstarted(attempt, failure.message, now_us=now_us)
            finished.failure, finished.refused = failure, refused
            ended.append(finished)
        if self._running:
            self._loop.run_in_executor(None, self._remove_scratch, list(self._running))
        self._running.clear()
        self._waiting.clear()
        self._host.gone(self, failure, is_lost=bool(refused))
        if ended:
            self._sink.finished(ended)

    def _remove_scratch(self, attempt_ids: Sequence[str]) -> None:
        """What the process could not do itself, in a thread; nobody waits for it."""
        for attempt_id in attempt_ids:
            remove_scratch(scratch_path(self._settings.data_dir, attempt_id))
