"""The attempts that a worker has: accepted, running, stopped at their limits, ended.

This is the part of the supervisor that decides; it waits for nothing. Assignments come in, executors report
through it (it is their ``EventSink``), and what the node must hear goes to the outbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ostinato.clock import Clock
from ostinato.core.definition import TaskRef
from ostinato.core.model import Outcome, OutputChunk
from ostinato.wire.messages import Assignment, Assignments, Cancel, Progress, RunningReport, TaskSpec
from ostinato.worker.attempt import RunningAttempt, kind_of, outcome_of, pool_of, refusal
from ostinato.worker.credits import Credits
from ostinato.worker.deadlines import Deadline, DeadlineHeap, DeadlineKind
from ostinato.worker.executors.protocol import (
    AttemptBeat,
    AttemptFinished,
    AttemptStart,
    Executor,
    StopReason,
)
from ostinato.worker.lease_guard import LeaseGuard
from ostinato.worker.outbox import Outbox


class Attempts:
    """Table of attempts by attempt id. `on_deadline` is told of every deadline that may be the earliest."""

    def __init__(
        self,
        *,
        clock: Clock,
        credits: Credits,
        outbox: Outbox,
        lease: LeaseGuard,
        executors: Sequence[Executor],
        on_deadline: Callable[[int], None],
    ) -> None:
        self._clock = clock
        self._credits = credits
        self._outbox = outbox
        self._lease = lease
        self._executors = {executor.kind: executor for executor in executors}
        self._on_deadline = on_deadline
        self._specs: dict[tuple[TaskRef, int], TaskSpec] = {}
        self._running: dict[str, RunningAttempt] = {}
        self._deadlines = DeadlineHeap(self._running.__contains__)
        self._refusal_reason = ""
        #: Set while nothing runs.
        self.is_idle = asyncio.Event()
        self.is_idle.set()

    def __len__(self) -> int:
        return len(self._running)

    # ── what the node says ────────────────────────────────────────────────────────────────────────────

    def reports(self) -> list[RunningReport]:
        """What a new stream begins with: what runs, and what ended without an acknowledgement."""
        ended = [RunningReport(o.instance_id, o.attempt, o.attempt_id) for o in self._outbox.unacknowledged]
        return ended + [attempt.report for attempt in self._running.values()]

    def begin_stream(self) -> None:
        """Task versions are told anew on every stream."""
        self._specs.clear()

    def learn(self, specs: Sequence[TaskSpec]) -> None:
        """Task versions that later assignments use."""
        self._specs.update(((spec.ref, spec.version), spec) for spec in specs)

    def refuse_new(self, reason: str) -> None:
        """Refuse every assignment from now on, unstarted."""
        self._refusal_reason = reason
        self._credits.stop_granting()

    def assign(self, message: Assignments) -> None:
        """Start or refuse attempts; a repeated assignment changes nothing."""
        self._outbox.accept([assignment.attempt_id for assignment in message.items])
        starts: dict[str, list[AttemptStart]] = {}
        refused: list[Outcome] = []
        boot_us, wall_us = self._clock.boot_us(), self._clock.wall_us()
        stale = not self._lease.covers_assignment(message.heartbeat_sequence, boot_us)
        for assignment in message.items:
            attempt_id = assignment.attempt_id
            if attempt_id in self._running or self._outbox.holds(attempt_id):
                self._take_repeated(assignment)
                continue
            spec = self._specs.get((assignment.ref, assignment.version))
            reason = self._reason_to_refuse(assignment, spec, stale=stale)
            if reason or spec is None:
                refused.append(refusal(assignment, reason=reason, now_us=wall_us))
                continue
            kind = kind_of(spec.executor)
            executor = self._executors[kind]
            self._running[attempt_id] = RunningAttempt(
                assignment, spec, pool=pool_of(spec.executor), executor=executor
            )
            deadline_us = None if spec.timeout_us is None else wall_us + spec.timeout_us
            starts.setdefault(kind, []).append(AttemptStart(assignment, spec, deadline_us))
        if refused:
            self._outbox.add_outcomes(refused)
        if starts:
            self.is_idle.clear()
            self._watch_lease()
        for kind, items in starts.items():
            self._executors[kind].start(items)

    def _reason_to_refuse(self, assignment: Assignment, spec: TaskSpec | None, *, stale: bool) -> str:
        """Why an assignment is not started; empty, and a slot taken, if it is."""
        if spec is None:
            return f"the worker was not told of version {assignment.version} of {assignment.ref}"
        kind, pool = kind_of(spec.executor), pool_of(spec.executor)
        # Taken first: what arrives has used up a grant, and giving it back grants it again.
        if not self._credits.take(pool):
            return f"the worker has no free slot in its {pool} pool"
        reason = self._refusal_reason
        if not reason and kind not in self._executors:
            reason = f"the worker has no executor for {kind} tasks"
        if not reason and stale:
            reason = "its lease was over when it arrived"
        if reason:
            self._credits.give_back(pool)
        return reason

    def _take_repeated(self, assignment: Assignment) -> None:
        """The node has spent a credit on what is here already."""
        spec = self._specs.get((assignment.ref, assignment.version))
        if spec is not None and self._credits.take(pool_of(spec.executor)):
            self._credits.give_back(pool_of(spec.executor))

    def cancel(self, message: Cancel) -> None:
        """Somebody wants the attempt to end; one that has ended is reported as it ended."""
        attempt = self._running.get(message.attempt_id)
        if attempt is not None:
            attempt.cancel_reason = message.reason
            self._stop(attempt, StopReason.CANCELLED, grace_us=attempt.spec.grace_us)

    # ── limits ────────────────────────────────────────────────────────────────────────────────────────

    def stop_overdue(self) -> int | None:
        """Stop what has reached a limit. Returns when to look again, always later than now."""
        now_us = self._clock.boot_us()
        for deadline in self._deadlines.pop_due(now_us):
            self._on_due(deadline, now_us)
        lease_us = self._stop_unleased(now_us)
        times = [self._deadlines.next_us, lease_us]
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
        """Stop strict attempts that the lease no longer covers; returns when the next one would be."""
        check_us = self._lease.check_us
        if check_us is None or not self._running:
            return None
        if check_us > now_us:
            return check_us
        later: list[int] = []
        for attempt in list(self._running.values()):
            stop_us = self._lease.stop_us(attempt.spec.grace_us)
            if stop_us is None or attempt.spec.exclusive != "strict" or attempt.stop_reason is not None:
                continue
            if stop_us <= now_us:
                grace_us = self._lease.grace_us(attempt.spec.grace_us)
                self._stop(attempt, StopReason.LEASE_ENDED, grace_us=grace_us)
            else:
                later.append(stop_us)
        return min(later, default=None)

    def _watch_lease(self) -> None:
        check_us = self._lease.check_us
        if check_us is not None:
            self._on_deadline(check_us)

    def lease_extended(self) -> None:
        """The lease moved; attempts that are covered again are watched at its new end."""
        if self._running:
            self._watch_lease()

    def _stop(self, attempt: RunningAttempt, reason: StopReason, *, grace_us: int) -> None:
        if attempt.stop_reason is None:
            # The first reason stays: it is why the attempt ends, whatever follows only hastens it.
            attempt.stop_reason, attempt.stopped_us = reason, self._clock.wall_us()
        attempt.executor.stop(attempt.assignment.attempt_id, reason=reason, grace_us=grace_us)

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
        for finished in events:
            attempt = self._running.pop(finished.attempt_id, None)
            if attempt is not None:
                self._credits.give_back(attempt.pool)
                outcomes.append(outcome_of(attempt, finished))
        if outcomes:
            self._outbox.add_outcomes(outcomes)
        if not self._running:
            self.is_idle.set()

    def output(self, chunks: Sequence[OutputChunk]) -> None:
        """Pass on what attempts wrote."""
        self._outbox.add_output(chunks)

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
                    )
                )
