"""Rows of instances in both directions: bound values on the way in, one row of JSON on the way out.

SQLite builds the JSON and msgspec decodes it straight into structs, both without the interpreter lock being
won and lost per row or a Python object made per column. Bytes cannot stand in JSON, so they travel beside it
in hexadecimal; those over a limit are read one by one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from ostinato.core.failure.failure import Failure
from ostinato.core.model import HistoryRow, Instance
from ostinato.core.retry.counters import Counters
from ostinato.store.sqlite.statements import Row

#: Longer payloads and results are read by themselves rather than doubled into text.
_INLINE_BYTES_MAX = 16384

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
_FRESH = Counters()

_encode = msgspec.json.encode
_decode_instances = msgspec.json.Decoder(list[Instance]).decode
_decode_row_numbers = msgspec.json.Decoder(list[int]).decode


def _object(*, failure: bool) -> str:
    pairs = [f"'{name}', instance.{name}" for name in _PLAIN]
    pairs.append("'counters', json(coalesce(counters, '{}'))")
    if failure:
        pairs.append("'failure', json(failure)")
    return f"json_group_array(json_object({', '.join(pairs)}))"


def _hex(column: str) -> str:
    return (
        f"group_concat(CASE WHEN {column} IS NULL THEN '-' WHEN length({column}) > {_INLINE_BYTES_MAX}"
        f" THEN '+' ELSE hex({column}) END)"
    )


# CROSS JOIN keeps the order of the row numbers asked for.
_FROM = "FROM json_each(?) AS wanted CROSS JOIN instance ON instance.rowid = wanted.value"
_WHOLE = f"SELECT {_object(failure=True)}, {_hex('payload')}, {_hex('result')} {_FROM}"
_WORK = f"SELECT {_object(failure=False)}, {_hex('payload')} {_FROM}"
_BRIEF = f"SELECT {_object(failure=True)} {_FROM}"


def row_numbers(connection: sqlite3.Connection, query: str, *, parameters: Mapping[str, object]) -> list[int]:
    """Row numbers that `query` finds, in its order, fetched as one row."""
    wrapped = f"SELECT json_group_array(row_number) FROM ({query})"
    return _decode_row_numbers(connection.execute(wrapped, parameters).fetchone()[0])


def read_whole(connection: sqlite3.Connection, numbers: Sequence[int]) -> list[Instance]:
    """Instances with everything, in the order of `numbers`."""
    encoded, payloads, results = connection.execute(_WHOLE, (_encode(numbers).decode(),)).fetchone()
    instances = _decode_instances(encoded)
    for instance, payload in zip(
        instances, _bytes_of(connection, instances, column="payload", joined=payloads), strict=True
    ):
        instance.payload = payload or b""
    for instance, result in zip(
        instances, _bytes_of(connection, instances, column="result", joined=results), strict=True
    ):
        instance.result = result
    return instances


def read_work(connection: sqlite3.Connection, numbers: Sequence[int]) -> list[Instance]:
    """Instances to be assigned: without result and failure, whose pages are not read."""
    encoded, payloads = connection.execute(_WORK, (_encode(numbers).decode(),)).fetchone()
    instances = _decode_instances(encoded)
    for instance, payload in zip(
        instances, _bytes_of(connection, instances, column="payload", joined=payloads), strict=True
    ):
        instance.payload = payload or b""
    return instances


def read_brief(connection: sqlite3.Connection, numbers: Sequence[int]) -> list[Instance]:
    """Instances for lists: payload and result left out."""
    instances = _decode_instances(connection.execute(_BRIEF, (_encode(numbers).decode(),)).fetchone()[0])
    for instance in instances:
        instance.payload = b""
    return instances


def _bytes_of(
    connection: sqlite3.Connection, instances: list[Instance], *, column: str, joined: str | None
) -> list[bytes | None]:
    if joined is None:
        return []
    return [
        bytes.fromhex(text)
        if text not in ("-", "+")
        else _long(connection, column, instance_id=instance.id, mark=text)
        for text, instance in zip(joined.split(","), instances, strict=True)
    ]


def _long(connection: sqlite3.Connection, column: str, *, instance_id: str, mark: str) -> bytes | None:
    if mark == "-":
        return None
    value: bytes = connection.execute(
        f"SELECT {column} FROM instance WHERE id = ?", (instance_id,)
    ).fetchone()[0]
    return value


# ── values to bind ────────────────────────────────────────────────────────────────────────────────────


def instance_values(row: Instance) -> Row:
    """Of ``insert_instance.sql``."""
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


def history_values(row: HistoryRow) -> Row:
    """Of ``insert_history.sql``."""
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
        int(row.unconditional),
        failure_text(row.failure),
    )


def failure_text(failure: Failure | None) -> str | None:
    return None if failure is None else _encode(failure).decode()


def counters_text(counters: Counters) -> str | None:
    """NULL for a fresh generation, so that the uneventful path carries no text."""
    return None if counters == _FRESH else _encode(counters).decode()
