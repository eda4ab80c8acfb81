"""An attempt as the supervisor holds it, and what its end means to the scheduler."""

from __future__ import annotations

from ostinato.core.definition import ExecutorSpec, Pool
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.instants import format_duration
from ostinato.core.model import Outcome
from ostinato.core.payload import RESULT_BYTES_MAX
from ostinato.wire.messages import Assignment, RunningReport, TaskSpec
from ostinato.worker.executors.protocol import AttemptFinished, AttemptStart, Executor, StopReason

#: Why an attempt is handed back that was stopped before any of it ran.
_HANDED_BACK = {
    StopReason.DRAIN: "the worker drains",
    StopReason.LEASE_ENDED: "its lease ended before its start",
}


def kind_of(executor: ExecutorSpec) -> str:
    """Kind of executor that runs it, as its tag says."""
    return str(executor.__struct_config__.tag)


class RunningAttempt:
    """An attempt that an executor has. Times ``*_boot_us`` are boot time, ``stopped_us`` is UTC."""

    __slots__ = (
        "assignment",
        "cancel_reason",
        "executor",
        "is_lease_over",
        "last_beat_boot_us",
        "pool",
        "spec",
        "start",
        "stop_reason",
        "stopped_us",
    )

    def __init__(self, start: AttemptStart, *, pool: Pool, executor: Executor) -> None:
        self.start = start
        self.assignment = start.assignment
        self.spec: TaskSpec = start.spec
        self.pool = pool
        self.executor = executor
        self.stop_reason: StopReason | None = None
        self.stopped_us = 0
        self.cancel_reason = ""
        self.last_beat_boot_us = 0
        #: It has been told to end because of its lease, for whatever reason it may have been told before.
        self.is_lease_over = False

    @property
    def report(self) -> RunningReport:
        """How the attempt is named when the worker connects again."""
        return RunningReport(self.assignment.instance_id, self.assignment.attempt, self.assignment.attempt_id)


def outcome_of(attempt: RunningAttempt, finished: AttemptFinished) -> Outcome:
    """What the scheduler is told of an ended attempt.

    A result counts if the attempt had it before it was stopped. Otherwise a stop decides what the end means,
    whatever the attempt still reported. What never ran when the worker drains or its lease ends is handed
    back unstarted, as is what was refused just before its start.
    """
    assignment = attempt.assignment
    outcome = Outcome(
        instance_id=assignment.instance_id,
        attempt=assignment.attempt,
        attempt_id=assignment.attempt_id,
        partition=assignment.partition,
        started_us=finished.started_us,
        finished_us=finished.finished_us,
    )
    was_first = finished.result is not None and finished.finished_us <= attempt.stopped_us
    if finished.refused:
        outcome.unstarted_reason = finished.refused
    elif attempt.stop_reason is not None and not was_first:
        if finished.started_us is None and attempt.stop_reason in _HANDED_BACK:
            outcome.unstarted_reason = _HANDED_BACK[attempt.stop_reason]
        else:
            outcome.failure = _stop_failure(attempt)
    elif finished.collateral:
        outcome.failure = _collateral_failure(finished)
    elif finished.failure is not None:
        outcome.failure = finished.failure
    elif finished.result is not None and len(finished.result) > RESULT_BYTES_MAX:
        outcome.failure = result_too_large(len(finished.result))
    else:
        outcome.result = b"null" if finished.result is None else finished.result
    return outcome


def refusal(assignment: Assignment, *, reason: str, now_us: int) -> Outcome:
    """Outcome of an assignment that is not started; it counts nothing."""
    return Outcome(
        instance_id=assignment.instance_id,
        attempt=assignment.attempt,
        attempt_id=assignment.attempt_id,
        partition=assignment.partition,
        started_us=None,
        finished_us=now_us,
        unstarted_reason=reason,
    )


def result_too_large(size_bytes: int) -> Failure:
    """Failure of an attempt whose result is over the limit."""
    return safe_failure(
        "BAD_RESULT",
        f"the result is {size_bytes} bytes of JSON; at most {RESULT_BYTES_MAX} are stored",
    )


def _collateral_failure(finished: AttemptFinished) -> Failure:
    said = finished.failure.message if finished.failure is not None else ""
    return safe_failure("COLLATERAL", said or "its process was ended because of a neighbour")


def _stop_failure(attempt: RunningAttempt) -> Failure:
    spec, reason = attempt.spec, attempt.stop_reason
    if reason is StopReason.TIMEOUT:
        limit = format_duration(spec.timeout_us or 0)
        return safe_failure("TIMEOUT", f"ended because it ran longer than its timeout of {limit}")
    if reason is StopReason.HEARTBEAT_TIMEOUT:
        limit = format_duration(spec.heartbeat_timeout_us or 0)
        return safe_failure(
            "HEARTBEAT_TIMEOUT", f"ended because it did not call heartbeat for {limit} (heartbeat_timeout)"
        )
    if reason is StopReason.CANCELLED:
        return safe_failure("CANCELLED", f"cancelled: {attempt.cancel_reason or 'asked for'}")
    if reason is StopReason.LEASE_ENDED:
        return safe_failure(
            "LEASE_EXPIRED", "ended because the worker had not heard from the scheduler for its lease"
        )
    return safe_failure("HANDED_BACK", "ended and handed back because the worker drains")
