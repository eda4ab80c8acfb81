"""Triggers in force: which are due, those of a task, and the switch to those of another version."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import and_, not_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.core.definition import TaskRef
from ostinato.core.schedule.trigger import Trigger
from ostinato.store.batches import FoundTriggers, SwitchVersion, TriggerRow
from ostinato.store.rules import INTEGER_MAX, INTEGER_MIN
from ostinato.store.schema import task, task_trigger
from ostinato.store.server.dialect_sql import (
    chunks,
    delete_rows,
    findable,
    forced,
    looked_up,
    owned,
    rows_of,
    upsert,
)
from ostinato.store.server.rows import Columns, Value

_encode_spec = msgspec.json.Encoder().encode
_decode_spec: msgspec.json.Decoder[Trigger] = msgspec.json.Decoder(Trigger)

_COLUMNS = (
    task_trigger.c.id,
    task_trigger.c.namespace,
    task_trigger.c.task,
    task_trigger.c.partition,
    task_trigger.c.task_version,
    task_trigger.c.spec,
    task_trigger.c.created_us,
    task_trigger.c.next_us,
    task_trigger.c.last_us,
)


async def triggers_of(connection: AsyncConnection, ref: TaskRef) -> list[TriggerRow]:
    """Triggers in force of a task, by id."""
    return await triggers_of_tasks(connection, [ref])


async def triggers_of_tasks(connection: AsyncConnection, refs: Sequence[TaskRef]) -> list[TriggerRow]:
    """Triggers in force of many tasks, by id."""
    names = (task_trigger.c.namespace, task_trigger.c.task)
    found: list[TriggerRow] = []
    for chunk in chunks([ref for ref in dict.fromkeys(refs) if findable(ref.namespace, ref.name)]):
        wanted = rows_of(connection, names, rows=[(ref.namespace, ref.name) for ref in chunk])
        is_wanted = and_(*(column == wanted.c[column.name] for column in names))
        statement = select(*_COLUMNS).select_from(wanted.join(task_trigger, is_wanted))
        found += [_trigger_row(row) for row in await connection.execute(statement)]
    return sorted(found, key=lambda trigger: trigger.id)


async def find_due_triggers(
    connection: AsyncConnection, partitions: Sequence[int] | None, *, now_us: int, limit: int
) -> FoundTriggers:
    """Triggers with ``next_us <= now_us`` whose task is neither paused nor disabled, earliest first."""
    is_task = and_(task.c.namespace == task_trigger.c.namespace, task.c.name == task_trigger.c.task)
    statement = (
        select(*_COLUMNS)
        .select_from(task_trigger.join(task, is_task))
        .where(not_(task.c.paused), not_(task.c.disabled), owned(task_trigger.c.partition, partitions))
        .order_by(task_trigger.c.next_us, task_trigger.c.id)
    )
    statement = forced(statement, task_trigger, index="task_trigger_next")
    # Those of tasks that have been edited become due once the edit is in force.
    due = await connection.execute(
        statement.where(
            task_trigger.c.next_us.between(INTEGER_MIN, now_us), task.c.scheduled_version == task.c.version
        ).limit(limit + 1)
    )
    triggers = [_trigger_row(row) for row in due]
    # Not so here: while many edits wait, all of their triggers would be passed over in every round.
    following = await connection.execute(
        statement.where(task_trigger.c.next_us.between(now_us + 1, INTEGER_MAX)).limit(1)
    )
    later = following.first()
    return FoundTriggers(
        triggers=triggers[:limit], more=len(triggers) > limit, next_us=None if later is None else later[7]
    )


def _trigger_row(row: Columns) -> TriggerRow:
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


# ── within an owner's transaction ─────────────────────────────────────────────────────────────────────


async def switch_versions(connection: AsyncConnection, switches: Sequence[SwitchVersion]) -> None:
    """Put the triggers of versions in force; nothing of a task that has been deleted."""
    for chunk in chunks(switches):
        await _switch(connection, chunk)


async def _switch(connection: AsyncConnection, switches: Sequence[SwitchVersion]) -> None:
    key = (task.c.namespace, task.c.name, task.c.partition)
    versions = {(switch.namespace, switch.task, switch.partition): switch for switch in switches}
    wanted = rows_of(connection, key, rows=sorted(versions))
    is_wanted = and_(*(column == wanted.c[column.name] for column in key))
    statement = looked_up(select(task).select_from(wanted.join(task, is_wanted)), task)
    # In the order of names, as an apply locks them.
    locked = await connection.execute(statement.order_by(*key[:2]).with_for_update(of=task))
    rows = [dict(row) for row in locked.mappings()]
    there = [versions[row["namespace"], row["name"], row["partition"]] for row in rows]
    if not there:
        return
    for row, switch in zip(rows, there, strict=True):
        row["scheduled_version"] = switch.version
    await connection.execute(upsert(connection, task, only=("scheduled_version",)), rows)
    kept = {trigger.id: trigger for switch in there for trigger in switch.triggers}
    former = await triggers_of_tasks(connection, [TaskRef(switch.namespace, switch.task) for switch in there])
    old = [(trigger.id,) for trigger in former if trigger.id not in kept]
    await delete_rows(connection, (task_trigger.c.id,), values=old)
    if kept:
        values = [_trigger_values(kept[trigger_id]) for trigger_id in sorted(kept)]
        await connection.execute(upsert(connection, task_trigger), values)


def _trigger_values(trigger: TriggerRow) -> dict[str, Value]:
    return {
        "id": trigger.id,
        "namespace": trigger.namespace,
        "task": trigger.task,
        "partition": trigger.partition,
        "task_version": trigger.task_version,
        "spec": _encode_spec(trigger.spec),
        "created_us": trigger.created_us,
        "next_us": trigger.next_us,
        "last_us": trigger.last_us,
    }
