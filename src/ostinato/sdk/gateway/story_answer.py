"""The story of an instance as the API tells it, back in the form that the store's own has."""

from __future__ import annotations

import msgspec

from ostinato.control.explain import AttemptStory, EventStory, Story
from ostinato.core.failure.failure import Failure
from ostinato.core.instants import parse_instant
from ostinato.core.states import State


class AttemptAnswer(msgspec.Struct, kw_only=True):
    """One attempt; texts that say nothing are null."""

    attempt: int
    generation: int
    attempt_id: str
    worker: str | None
    outcome: str
    assigned: str | None = None
    started: str | None = None
    ended: str | None = None
    code: str | None = None
    category: str | None = None
    message: str | None = None
    decision: str | None = None
    next_due: str | None = None
    error_output: tuple[str, ...] = ()


class HistoryAnswer(msgspec.Struct, kw_only=True):
    """One fact of the history."""

    at: str
    kind: str
    sentence: str
    generation: int
    attempt: int
    by: str | None = None
    failure: Failure | None = None


class StoryAnswer(msgspec.Struct, kw_only=True):
    """The whole answer; what a newer release adds is passed over."""

    id: str
    namespace: str
    task: str
    task_version: int
    state: State
    reason: str
    priority: int
    generation: int
    failure_count: int
    lost_count: int
    created: str
    due: str
    next: str
    attempts: list[AttemptAnswer]
    history: list[HistoryAnswer]
    key: str | None = None
    fire: str | None = None
    shard: int = 0
    shard_total: int = 1
    expires: str | None = None
    finished: str | None = None
    cancel_requested: str | None = None
    cancel_reason: str | None = None
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    result: msgspec.Raw = msgspec.Raw(b"null")
    max_retry: int | None = None
    max_lost: int | None = None
    waits: str | None = None
    left_out: int = 0


def story_of(answer: StoryAnswer) -> Story:
    """The story that the API was asked for. Raises ``INVALID_INSTANT`` for an instant that is none."""
    endings = {
        (attempt.attempt, attempt.ended, attempt.decision)
        for attempt in answer.attempts
        if attempt.decision is not None
    }
    return Story(
        id=answer.id,
        namespace=answer.namespace,
        task=answer.task,
        task_version=answer.task_version,
        state=answer.state,
        generation=answer.generation,
        priority=answer.priority,
        key=answer.key or "",
        created_us=parse_instant(answer.created),
        due_us=parse_instant(answer.due),
        fire_us=_instant_us(answer.fire),
        shard=answer.shard,
        shard_total=answer.shard_total,
        expires_us=_instant_us(answer.expires),
        finished_us=_instant_us(answer.finished),
        payload=bytes(answer.payload).decode(),
        result=bytes(answer.result).decode() if answer.state is State.SUCCESS else None,
        reason=answer.reason,
        waits=answer.waits or "",
        next=answer.next,
        cancel_requested_us=_instant_us(answer.cancel_requested),
        cancel_reason=answer.cancel_reason or "",
        failures=answer.failure_count,
        max_retry=answer.max_retry,
        lost=answer.lost_count,
        max_lost=answer.max_lost,
        attempts=[_attempt(attempt, _failure_at(answer, attempt)) for attempt in answer.attempts],
        left_out=answer.left_out,
        # A row that tells an attempt's end is in its attempt already.
        events=[_event(row) for row in answer.history if (row.attempt, row.at, row.sentence) not in endings],
    )


def _failure_at(answer: StoryAnswer, attempt: AttemptAnswer) -> Failure | None:
    """What an attempt failed with: its own row of the history has it whole."""
    for row in answer.history:
        if (row.attempt, row.at, row.sentence) == (attempt.attempt, attempt.ended, attempt.decision):
            return row.failure
    return None


def _attempt(attempt: AttemptAnswer, failure: Failure | None) -> AttemptStory:
    return AttemptStory(
        number=attempt.attempt,
        generation=attempt.generation,
        attempt_id=attempt.attempt_id,
        worker=attempt.worker or "",
        assigned_us=_instant_us(attempt.assigned),
        started_us=_instant_us(attempt.started),
        ended_us=_instant_us(attempt.ended),
        ended=attempt.outcome,
        code=attempt.code or "",
        category=attempt.category or "",
        message=attempt.message or "",
        decision=attempt.decision or "",
        next_due_us=_instant_us(attempt.next_due),
        chain=() if failure is None else failure.chain,
        traceback="" if failure is None else failure.traceback,
        error_output=attempt.error_output,
    )


def _event(row: HistoryAnswer) -> EventStory:
    return EventStory(
        at_us=parse_instant(row.at),
        kind=row.kind,
        sentence=row.sentence,
        generation=row.generation,
        attempt=row.attempt,
        by=row.by or "",
    )


def _instant_us(text: str | None) -> int | None:
    return None if text is None else parse_instant(text)
