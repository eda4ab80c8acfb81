"""Tasks, their definitions and their triggers."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ostinato.core.definition import Origin, TaskDefinition, TaskRef, TaskRow, decode_definition
from ostinato.core.ids import partition_of
from ostinato.core.schedule.trigger import Trigger
from ostinato.store.batches import (
    ApplyReceipt,
    ChangedTask,
    DeleteTask,
    FoundTriggers,
    SetTaskFlags,
    SwitchVersion,
    TaskChange,
    TriggerRow,
)
from ostinato.store.rules import INTEGER_MAX, INTEGER_MIN, conflict_receipts, require_encodable
from ostinato.store.sqlite.statements import statement

_encode_spec = msgspec.json.Encoder().encode
_decode_spec: msgspec.json.Decoder[Trigger] = msgspec.json.Decoder(Trigger)

_TRIGGER_COLUMNS = "id, namespace, task, partition, task_version, spec, created_us, next_us, last_us"
_TASK_COLUMNS = (
    "task.namespace, task.name, task.version, task.partition, paused, disabled, scheduled_version,"
    " created_us, updated_us, definition, origin"
)
_TASK_FROM = (
    "FROM task JOIN task_definition ON task_definition.namespace = task.namespace"
    " AND task_definition.name = task.name AND task_definition.version = task.version"
)

#: Any: a row as the driver gives it, columns as selected.
_Columns = tuple[Any, ...]


def apply(
    connection: sqlite3.Connection,
    definitions: Sequence[TaskDefinition],
    *,
    now_us: int,
    origin: Origin,
    expected: Mapping[TaskRef, int],
    partition_count: int,
) -> list[ApplyReceipt]:
    """Store definitions, all or none; equal content makes no new version."""
    encoded = [require_encodable(definition) for definition in definitions]
    refs = [definition.ref for definition in definitions]
    connection.execute("BEGIN IMMEDIATE")
    versions = _versions(connection, [*refs, *expected]) if expected else {}
    receipts = conflict_receipts(refs, versions, expected=expected)
    if not receipts:
        receipts = [
            _apply_one(
                connection,
                ref,
                encoded=content,
                now_us=now_us,
                origin=origin,
                partition_count=partition_count,
            )
            for ref, content in zip(refs, encoded, strict=True)
        ]
    connection.commit()
    return receipts


def _versions(connection: sqlite3.Connection, refs: Sequence[TaskRef]) -> dict[TaskRef, int]:
    found: dict[TaskRef, int] = {}
    for ref in refs:
        row = connection.execute(
            "SELECT version FROM task WHERE namespace = ? AND name = ?", (ref.namespace, ref.name)
        ).fetchone()
        if row is not None:
            found[ref] = row[0]
    return found


def _apply_one(
    connection: sqlite3.Connection,
    ref: TaskRef,
    *,
    encoded: bytes,
    now_us: int,
    origin: Origin,
    partition_count: int,
) -> ApplyReceipt:
    name = (ref.namespace, ref.name)
    row = connection.execute(
        f"SELECT task.version, definition {_TASK_FROM} WHERE task.namespace = ? AND task.name = ?", name
    ).fetchone()
    if row is not None and row[1] == encoded:
        return ApplyReceipt(ref, row[0], "unchanged")
    # Versions of a deleted task go on: instances may pin them.
    (version,) = connection.execute(
        "SELECT coalesce(max(version), 0) + 1 FROM task_definition WHERE namespace = ? AND name = ?", name
    ).fetchone()
    connection.execute(
        "INSERT INTO task_definition (namespace, name, version, definition) VALUES (?, ?, ?, ?)",
        (*name, version, encoded),
    )
    if row is not None:
        connection.execute(
            "UPDATE task SET version = ?, updated_us = ?, origin = ? WHERE namespace = ? AND name = ?",
            (version, now_us, origin, *name),
        )
        return ApplyReceipt(ref, version, "changed")
    connection.execute(
        "INSERT INTO task (namespace, name, partition, version, scheduled_version, paused, disabled,"
        " created_us, updated_us, origin) VALUES (?, ?, ?, ?, 0, 0, 0, ?, ?, ?)",
        (
            *name,
            partition_of(ref.namespace, ref.name, partition_count=partition_count),
            version,
            now_us,
            now_us,
            origin,
        ),
    )
    return ApplyReceipt(ref, version, "created")


def delete_task(connection: sqlite3.Connection, deletion: DeleteTask) -> None:
    """Within the owner's transaction; nothing where it is gone already."""
    name = (deletion.namespace, deletion.task)
    deleted = connection.execute(
        "DELETE FROM task WHERE namespace = ? AND name = ? AND partition = ?", (*name, deletion.partition)
    ).rowcount
    if deleted:
        connection.execute("DELETE FROM task_trigger WHERE namespace = ? AND task = ?", name)


def load_definitions(
    connection: sqlite3.Connection, versions: Sequence[tuple[TaskRef, int]]
) -> dict[tuple[TaskRef, int], TaskDefinition]:
    found: dict[tuple[TaskRef, int], TaskDefinition] = {}
    for ref, version in dict.fromkeys(versions):
        row = connection.execute(
            "SELECT definition FROM task_definition WHERE namespace = ? AND name = ? AND version = ?",
            (ref.namespace, ref.name, version),
        ).fetchone()
        if row is not None:
            found[ref, version] = decode_definition(row[0])
    return found


def get_tasks(connection: sqlite3.Connection, refs: Sequence[TaskRef]) -> dict[TaskRef, TaskRow]:
    found: dict[TaskRef, TaskRow] = {}
    for ref in dict.fromkeys(refs):
        row = connection.execute(
            f"SELECT {_TASK_COLUMNS} {_TASK_FROM} WHERE task.namespace = ? AND task.name = ?",
            (ref.namespace, ref.name),
        ).fetchone()
        if row is not None:
            found[ref] = _task_row(row)
    return found


def list_tasks(
    connection: sqlite3.Connection,
    namespace: str | None,
    *,
    after: TaskRef | None,
    limit: int,
    search: str,
) -> list[TaskRow]:
    """The index gives order and place; `search` looks at the names in it, not at the rows."""
    if namespace is None:
        place = "(task.namespace, task.name) > (:after_namespace, :after_name)"
    elif after is None or after.namespace <= namespace:
        place = "task.namespace = :namespace AND task.name > :after_name"
        after = after if after is not None and after.namespace == namespace else None
    else:
        return []
    after = after or TaskRef("", "")
    if search:
        place += " AND instr(lower(task.name), :search) > 0"
    rows = connection.execute(
        f"SELECT {_TASK_COLUMNS} {_TASK_FROM} WHERE {place} ORDER BY task.namespace, task.name LIMIT :limit",
        {
            "after_namespace": after.namespace,
            "after_name": after.name,
            "namespace": namespace,
            "search": search,
            "limit": limit,
        },
    )
    return [_task_row(row) for row in rows]


def namespaces(connection: sqlite3.Connection, *, limit: int) -> list[str]:
    """One seek into the index per namespace."""
    rows = connection.execute(
        "WITH RECURSIVE found(name) AS (SELECT min(namespace) FROM task UNION ALL"
        " SELECT (SELECT min(namespace) FROM task WHERE namespace > found.name) FROM found"
        " WHERE found.name IS NOT NULL) SELECT name FROM found WHERE name IS NOT NULL LIMIT ?",
        (limit,),
    )
    return [row[0] for row in rows]


def _task_row(row: _Columns) -> TaskRow:
    return TaskRow(
        version=row[2],
        partition=row[3],
        paused=bool(row[4]),
        disabled=bool(row[5]),
        scheduled_version=row[6],
        created_us=row[7],
        updated_us=row[8],
        definition=decode_definition(row[9]),
        origin=row[10],
    )


def find_changed_tasks(connection: sqlite3.Connection, owned: str, *, limit: int) -> list[ChangedTask]:
    rows = connection.execute(
        f"SELECT {_TASK_COLUMNS} {_TASK_FROM} WHERE scheduled_version <> task.version {owned}"
        " ORDER BY updated_us, task.namespace, task.name LIMIT ?",
        (limit,),
    ).fetchall()
    found: list[ChangedTask] = []
    for row in rows:
        task = _task_row(row)
        change = TaskChange(task.definition, task.version, task.partition, task.disabled, task.updated_us)
        found.append(ChangedTask(change, triggers_of(connection, task.ref)))
    return found


# ── triggers ──────────────────────────────────────────────────────────────────────────────────────────


def triggers_of(connection: sqlite3.Connection, ref: TaskRef) -> list[TriggerRow]:
    rows = connection.execute(
        f"SELECT {_TRIGGER_COLUMNS} FROM task_trigger WHERE namespace = ? AND task = ? ORDER BY id",
        (ref.namespace, ref.name),
    )
    return [_trigger_row(row) for row in rows]


def find_due_triggers(
    connection: sqlite3.Connection, owned: str, *, now_us: int, limit: int
) -> FoundTriggers:
    query = statement("due_triggers").format(owned=owned)
    due = connection.execute(
        query, {"from_us": INTEGER_MIN, "until_us": now_us, "limit": limit + 1}
    ).fetchall()
    later = connection.execute(query, {"from_us": now_us + 1, "until_us": INTEGER_MAX, "limit": 1}).fetchone()
    return FoundTriggers(
        triggers=[_trigger_row(row) for row in due[:limit]],
        more=len(due) > limit,
        next_us=None if later is None else later[7],
    )


def _trigger_row(row: _Columns) -> TriggerRow:
    return TriggerRow(
        id=row[0],
        namespace=row[1],
        task=row[2],
        partition=row[3],
        task_version=row[4],
        spec=_decode_spec.decode(row[5]),
        created_us=row[6],
        next_us=row[7],
        last_us=row[8],
    )


def switch_version(connection: sqlite3.Connection, switch: SwitchVersion) -> None:
    """Put the triggers of a version in force; nothing where the task has been deleted."""
    switched = connection.execute(
        "UPDATE task SET scheduled_version = ? WHERE namespace = ? AND name = ? AND partition = ?",
        (switch.version, switch.namespace, switch.task, switch.partition),
    ).rowcount
    if switched == 0:
        return
    kept = {trigger.id for trigger in switch.triggers}
    for trigger in triggers_of(connection, TaskRef(switch.namespace, switch.task)):
        if trigger.id not in kept:
            connection.execute("DELETE FROM task_trigger WHERE id = ?", (trigger.id,))
    connection.executemany(
        f"INSERT OR REPLACE INTO task_trigger ({_TRIGGER_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                trigger.id,
                trigger.namespace,
                trigger.task,
                trigger.partition,
                trigger.task_version,
                _encode_spec(trigger.spec),
                trigger.created_us,
                trigger.next_us,
                trigger.last_us,
            )
            for trigger in switch.triggers
        ],
    )


def set_flags(connection: sqlite3.Connection, flags: SetTaskFlags) -> None:
    connection.execute(
        "UPDATE task SET paused = coalesce(?, paused), disabled = coalesce(?, disabled)"
        " WHERE namespace = ? AND name = ? AND partition = ?",
        (flags.paused, flags.disabled, flags.namespace, flags.task, flags.partition),
    )
