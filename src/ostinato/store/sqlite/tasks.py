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
from ostinato.store.sqlite.statements import Row, run_rows, statement

_encode_spec = msgspec.json.Encoder().encode
_encode_names = msgspec.json.Encoder().encode
_decode_spec: msgspec.json.Decoder[Trigger] = msgspec.json.Decoder(Trigger)

_TRIGGER_COLUMNS = "id, namespace, task, partition, task_version, spec, created_us, next_us, last_us"
#: Beside another table that has a namespace and a task too.
_TRIGGER_COLUMNS_JOINED = ", ".join(f"task_trigger.{column}" for column in _TRIGGER_COLUMNS.split(", "))
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
        f"SELECT task.version, definition, origin {_TASK_FROM} WHERE task.namespace = ? AND task.name = ?",
        name,
    ).fetchone()
    if row is not None and row[1] == encoded:
        if origin == "app" and row[2] != origin:
            connection.execute("UPDATE task SET origin = ? WHERE namespace = ? AND name = ?", (origin, *name))
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
        connection.execute("DELETE FROM idempotency_key WHERE namespace = ? AND task = ?", name)


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
    # In the order of the index: what was applied at once has one time, and sorting it would cost all of it.
    rows = connection.execute(
        f"SELECT {_TASK_COLUMNS} {_TASK_FROM} WHERE scheduled_version <> task.version {owned}"
        " ORDER BY updated_us, task.rowid LIMIT ?",
        (limit,),
    ).fetchall()
    found: dict[TaskRef, ChangedTask] = {}
    for row in rows:
        task = _task_row(row)
        change = TaskChange(task.definition, task.version, task.partition, task.disabled, task.updated_us)
        found[task.ref] = ChangedTask(change, [])
    for trigger in _triggers_of_all(connection, list(found)):
        found[trigger.ref].triggers.append(trigger)
    return list(found.values())


# ── triggers ──────────────────────────────────────────────────────────────────────────────────────────


def triggers_of(connection: sqlite3.Connection, ref: TaskRef) -> list[TriggerRow]:
    rows = connection.execute(
        f"SELECT {_TRIGGER_COLUMNS} FROM task_trigger WHERE namespace = ? AND task = ? ORDER BY id",
        (ref.namespace, ref.name),
    )
    return [_trigger_row(row) for row in rows]


def _triggers_of_all(connection: sqlite3.Connection, refs: Sequence[TaskRef]) -> list[TriggerRow]:
    """Of many tasks with one statement, by id."""
    query = statement("triggers_of_tasks").format(columns=_TRIGGER_COLUMNS_JOINED)
    return [_trigger_row(row) for row in connection.execute(query, (_names_of(refs),))]


def _names_of(refs: Sequence[TaskRef]) -> bytes:
    return _encode_names([(ref.namespace, ref.name) for ref in refs])


def find_due_triggers(
    connection: sqlite3.Connection, owned: str, *, now_us: int, limit: int
) -> FoundTriggers:
    text = statement("due_triggers")
    # Those of tasks that have been edited become due once the edit is in force.
    query = text.format(owned=f"AND scheduled_version = version {owned}")
    due = connection.execute(
        query, {"from_us": INTEGER_MIN, "until_us": now_us, "limit": limit + 1}
    ).fetchall()
    # Not so here: while many edits wait, all of their triggers would be passed over in every round.
    query = text.format(owned=owned)
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


def switch_versions(connection: sqlite3.Connection, switches: Sequence[SwitchVersion]) -> None:
    """Put the triggers of versions in force; nothing of a task that has been deleted."""
    if not switches:
        return
    rows: list[Row] = [
        (switch.version, switch.namespace, switch.task, switch.partition) for switch in switches
    ]
    if run_rows(connection, "switch_version", rows=rows) != len(rows):
        switches = [switch for switch in switches if _is_there(connection, switch)]
    kept = {trigger.id for switch in switches for trigger in switch.triggers}
    refs = [TaskRef(switch.namespace, switch.task) for switch in switches]
    old = [(trigger_id,) for trigger_id in _trigger_ids(connection, refs) if trigger_id not in kept]
    connection.executemany("DELETE FROM task_trigger WHERE id = ?", old)
    values = [_trigger_values(trigger) for switch in switches for trigger in switch.triggers]
    run_rows(connection, "put_trigger", rows=values)


def _is_there(connection: sqlite3.Connection, switch: SwitchVersion) -> bool:
    names = (switch.namespace, switch.task, switch.partition)
    row = connection.execute(
        "SELECT 1 FROM task WHERE namespace = ? AND name = ? AND partition = ?", names
    ).fetchone()
    return row is not None


def _trigger_ids(connection: sqlite3.Connection, refs: Sequence[TaskRef]) -> list[str]:
    query = statement("triggers_of_tasks").format(columns="task_trigger.id")
    return [row[0] for row in connection.execute(query, (_names_of(refs),))]


def _trigger_values(trigger: TriggerRow) -> Row:
    return (
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


def set_flags(connection: sqlite3.Connection, flags: SetTaskFlags) -> None:
    connection.execute(
        "UPDATE task SET paused = coalesce(?, paused), disabled = coalesce(?, disabled)"
        " WHERE namespace = ? AND name = ? AND partition = ?",
        (flags.paused, flags.disabled, flags.namespace, flags.task, flags.partition),
    )
