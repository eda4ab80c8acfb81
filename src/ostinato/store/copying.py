"""Copies what a database still has to do into another one, mostly from a SQLite file to a server.

Tasks with every version, their switches and triggers, instances that wait with their history, and live
idempotency keys. What has ended stays behind, as do logs. No scheduler may run on either side, and the
target has to be empty: it gets everything or nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
from sqlalchemy import ColumnElement, Select, Table, and_, func, or_, select

from ostinato.core.ids import partition_of
from ostinato.errors import ConflictError
from ostinato.store.schema import (
    history,
    idempotency_key,
    instance,
    partition_owner,
    request,
    task,
    task_definition,
    task_trigger,
)

#: A row by the names of its columns.
Row: TypeAlias = Mapping[str, Any]

#: Rows that are read and written at once; an instance has up to 256 KiB of payload.
_PAGE = 200
#: What an empty database has none of.
_EMPTY = (task, task_definition, task_trigger, instance, idempotency_key, request)


class Side(Protocol):
    """One database within a transaction, in which no scheduler runs."""

    #: Where it is, without a password.
    shown: str

    async def rows(self, statement: Select[Any]) -> Sequence[Row]: ...

    async def insert(self, table: Table, rows: Sequence[Row]) -> None: ...


class Copied(msgspec.Struct, kw_only=True):
    """How many rows were copied, and what stays behind."""

    source: str
    target: str
    tasks: int = 0
    definitions: int = 0
    triggers: int = 0
    instances: int = 0
    history: int = 0
    keys: int = 0
    #: Attempts that ran, in the source alone; only where they were to be left.
    left_running: int = 0
    left_finished: int = 0
    #: Requests of people that no scheduler had answered.
    left_requests: int = 0


async def copy_rows(source: Side, target: Side, *, now_us: int, leave_running: bool) -> Copied:
    """Copy from `source` to `target`; keys are live if they expire after `now_us`.

    Raises ``COPY_REFUSED`` where `target` holds anything, or attempts run in `source` and `leave_running` is
    false: where they end is written into `source`, whose instance would run once more in `target`.
    """
    copied = Copied(source=source.shown, target=target.shown)
    await _require_empty(target)
    copied.left_running = await _count(source, instance, instance.c.state == "running")
    if copied.left_running and not leave_running:
        raise ConflictError(
            "COPY_REFUSED",
            f"{copied.left_running} instances run in {source.shown}",
            subject=source.shown,
            hint="let them end, or cancel them, before the scheduler stops; --leave-running copies the rest",
        )
    copied.left_finished = await _count(source, instance, instance.c.finished_us.is_not(None))
    copied.left_requests = await _count(source, request, request.c.code.is_(None))
    count = await _count(target, partition_owner)
    copied.tasks = await _copy_tasks(source, target, partition_count=count)
    copied.definitions = await _copy_plainly(source, target, task_definition)
    copied.triggers = await _copy_triggers(source, target, partition_count=count)
    async for page in _waiting(source):
        rows = [_placed(row, task=row["task"], partition_count=count) for row in page]
        await target.insert(instance, rows)
        copied.instances += len(rows)
        copied.history += await _copy_history(source, target, instances=rows)
    live = idempotency_key.c.expires_us > now_us
    copied.keys = await _copy_plainly(source, target, idempotency_key, live)
    return copied


async def _require_empty(target: Side) -> None:
    for table in _EMPTY:
        if await target.rows(select(table.c.namespace).limit(1)):
            raise ConflictError(
                "COPY_REFUSED",
                f"{target.shown} is not empty: there are rows in {table.name}",
                subject=target.shown,
                hint="copy into a database that ostinato db upgrade has just made",
            )


async def _count(side: Side, table: Table, *where: ColumnElement[bool]) -> int:
    (row,) = await side.rows(select(func.count().label("count")).select_from(table).where(*where))
    return int(row["count"])


def _placed(row: Row, *, task: str, partition_count: int) -> Row:
    """`row` in the partition that the target has for its task."""
    return {**row, "partition": partition_of(row["namespace"], task, partition_count=partition_count)}


async def _copy_tasks(source: Side, target: Side, *, partition_count: int) -> int:
    count = 0
    async for page in _pages(source, task):
        rows = [_placed(row, task=row["name"], partition_count=partition_count) for row in page]
        await target.insert(task, rows)
        count += len(rows)
    return count


async def _copy_triggers(source: Side, target: Side, *, partition_count: int) -> int:
    count = 0
    async for page in _pages(source, task_trigger):
        rows = [_placed(row, task=row["task"], partition_count=partition_count) for row in page]
        await target.insert(task_trigger, rows)
        count += len(rows)
    return count


async def _copy_plainly(source: Side, target: Side, table: Table, *where: ColumnElement[bool]) -> int:
    count = 0
    async for page in _pages(source, table, *where):
        await target.insert(table, page)
        count += len(page)
    return count


async def _waiting(source: Side) -> AsyncIterator[Sequence[Row]]:
    """Instances that have not ended and do not run, held or not."""
    async for page in _pages(
        source, instance, instance.c.finished_us.is_(None), instance.c.state != "running"
    ):
        yield page


async def _copy_history(source: Side, target: Side, *, instances: Sequence[Row]) -> int:
    """The history of `instances` in its order, under numbers that the target gives."""
    partitions = {row["id"]: row["partition"] for row in instances}
    count = 0
    columns = [column for column in history.columns if column is not history.c.sequence]
    after = 0
    while True:
        page = await source.rows(
            select(history.c.sequence, *columns)
            .where(history.c.instance_id.in_(partitions), history.c.sequence > after)
            .order_by(history.c.sequence)
            .limit(_PAGE)
        )
        if not page:
            return count
        after = page[-1]["sequence"]
        rows = [
            {
                **{column.name: row[column.name] for column in columns},
                "partition": partitions[row["instance_id"]],
            }
            for row in page
        ]
        await target.insert(history, rows)
        count += len(rows)


async def _pages(side: Side, table: Table, *where: ColumnElement[bool]) -> AsyncIterator[Sequence[Row]]:
    """Every row of `table`, by its primary key."""
    keys = list(table.primary_key.columns)
    last: Row | None = None
    while True:
        statement = select(table).where(*where).order_by(*keys).limit(_PAGE)
        if last is not None:
            statement = statement.where(_behind(keys, last))
        page = await side.rows(statement)
        if page:
            yield page
        if len(page) < _PAGE:
            return
        last = page[-1]


def _behind(keys: Sequence[Any], last: Row) -> ColumnElement[bool]:
    """Rows after `last`. Written out, as not every server looks a comparison of rows up in an index."""
    return or_(
        *(
            and_(*(each == last[each.name] for each in keys[:place]), key > last[key.name])
            for place, key in enumerate(keys)
        )
    )
