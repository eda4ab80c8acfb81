"""Waiting instances that can no longer start in time, or whose task is disabled, end without an attempt."""

from __future__ import annotations

from ostinato.core.changes import EndWaiting
from ostinato.core.definition import TaskDefinition
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.model import HistoryKind, HistoryRow, Instance
from ostinato.core.partition.effects import Effects, EndedWaiting
from ostinato.core.partition.ended import expiry_reason
from ostinato.core.states import State, require_move

_KINDS = {
    State.FAILED: ("expire", HistoryKind.EXPIRED),
    State.CANCELLED: ("cancel", HistoryKind.CANCELLED),
    State.SKIPPED: ("skip", HistoryKind.SKIPPED),
}


def expire(instance: Instance, definition: TaskDefinition, *, now_us: int, into: Effects) -> None:
    """waiting → failed: its retry window or queue time-out has passed (design section 4)."""
    code, sentence = expiry_reason(instance, definition)
    failure = safe_failure(code, sentence)
    end_waiting(instance, State.FAILED, sentence=sentence, now_us=now_us, into=into, failure=failure)


def end_waiting(
    instance: Instance,
    state: State,
    *,
    sentence: str,
    now_us: int,
    into: Effects,
    failure: Failure | None = None,
    by: str = "",
) -> None:
    """blocked, pending or retry_waiting → `state`, with the cause in words."""
    move, kind = _KINDS[state]
    require_move(move, instance.state, state, subject=instance.id)
    into.batch.ended_waiting.append(
        EndWaiting(
            instance_id=instance.id,
            partition=instance.partition,
            expected_state=instance.state,
            expected_attempt=instance.attempt,
            state=state,
            reason=sentence,
            finished_us=now_us,
            failure=failure,
        )
    )
    into.batch.history.append(
        HistoryRow(
            instance_id=instance.id,
            partition=instance.partition,
            at_us=now_us,
            kind=kind,
            sentence=sentence,
            generation=instance.generation,
            attempt=instance.attempt,
            code=failure.code if failure is not None else "",
            category=failure.category if failure is not None else "",
            failure=failure,
            by=by,
        )
    )
    into.ended_waiting.append(
        EndedWaiting(
            instance_id=instance.id,
            partition=instance.partition,
            ref=instance.ref,
            attempt=instance.attempt,
            state=state,
            reason=sentence,
        )
    )
