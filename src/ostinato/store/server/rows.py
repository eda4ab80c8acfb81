"""Rows of instances and of their history in both directions: values to bind, and structs of what was read.

An instance is read in one of three widths, each with a list of columns and a builder that takes a row of just
these columns, whichever driver gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import Column

from ostinato.core.failure.failure import Failure
from ostinato.core.model import HistoryKind, HistoryRow, Instance
from ostinato.core.retry.counters import Counters
from ostinato.core.states import Hold, State
from ostinato.store import schema

Value: TypeAlias = str | bytes | int | bool | None
#: Any: a row as the driver gives it, columns as selected.
Columns: TypeAlias = Sequence[Any]

_PLAIN = (
    "id",
    "namespace",
    "task",
    "task_version",
    "partition",
    "state",
    "priority",
    "due_us",
    "created_us",
    "generation",
    "attempt",
    "attempt_id",
    "worker_id",
    "worker_name",
    "counters",
    "hold",
    "reason",
    "expires_us",
    "fire_trigger",
    "fire_us",
    "shard",
    "shard_total",
    "key",
    "assigned_us",
    "started_us",
    "finished_us",
    "cancel_requested_us",
    "cancel_reason",
)
#: For lists: payload and result left out.
BRIEF = (*_PLAIN, "failure")
#: To be assigned: result and failure left out, whose pages are not read.
WORK = (*_PLAIN, "payload")
#: Everything.
WHOLE = (*_PLAIN, "failure", "payload", "result")

#: Columns of a new instance, in the order of `instance_values`; the others say that nothing has happened yet.
INSERTED = (
    "id",
    "namespace",
    "task",
    "task_version",
    "partition",
    "state",
    "priority",
    "due_us",
    "created_us",
    "payload",
    "hold",
    "reason",
    "expires_us",
    "fire_trigger",
    "fire_us",
    "shard",
    "shard_total",
    "key",
    "finished_us",
)
#: Columns of a row of the history, in the order of `history_values` and for `history_row`.
HISTORY = (
    "instance_id",
    "partition",
    "at_us",
    "kind",
    "sentence",
    "generation",
    "attempt",
    "attempt_id",
    "worker_name",
    "code",
    "category",
    "started_us",
    "due_us",
    "by",
    "unconditional",
    "failure",
)

_FRESH = Counters()
#: Looked up rather than called: an enumeration's call costs as much as the rest of a row.
_STATES = {state.value: state for state in State}
_HOLDS: dict[str | None, Hold | None] = {None: None} | {hold.value: hold for hold in Hold}
_PLAIN_COUNT = len(_PLAIN)

_encode = msgspec.json.encode
_decode_failure = msgspec.json.Decoder(Failure).decode
_decode_counters = msgspec.json.Decoder(Counters).decode


def columns_of(names: Sequence[str]) -> list[Column[Any]]:
    """Columns of ``instance`` by name, in this order."""
    return [schema.instance.c[name] for name in names]


# ── read ──────────────────────────────────────────────────────────────────────────────────────────────


def brief_instance(row: Columns) -> Instance:
    """Of the columns `BRIEF`."""
    instance = _plain_instance(row, b"")
    instance.failure = failure_of(row[_PLAIN_COUNT])
    return instance


def work_instance(row: Columns) -> Instance:
    """Of the columns `WORK`."""
    return _plain_instance(row, row[_PLAIN_COUNT])


def whole_instance(row: Columns) -> Instance:
    """Of the columns `WHOLE`."""
    instance = _plain_instance(row, row[_PLAIN_COUNT + 1])
    instance.failure = failure_of(row[_PLAIN_COUNT])
    instance.result = row[_PLAIN_COUNT + 2]
    return instance


def _plain_instance(row: Columns, payload: bytes) -> Instance:
    counters = row[14]
    return Instance(
        id=row[0],
        namespace=row[1],
        task=row[2],
        task_version=row[3],
        partition=row[4],
        state=_STATES[row[5]],
        priority=row[6],
        due_us=row[7],
        created_us=row[8],
        payload=payload,
        generation=row[9],
        attempt=row[10],
        attempt_id=row[11],
        worker_id=row[12],
        worker_name=row[13],
        counters=_FRESH if counters is None else _decode_counters(counters),
        hold=_HOLDS[row[15]],
        reason=row[16],
        expires_us=row[17],
        fire_trigger=row[18],
        fire_us=row[19],
        shard=row[20],
        shard_total=row[21],
        key=row[22],
        assigned_us=row[23],
        started_us=row[24],
        finished_us=row[25],
        cancel_requested_us=row[26],
        cancel_reason=row[27],
    )


def history_row(row: Columns) -> HistoryRow:
    """Of the columns `HISTORY`."""
    return HistoryRow(
        instance_id=row[0],
        partition=row[1],
        at_us=row[2],
        kind=HistoryKind(row[3]),
        sentence=row[4],
        generation=row[5],
        attempt=row[6],
        attempt_id=row[7],
        worker_name=row[8],
        code=row[9],
        category=row[10],
        started_us=row[11],
        due_us=row[12],
        by=row[13],
        unconditional=bool(row[14]),
        failure=failure_of(row[15]),
    )


def failure_of(text: str | None) -> Failure | None:
    return None if text is None else _decode_failure(text)


# ── written ───────────────────────────────────────────────────────────────────────────────────────────


def instance_values(row: Instance) -> tuple[Value, ...]:
    """For the columns `INSERTED`."""
    return (
        row.id,
        row.namespace,
        row.task,
        row.task_version,
        row.partition,
        row.state.value,
        row.priority,
        row.due_us,
        row.created_us,
        row.payload,
        None if row.hold is None else row.hold.value,
        row.reason,
        row.expires_us,
        row.fire_trigger,
        row.fire_us,
        row.shard,
        row.shard_total,
        row.key,
        row.finished_us,
    )


def history_values(row: HistoryRow) -> tuple[Value, ...]:
    """For the columns `HISTORY`."""
    return (
        row.instance_id,
        row.partition,
        row.at_us,
        row.kind.value,
        row.sentence,
        row.generation,
        row.attempt,
        row.attempt_id,
        row.worker_name,
        row.code,
        row.category,
        row.started_us,
        row.due_us,
        row.by,
        row.unconditional,
        failure_text(row.failure),
    )


def failure_text(failure: Failure | None) -> str | None:
    return None if failure is None else _encode(failure).decode()


def counters_text(counters: Counters) -> str | None:
    """NULL for a fresh generation, so that the uneventful path carries no text."""
    return None if counters == _FRESH else _encode(counters).decode()
