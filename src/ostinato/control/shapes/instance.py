"""An instance as it is shown: short in lists, whole with its attempts, history and output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ostinato.control.explain import AttemptStory, Story
from ostinato.control.shapes.text import instant
from ostinato.core.failure.failure import Failure
from ostinato.core.model import HistoryRow, Instance, OutputChunk


class InstanceShape(msgspec.Struct, kw_only=True):
    """An instance in a list."""

    id: str
    namespace: str
    task: str
    task_version: int
    state: str
    #: Why it is in this state; empty on the uneventful path.
    reason: str
    hold: str | None
    priority: int
    generation: int
    attempt: int
    #: Failures of the task itself, and lost attempts, in this generation.
    failure_count: int
    lost_count: int
    worker: str | None
    key: str | None
    #: Scheduled instant of the fire that made it.
    fire: str | None
    #: Its number among the shards of its fire, from 0 on, and how many these are.
    shard: int
    shard_total: int
    created: str | None
    due: str | None
    started: str | None
    #: Start of the attempt that runs, or when it was assigned where the start is not known yet.
    running_since: str | None
    finished: str | None
    cancel_requested: str | None


class AttemptShape(msgspec.Struct, kw_only=True):
    """One attempt: where it ran, how it ended, what was decided then."""

    attempt: int
    generation: int
    attempt_id: str
    worker: str | None
    outcome: str
    assigned: str | None
    started: str | None
    ended: str | None
    code: str | None
    category: str | None
    message: str | None
    decision: str | None
    next_due: str | None
    #: Last lines that a command wrote to stderr; of the newest attempt only, and only if it failed.
    error_output: list[str]


class HistoryShape(msgspec.Struct, kw_only=True):
    """One fact of the history, with its cause in words."""

    at: str | None
    kind: str
    sentence: str
    generation: int
    attempt: int
    worker: str | None
    code: str | None
    category: str | None
    started: str | None
    due: str | None
    by: str | None
    failure: dict[str, Any] | None


class StoryShape(InstanceShape, kw_only=True):
    """An instance whole: the story of its attempts, what comes next, and its history."""

    payload: Any
    result: Any
    failure: dict[str, Any] | None
    max_retry: int | None
    max_lost: int | None
    waits: str | None
    next: str
    #: It fails if no attempt has started by then.
    expires: str | None
    cancel_reason: str | None
    #: The newest, with the history from there on.
    attempts: list[AttemptShape]
    history: list[HistoryShape]
    #: Rows of the history before those that are here.
    left_out: int


class OutputShape(msgspec.Struct, kw_only=True):
    """A piece of what an attempt wrote."""

    at: str | None
    attempt: int
    sequence: int
    stream: str
    text: str


def instance_shape(instance: Instance) -> InstanceShape:
    """As in lists; payload, result and failure are left out."""
    return InstanceShape(**_common(instance))


def story_shape(instance: Instance, story: Story, *, history: Sequence[HistoryRow]) -> StoryShape:
    """The whole instance, its attempts, what comes next, and its history."""
    return StoryShape(
        **_common(instance),
        payload=_decoded(instance.payload),
        result=_decoded(instance.result),
        failure=_failure(instance.failure),
        max_retry=story.max_retry,
        max_lost=story.max_lost,
        waits=story.waits or None,
        next=story.next,
        expires=instant(story.expires_us),
        cancel_reason=story.cancel_reason or None,
        attempts=[attempt_shape(attempt) for attempt in story.attempts],
        history=[history_shape(row) for row in history],
        left_out=story.left_out,
    )


def attempt_shape(attempt: AttemptStory) -> AttemptShape:
    """One attempt of a story."""
    return AttemptShape(
        attempt=attempt.number,
        generation=attempt.generation,
        attempt_id=attempt.attempt_id,
        worker=attempt.worker or None,
        outcome=attempt.ended,
        assigned=instant(attempt.assigned_us),
        started=instant(attempt.started_us),
        ended=instant(attempt.ended_us),
        code=attempt.code or None,
        category=attempt.category or None,
        message=attempt.message or None,
        decision=attempt.decision or None,
        next_due=instant(attempt.next_due_us),
        error_output=list(attempt.error_output),
    )


def history_shape(row: HistoryRow) -> HistoryShape:
    """One row of the history."""
    return HistoryShape(
        at=instant(row.at_us),
        kind=str(row.kind),
        sentence=row.sentence,
        generation=row.generation,
        attempt=row.attempt,
        worker=row.worker_name or None,
        code=row.code or None,
        category=row.category or None,
        started=instant(row.started_us),
        due=instant(row.due_us),
        by=row.by or None,
        failure=_failure(row.failure),
    )


def output_shape(chunk: OutputChunk) -> OutputShape:
    """One piece of output."""
    return OutputShape(
        at=instant(chunk.at_us),
        attempt=chunk.attempt,
        sequence=chunk.sequence,
        stream=chunk.stream,
        text=chunk.text,
    )


def _common(instance: Instance) -> dict[str, Any]:
    return {
        "id": instance.id,
        "namespace": instance.namespace,
        "task": instance.task,
        "task_version": instance.task_version,
        "state": str(instance.state),
        "reason": instance.reason,
        "hold": None if instance.hold is None else str(instance.hold),
        "priority": instance.priority,
        "generation": instance.generation,
        "attempt": instance.attempt,
        "failure_count": instance.counters.failures,
        "lost_count": instance.counters.lost,
        "worker": instance.worker_name or None,
        "key": instance.key or None,
        "fire": instant(instance.fire_us),
        "shard": instance.shard,
        "shard_total": instance.shard_total,
        "created": instant(instance.created_us),
        "due": instant(instance.due_us),
        "started": instant(instance.started_us),
        "running_since": instant(instance.running_since_us),
        "finished": instant(instance.finished_us),
        "cancel_requested": instant(instance.cancel_requested_us),
    }


def _failure(failure: Failure | None) -> dict[str, Any] | None:
    return None if failure is None else {**msgspec.to_builtins(failure), "numeric": failure.numeric}


def _decoded(encoded: bytes | None) -> Any:
    return None if encoded is None else msgspec.json.decode(encoded)
