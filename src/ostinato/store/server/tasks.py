"""Tasks and their definitions: reads, and what an owner's transaction does to a task."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import FromClause, Select, and_, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.core.definition import TaskDefinition, TaskRef, TaskRow, decode_definition
from ostinato.store.batches import ChangedTask, DeleteTask, SetTaskFlags, TaskChange
from ostinato.store.schema import idempotency_key, task, task_definition, task_trigger
from ostinato.store.server.dialect_sql import behind, chunks, findable, forced, marked, owned, rows_of
from ostinato.store.server.rows import Columns
from ostinato.store.server.seeks import first_values
from ostinato.store.server.triggers import triggers_of_tasks

_COLUMNS = (
    task.c.version,
    task.c.partition,
    task.c.paused,
    task.c.disabled,
    task.c.scheduled_version,
    task.c.created_us,
    task.c.updated_us,
    task_definition.c.definition,
    task.c.origin,
)
_NAMES = (task.c.namespace, task.c.name)


def _rows_named(names: FromClause) -> Select[Columns]:
    """Rows of the tasks that `names` lists, with their newest definitions."""
    is_named = and_(task.c.namespace == names.c.namespace, task.c.name == names.c.name)
    is_newest = and_(
        task_definition.c.namespace == task.c.namespace,
        task_definition.c.name == task.c.name,
        task_definition.c.version == task.c.version,
    )
    return select(*_COLUMNS).select_from(names.join(task, is_named).join(task_definition, is_newest))


def task_row(row: Columns) -> TaskRow:
    """The struct of a row of the columns above."""
    return TaskRow(
        version=row[0],
        partition=row[1],
        paused=bool(row[2]),
        disabled=bool(row[3]),
        scheduled_version=row[4],
        created_us=row[5],
        updated_us=row[6],
        definition=decode_definition(row[7]),
        origin=row[8],
    )


async def load_definitions(
    connection: AsyncConnection, versions: Sequence[tuple[TaskRef, int]]
) -> dict[tuple[TaskRef, int], TaskDefinition]:
    """Pinned definitions; missing ones are left out."""
    key = (task_definition.c.namespace, task_definition.c.name, task_definition.c.version)
    found: dict[tuple[TaskRef, int], TaskDefinition] = {}
    named = [(ref, version) for ref, version in dict.fromkeys(versions) if findable(ref.namespace, ref.name)]
    for chunk in chunks(named):
        wanted = rows_of(connection, key, rows=[(ref.namespace, ref.name, version) for ref, version in chunk])
        is_wanted = and_(*(column == wanted.c[column.name] for column in key))
        statement = select(*key, task_definition.c.definition)
        rows = await connection.execute(statement.select_from(wanted.join(task_definition, is_wanted)))
        found |= {(TaskRef(row[0], row[1]), row[2]): decode_definition(row[3]) for row in rows}
    return found


async def get_tasks(connection: AsyncConnection, refs: Sequence[TaskRef]) -> dict[TaskRef, TaskRow]:
    """Live rows of tasks; missing ones are left out."""
    found: dict[TaskRef, TaskRow] = {}
    for chunk in chunks([ref for ref in dict.fromkeys(refs) if findable(ref.namespace, ref.name)]):
        wanted = rows_of(connection, _NAMES, rows=[(ref.namespace, ref.name) for ref in chunk])
        tasks = [task_row(row) for row in await connection.execute(_rows_named(wanted))]
        found |= {row.ref: row for row in tasks}
    return found


async def list_tasks(
    connection: AsyncConnection,
    namespace: str | None,
    *,
    after: TaskRef | None,
    limit: int,
    search: str,
) -> list[TaskRow]:
    """Tasks by (namespace, name); `search` has been folded, and is a part of the name in lower case."""
    if not findable(search, namespace or ""):
        return []
    if namespace is not None and after is not None and after.namespace > namespace:
        return []
    page = select(*_NAMES).order_by(*_NAMES).limit(limit)
    if namespace is not None:
        page = page.where(task.c.namespace == namespace)
        if after is not None and after.namespace == namespace:
            page = page.where(task.c.name > after.name)
    elif after is not None:
        page = page.where(behind(connection, _NAMES, values=(after.namespace, after.name)))
    if search:
        page = page.where(func.lower(task.c.name).contains(search, autoescape=True))
    statement = _rows_named(page.subquery("page")).order_by(*_NAMES)
    return [task_row(row) for row in await connection.execute(statement)]


async def namespaces(connection: AsyncConnection, *, limit: int) -> list[str]:
    """Namespaces that have tasks, by name; one seek into the index each."""
    return await first_values(connection, task.c.namespace, index="PRIMARY", limit=limit)


async def find_changed_tasks(
    connection: AsyncConnection, partitions: Sequence[int] | None, *, limit: int
) -> list[ChangedTask]:
    """Tasks of `partitions` whose newest version is not in force, oldest edit first, then by name."""
    changed_us, is_changed = marked(
        connection,
        task.c.updated_us,
        where=task.c.scheduled_version != task.c.version,
        generated="changed_us",
    )
    page = select(*_NAMES).where(is_changed, owned(task.c.partition, partitions))
    page = forced(page, task, index="task_changed").order_by(changed_us, *_NAMES).limit(limit)
    statement = _rows_named(page.subquery("page")).order_by(task.c.updated_us, *_NAMES)
    found: dict[TaskRef, ChangedTask] = {}
    for row in await connection.execute(statement):
        changed = task_row(row)
        change = TaskChange(
            changed.definition, changed.version, changed.partition, changed.disabled, changed.updated_us
        )
        found[changed.ref] = ChangedTask(change, [])
    for trigger in await triggers_of_tasks(connection, list(found)):
        found[trigger.ref].triggers.append(trigger)
    return list(found.values())


# ── within an owner's transaction ─────────────────────────────────────────────────────────────────────


async def set_flags(connection: AsyncConnection, flags: SetTaskFlags) -> None:
    """Pause, resume, disable, enable; None leaves a flag as it is."""
    values = {
        name: value
        for name, value in (("paused", flags.paused), ("disabled", flags.disabled))
        if value is not None
    }
    if values:
        await connection.execute(
            update(task)
            .where(
                task.c.namespace == flags.namespace,
                task.c.name == flags.task,
                task.c.partition == flags.partition,
            )
            .values(values)
        )


async def delete_task(connection: AsyncConnection, deletion: DeleteTask) -> None:
    """Delete a task with its triggers and keys; nothing where it is gone already."""
    deleted = await connection.execute(
        delete(task).where(
            task.c.namespace == deletion.namespace,
            task.c.name == deletion.task,
            task.c.partition == deletion.partition,
        )
    )
    if deleted.rowcount:
        for table in (task_trigger, idempotency_key):
            await connection.execute(
                delete(table).where(table.c.namespace == deletion.namespace, table.c.task == deletion.task)
            )
