"""The attempts that a worker has: accepted, running, stopped at their limits, ended.

This is the part of the supervisor that decides; it waits for nothing. Assignments come in, executors report
through it (it is their ``EventSink``), and what the node must hear goes to the outbox. No executor has more
attempts of a pool than that has slots; what comes beyond waits here, see ``ahead.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence

from ostinato.clock import Clock
from ostinato.core.definition import Pool
from ostinato.core.model import Outcome, OutputChunk
from ostinato.wire.messages import Assignment, Assignments, Cancel, Progress, RunningReport, TaskSpec
from ostinato.worker.ahead import WAIT_US_MAX, QueueAhead
from ostinato.worker.attempt import RunningAttempt, kind_of, outcome_of, refusal
from ostinato.worker.config import POOLS
from ostinato.worker.credits import Credits
from ostinato.worker.deadlines import Deadline, DeadlineHeap, DeadlineKind
from ostinato.worker.epochs import Epochs
from ostinato.worker.executors.protocol import (
    AttemptBeat,
    AttemptFinished,
    AttemptStart,
    Executor,
    StopReason,
)
from ostinato.worker.lease_guard import LeaseGuard
from ostinato.worker.outbox import Outbox
from ostinato.worker.versions import Version, Versions

#: Why what has waited too long for a slot is handed back.
LATE = "its slot was not free in time"


class Attempts:
    """Table of attempts by attempt id. `on_deadline` is told of every deadline that may be the earliest."""

    def __init__(
        self,
        *,
        clock: Clock,
        credits: Credits,
        outbox: Outbox,
        lease: LeaseGuard,
        epochs: Epochs,
        executors: Sequence[Executor],
        on_deadline: Callable[[int], None],
    ) -> None:
        self._clock = clock
        self._credits = credits
        self._outbox = outbox
        self._lease = lease
        self._epochs = epochs
        self._executors = {executor.kind: executor for executor in executors}
        self._on_deadline = on_deadline
        self._versions = Versions(self._executors)
        self._running: dict[str, RunningAttempt] = {}
        #: Running attempts that depend on a lease, by partition.
        self._strict: dict[int, dict[str, RunningAttempt]] = {}
        self._deadlines = DeadlineHeap(self._running.__contains__)
        self._queues = {pool: QueueAhead(credits.capacity(pool)) for pool in POOLS}
        self._is_start_due = False
        self._refusal_reason = ""
        #: Set while nothing runs.
        self.is_idle = asyncio.Event()
        self.is_idle.set()

    def __len__(self) -> int:
        return len(self._running)

    # ── what the node says ────────────────────────────────────────────────────────────────────────────

    def reports(self) -> list[RunningReport]:
        """What a new stream begins with: all that runs, and what ended without an acknowledgement."""
        ended = [RunningReport(o.instance_id, o.attempt, o.attempt_id) for o in self._outbox.unacknowledged]
        return ended + [attempt.report for attempt in self._running.values()]

    def end_stream(self, stream: int) -> None:
        """Task versions are told anew on every stream. Idempotent."""
        self._versions.end_stream(stream)

    def learn(self, stream: int, specs: Sequence[TaskSpec]) -> None:
        """Task versions that later assignments of a stream use."""
        self._versions.learn(stream, specs)

    def refuse_new(self, reason: str) -> None:
        """Refuse every assignment from now on, unstarted, and hand back those that wait for a slot."""
        self._refusal_reason = reason
        self._credits.stop_granting()
        for queue in self._queues.values():
            self._hand_back(queue.waiting, reason)

    def assign(self, stream: int, message: Assignments) -> None:
        """Start or refuse attempts; a repeated assignment changes nothing."""
        self._outbox.accept(stream, [assignment.attempt_id for assignment in message.items])
        starts: dict[str, list[AttemptStart]] = {}
        refused: list[Outcome] = []
        leases: dict[int, int | None] = {}
        extended: set[int] = set()
        boot_us, wall_us = self._clock.boot_us(), self._clock.wall_us()
        stale = not self._lease.covers(stream, message.heartbeat_sequence, now_us=boot_us)
        for assignment in message.items:
            attempt_id = assignment.attempt_id
            version = self._versions.of(stream, assignment)
            if attempt_id in self._running or self._outbox.holds(attempt_id):
                self._take_repeated(stream, version)
                continue
            reason = self._reason_to_refuse(stream, assignment, version, stale=stale)
            if reason or version is None or version.executor is None:
                refused.append(refusal(assignment, reason=reason, now_us=wall_us))
                continue
            partition = assignment.partition
            if partition not in leases:
                if self._lease.assigned(stream, partition, heartbeat_sequence=message.heartbeat_sequence):
                    extended.add(partition)
                leases[partition] = self._lease.ends_us(partition)
            start = AttemptStart(assignment, version.spec, lease_ends_us=leases[partition])
            if version.spec.timeout_us is not None:
                start.deadline_us = wall_us + version.spec.timeout_us
            attempt = RunningAttempt(start, pool=version.pool, executor=version.executor)
            self._enter(attempt)
            queue = self._queues.get(attempt.pool)
            if queue is None or queue.enter(attempt, now_us=boot_us):
                starts.setdefault(attempt.executor.kind, []).append(attempt.start)
            else:
                self._on_deadline(boot_us + WAIT_US_MAX)
        if refused:
            self._outbox.add_outcomes(refused)
        if self._running:
            self.is_idle.clear()
            self.lease_extended(extended)
            self._watch(leases)
        for kind, items in starts.items():
            self._executors[kind].start(items)

    def _enter(self, attempt: RunningAttempt) -> None:
        """Enter an accepted assignment in the tables."""
        assignment = attempt.assignment
        self._running[assignment.attempt_id] = attempt
        if attempt.spec.exclusive == "strict":
            self._strict.setdefault(assignment.partition, {})[assignment.attempt_id] = attempt
        else:
            attempt.start.lease_ends_us = None

    def _watch(self, partitions: Iterable[int]) -> None:
        """Look at strict attempts of partitions when the first of them might have to be stopped."""
        for partition in partitions:
            check_us = self._lease.check_us(partition) if partition in self._strict else None
            if check_us is not None:
                self._on_deadline(check_us)

    def _reason_to_refuse(
        self, stream: int, assignment: Assignment, version: Version | None, *, stale: bool
    ) -> str:
        """Why an assignment is not started; empty, and a slot taken, if it is."""
        if version is None:
            return f"the worker was not told of version {assignment.version} of {assignment.ref}"
        pool = version.pool
        # Taken first: what arrives has used up a grant, and giving it back grants it again.
        if not self._credits.take(stream, pool):
            return self._refusal_reason or f"the worker has no free slot in its {pool} pool"
        reason = self._refusal_reason or self._credits.pause_reason
        if not reason and version.executor is None:
            reason = f"the worker has no executor for {kind_of(version.spec.executor)} tasks"
        is_current = self._epochs.hear(assignment.partition, assignment.epoch)
        if not reason and stale:
            reason = "its lease was over when it arrived"
        if not reason and not is_current:
            reason = "its partition had another owner when it arrived"
        if reason:
            self._credits.give_back(pool)
        return reason

    def _take_repeated(self, stream: int, version: Version | None) -> None:
        """The node has spent a credit on what is here already."""
        if version is not None and self._credits.take(stream, version.pool):
            self._credits.give_back(version.pool)

    def cancel(self, message: Cancel) -> None:
        """Somebody wants the attempt to end; one that has ended is reported as it ended."""
        attempt = self._running.get(message.attempt_id)
        if attempt is not None:
            reason = StopReason.TIMEOUT if message.is_timeout else StopReason.CANCELLED
            attempt.cancel_reason = message.reason
            self._stop(attempt, reason, grace_us=attempt.spec.grace_us)

    # ── limits ────────────────────────────────────────────────────────────────────────────────────────

    def stop_overdue(self) -> int | None:
        """Stop what has reached a limit. Returns when to look again, always later than now."""
        now_us = self._clock.boot_us()
        for deadline in self._deadlines.pop_due(now_us):
            self._on_due(deadline, now_us)
        lease_us = self._stop_unleased(now_us)
        times = [self._deadlines.next_us, lease_us, self._hand_back_overdue(now_us)]
        return min((at_us for at_us in times if at_us is not None), default=None)

    def stop_all(self, reason: StopReason, *, grace_us_max: int) -> None:
        """Stop everything that runs, each with its own grace but at most `grace_us_max`."""
        for attempt in list(self._running.values()):
            self._stop(attempt, reason, grace_us=min(attempt.spec.grace_us, grace_us_max))

    def _on_due(self, deadline: Deadline, now_us: int) -> None:
        attempt = self._running[deadline.attempt_id]
        if deadline.kind is DeadlineKind.TIMEOUT:
            self._stop(attempt, StopReason.TIMEOUT, grace_us=attempt.spec.grace_us)
            return
        limit_us = attempt.spec.heartbeat_timeout_us
        if limit_us is None:
            return
        silent_until_us = attempt.last_beat_boot_us + limit_us
        if silent_until_us <= now_us:
            self._stop(attempt, StopReason.HEARTBEAT_TIMEOUT, grace_us=attempt.spec.grace_us)
        else:
            self._deadlines.push(silent_until_us, deadline.attempt_id, kind=DeadlineKind.HEARTBEAT)

    def _stop_unleased(self, now_us: int) -> int | None:
        """Stop strict attempts that their lease no longer covers; returns when the next one would be."""
        later: list[int] = []
        for partition in list(self._strict):
            check_us = self._lease.check_us(partition)
            if check_us is not None and check_us > now_us:
                later.append(check_us)
                continue
            for attempt in list(self._strict.get(partition, {}).values()):
                stop_us = self._lease.stop_us(partition, attempt.spec.grace_us)
                if stop_us is None or attempt.is_lease_over:
                    continue
                if stop_us > now_us:
                    later.append(stop_us)
                    continue
                # Also one that was told to end before: its own grace may reach beyond the lease.
                attempt.is_lease_over = True
                grace_us = self._lease.grace_us(attempt.spec.grace_us)
                self._stop(attempt, StopReason.LEASE_ENDED, grace_us=grace_us)
        return min(later, default=None)

    def lease_extended(self, partitions: Collection[int]) -> None:
        """The leases of partitions moved; what they cover is watched at their new ends."""
        for partition in partitions:
            strict = self._strict.get(partition)
            if not strict:
                continue
            ends_us = self._lease.ends_us(partition)
            for attempt in strict.values():
                attempt.start.lease_ends_us = ends_us
        self._watch(partitions)

    def _stop(self, attempt: RunningAttempt, reason: StopReason, *, grace_us: int) -> None:
        if attempt.stop_reason is None:
            # The first reason stays: it is why the attempt ends, whatever follows only hastens it.
            attempt.stop_reason, attempt.stopped_us = reason, self._clock.wall_us()
        if self._waits(attempt):
            # Its reason says what that means: a cancelled one is not handed back.
            self._hand_back([attempt], "")
        else:
            attempt.executor.stop(attempt.assignment.attempt_id, reason=reason, grace_us=grace_us)

    # ── attempts that wait for a slot ─────────────────────────────────────────────────────────────────

    def _waits(self, attempt: RunningAttempt) -> bool:
        queue = self._queues.get(attempt.pool)
        return queue is not None and queue.holds(attempt.assignment.attempt_id)

    def _hand_back_overdue(self, now_us: int) -> int | None:
        """Hand back what has waited too long; returns when to look again."""
        for queue in self._queues.values():
            self._hand_back(queue.overdue(now_us), LATE)
        self._follow_queues()
        times = (queue.look_us() for queue in self._queues.values())
        return min((at_us for at_us in times if at_us is not None), default=None)

    def _hand_back(self, attempts: Iterable[RunningAttempt], reason: str) -> None:
        now_us = self._clock.wall_us()
        ended = [
            AttemptFinished(
                attempt_id=attempt.assignment.attempt_id, started_us=None, finished_us=now_us, refused=reason
            )
            for attempt in attempts
        ]
        if ended:
            self.finished(ended)

    def _start_waiting(self) -> None:
        self._is_start_due = False
        starts: dict[str, list[AttemptStart]] = {}
        now_us = self._clock.boot_us()
        for queue in self._queues.values():
            # First: while this process was frozen their leases may have ended, and others may run them.
            self._hand_back(queue.overdue(now_us), LATE)
            for attempt in queue.take():
                starts.setdefault(attempt.executor.kind, []).append(attempt.start)
        for kind, items in starts.items():
            self._executors[kind].start(items)

    def _follow_queues(self) -> None:
        """Promise as much as may wait now."""
        for pool, queue in self._queues.items():
            self._credits.set_ahead(pool, queue.count_max)
            look_us = queue.look_us()
            if look_us is not None:
                self._on_deadline(look_us)

    # ── EventSink ─────────────────────────────────────────────────────────────────────────────────────

    def started(self, attempt_ids: Sequence[str]) -> None:
        """Time-outs count from now."""
        now_us = self._clock.boot_us()
        for attempt_id in attempt_ids:
            attempt = self._running.get(attempt_id)
            if attempt is None:
                continue
            attempt.last_beat_boot_us = now_us
            timeout_us, silence_us = attempt.spec.timeout_us, attempt.spec.heartbeat_timeout_us
            if timeout_us is not None:
                self._deadlines.push(now_us + timeout_us, attempt_id, kind=DeadlineKind.TIMEOUT)
            if silence_us is not None:
                self._deadlines.push(now_us + silence_us, attempt_id, kind=DeadlineKind.HEARTBEAT)
        next_us = self._deadlines.next_us
        if next_us is not None:
            self._on_deadline(next_us)

    def finished(self, events: Sequence[AttemptFinished]) -> None:
        """Give the slots back and report the outcomes."""
        outcomes: list[Outcome] = []
        free: dict[Pool, int] = {}
        now_us = self._clock.boot_us()
        for finished in events:
            attempt = self._running.pop(finished.attempt_id, None)
            if attempt is not None:
                free[attempt.pool] = free.get(attempt.pool, 0) + 1
                self._leave_lease(attempt, finished)
                outcomes.append(outcome_of(attempt, finished))
                if attempt.pool in self._queues:
                    is_isolated = attempt.spec.isolation == "process"
                    self._queues[attempt.pool].leave(finished, now_us=now_us, is_isolated=is_isolated)
        if outcomes:
            self._outbox.add_outcomes(outcomes)
        for pool, count in free.items():
            self._credits.give_back(pool, count=count)
        if not self._running:
            self.is_idle.set()
        if free.keys() & self._queues.keys():
            self._follow_queues()
            if any(self._queues.values()) and not self._is_start_due:
                self._is_start_due = True
                # Not from within the executor, which is in the middle of telling an end.
                asyncio.get_running_loop().call_soon(self._start_waiting)

    def _leave_lease(self, attempt: RunningAttempt, finished: AttemptFinished) -> None:
        """An attempt that died after its lease's stop time died of it: the guardian may have been first."""
        assignment = attempt.assignment
        strict = self._strict.get(assignment.partition, {})
        if strict.pop(assignment.attempt_id, None) is None:
            return
        if not strict:
            del self._strict[assignment.partition]
        stop_us = self._lease.stop_us(assignment.partition, attempt.spec.grace_us)
        if attempt.stop_reason is not None or finished.result is not None or stop_us is None:
            return
        stopped_us = self._clock.wall_us() - self._clock.boot_us() + stop_us
        if finished.finished_us >= stopped_us:
            attempt.stop_reason, attempt.stopped_us = StopReason.LEASE_ENDED, stopped_us

    def output(self, chunks: Sequence[OutputChunk]) -> None:
        """Pass on what attempts wrote."""
        self._outbox.add_output(chunks, partition_of=self._partition_of)

    def _partition_of(self, attempt_id: str) -> int | None:
        attempt = self._running.get(attempt_id)
        return None if attempt is None else attempt.assignment.partition

    def beat(self, events: Sequence[AttemptBeat]) -> None:
        """Attempts live; what they say of their progress is passed on."""
        now_us = self._clock.boot_us()
        for event in events:
            attempt = self._running.get(event.attempt_id)
            if attempt is None:
                continue
            attempt.last_beat_boot_us = now_us
            if event.fraction >= 0 or event.text:
                self._outbox.add_progress(
                    Progress(
                        instance_id=attempt.assignment.instance_id,
                        attempt_id=event.attempt_id,
                        fraction=event.fraction,
                        text=event.text,
                    ),
                    partition=attempt.assignment.partition,
                )
