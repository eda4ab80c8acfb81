"""Tasks and instances as commands show them: JSON with ISO instants, and cells of tables."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ostinato.control.explain import AttemptStory, Story
from ostinato.core.definition import HttpSpec, PythonSpec, ShellSpec, TaskRow, encode_definition
from ostinato.core.failure.failure import Failure
from ostinato.core.instants import SECOND, format_duration, format_instant, to_datetime
from ostinato.core.model import HistoryRow, Instance, OutputChunk
from ostinato.core.retry.policy import policy_to_dict
from ostinato.core.schedule.trigger import describe_trigger
from ostinato.core.states import State
from ostinato.errors import UserError
from ostinato.store.batches import TriggerRow

Json = dict[str, object]


def instant(instant_us: int | None) -> str | None:
    return None if instant_us is None else format_instant(instant_us)


def shown_instant(instant_us: int | None) -> str:
    """For tables: whole seconds of UTC, empty for none."""
    if instant_us is None:
        return ""
    return to_datetime(instant_us // SECOND * SECOND).isoformat().replace("+00:00", "Z")


def _decoded(encoded: bytes | None) -> object:
    return None if encoded is None else msgspec.json.decode(encoded)


def failure_json(failure: Failure | None) -> Json | None:
    return None if failure is None else {**msgspec.to_builtins(failure), "numeric": failure.numeric}


def instance_json(instance: Instance, *, whole: bool) -> Json:
    """`whole` adds payload, result and failure, which lists leave out."""
    shown: Json = {
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
        "retry_count": instance.counters.failures,
        "lost_count": instance.counters.lost,
        "worker": instance.worker_name or None,
        "key": instance.key or None,
        "fire": instant(instance.fire_us),
        "created": instant(instance.created_us),
        "due": instant(instance.due_us),
        "started": instant(instance.started_us),
        "finished": instant(instance.finished_us),
        "cancel_requested": instant(instance.cancel_requested_us),
    }
    if whole:
        shown["payload"] = _decoded(instance.payload)
        shown["result"] = _decoded(instance.result)
        shown["failure"] = failure_json(instance.failure)
    return shown


INSTANCE_COLUMNS = ("ID", "TASK", "STATE", "ATTEMPT", "CREATED", "DUE", "FINISHED", "REASON")


def instance_cells(instance: Instance) -> Sequence[object]:
    state = f"{instance.state} ({instance.hold})" if instance.hold is not None else instance.state
    return (
        instance.id,
        instance.task,
        state,
        instance.attempt,
        shown_instant(instance.created_us),
        "" if instance.finished_us is not None else shown_instant(instance.due_us),
        shown_instant(instance.finished_us),
        instance.reason,
    )


def history_json(row: HistoryRow) -> Json:
    return {
        "at": instant(row.at_us),
        "kind": str(row.kind),
        "sentence": row.sentence,
        "generation": row.generation,
        "attempt": row.attempt,
        "worker": row.worker_name or None,
        "code": row.code or None,
        "category": row.category or None,
        "started": instant(row.started_us),
        "due": instant(row.due_us),
        "by": row.by or None,
        "failure": failure_json(row.failure),
    }


def output_json(chunk: OutputChunk) -> Json:
    return {
        "at": instant(chunk.at_us),
        "attempt": chunk.attempt,
        "sequence": chunk.sequence,
        "stream": chunk.stream,
        "text": chunk.text,
    }


def task_json(row: TaskRow, triggers: Sequence[TriggerRow]) -> Json:
    return {
        "namespace": row.ref.namespace,
        "name": row.ref.name,
        "version": row.version,
        "scheduled_version": row.scheduled_version,
        "paused": row.paused,
        "disabled": row.disabled,
        "created": instant(row.created_us),
        "updated": instant(row.updated_us),
        "retry": policy_to_dict(row.definition.retry),
        "triggers": [
            {
                "id": trigger.id,
                "schedule": describe_trigger(trigger.spec),
                "next": instant(trigger.next_us),
                "last": instant(trigger.last_us),
            }
            for trigger in triggers
        ],
        "definition": msgspec.json.decode(encode_definition(row.definition)),
    }


def task_status(row: TaskRow) -> str:
    if row.disabled:
        return "disabled"
    return "paused" if row.paused else "active"


def runs(row: TaskRow) -> str:
    """What the task runs, in one line."""
    match row.definition.executor:
        case PythonSpec(call=call):
            return f"python {call}"
        case ShellSpec(command=command):
            return "shell " + (command if isinstance(command, str) else " ".join(command))
        case HttpSpec(method=method, url=url):
            return f"http {method} {url}"


def duration(duration_us: int | None) -> str:
    return "none" if duration_us is None else format_duration(duration_us)


def states_of(names: Sequence[str]) -> tuple[State, ...]:
    """States by their names. Raises ``INVALID_VALUE``."""
    known = {str(state): state for state in State}
    for name in names:
        if name not in known:
            raise UserError(
                "INVALID_VALUE",
                f"{name!r} is not a state",
                field="--state",
                hint=f"one of {', '.join(known)}",
            )
    return tuple(known[name] for name in names)


def story_json(instance: Instance, story: Story, *, history: Sequence[HistoryRow]) -> Json:
    """The whole instance, its attempts, what comes next, and its history."""
    return {
        **instance_json(instance, whole=True),
        "max_retry": story.max_retry,
        "max_lost": story.max_lost,
        "waits": story.waits or None,
        "next": story.next,
        "attempts": [attempt_json(attempt) for attempt in story.attempts],
        "history": [history_json(row) for row in history],
    }


def attempt_json(attempt: AttemptStory) -> Json:
    return {
        "attempt": attempt.number,
        "generation": attempt.generation,
        "attempt_id": attempt.attempt_id,
        "worker": attempt.worker or None,
        "outcome": attempt.ended,
        "assigned": instant(attempt.assigned_us),
        "started": instant(attempt.started_us),
        "ended": instant(attempt.ended_us),
        "code": attempt.code or None,
        "category": attempt.category or None,
        "message": attempt.message or None,
        "decision": attempt.decision or None,
        "next_due": instant(attempt.next_due_us),
    }
