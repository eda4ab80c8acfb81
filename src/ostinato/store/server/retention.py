"""Deletes what is over and old, a batch at a time, without waiting for anybody.

Rows that somebody else has locked are passed over (``SKIP LOCKED``) and met again in a later batch. So a
retention that is slow never stands in a queue of locks, and several may run at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Column, ColumnElement, and_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.core.states import State
from ostinato.store.schema import history, idempotency_key, instance, output, request
from ostinato.store.server.dialect_sql import delete_rows, forced, is_mysql, looked_up, rows_of

_KEY = (idempotency_key.c.namespace, idempotency_key.c.task, idempotency_key.c.key)


async def delete_finished(
    connection: AsyncConnection,
    *,
    success_before_us: int,
    other_before_us: int,
    keys_before_us: int,
    limit: int,
) -> int:
    """One batch of retention. Answered requests and expired keys go in the same number per call."""
    await _delete_requests(connection, other_before_us, limit=limit)
    await _delete_keys(connection, keys_before_us, limit=limit)
    old: list[str] = []
    for state in (State.SUCCESS, State.FAILED, State.SKIPPED, State.CANCELLED):
        before_us = success_before_us if state is State.SUCCESS else other_before_us
        if len(old) < limit:
            old += await _finished(connection, state, before_us=before_us, limit=limit - len(old))
    ids = [(identifier,) for identifier in sorted(old)]
    await delete_rows(connection, (history.c.instance_id,), values=ids, index="history_instance")
    await delete_rows(connection, (output.c.instance_id,), values=ids)
    await delete_rows(connection, (instance.c.id,), values=ids)
    return len(old)


async def _finished(
    connection: AsyncConnection, state: State, *, before_us: int, limit: int
) -> Sequence[str]:
    """Ids of the first to have finished before, locked."""
    condition = and_(instance.c.state == state.value, instance.c.finished_us < before_us)
    order = _Order(instance.c.finished_us, "instance_finished")
    return [row[0] for row in await _free(connection, (instance.c.id,), condition, order=order, limit=limit)]


async def _delete_requests(connection: AsyncConnection, before_us: int, *, limit: int) -> None:
    order = _Order(request.c.answered_us, "request_answered")
    condition = request.c.answered_us < before_us
    rows = await _free(connection, (request.c.id,), condition, order=order, limit=limit)
    await delete_rows(connection, (request.c.id,), values=rows)


async def _delete_keys(connection: AsyncConnection, before_us: int, *, limit: int) -> None:
    order = _Order(idempotency_key.c.expires_us, "idempotency_key_expiry")
    rows = await _free(connection, _KEY, idempotency_key.c.expires_us <= before_us, order=order, limit=limit)
    await delete_rows(connection, _KEY, values=rows)


class _Order(NamedTuple):
    """What rows are read by, and the index that has it."""

    column: Column[Any]
    index_name: str


async def _free(
    connection: AsyncConnection,
    key: Sequence[Column[Any]],
    condition: ColumnElement[bool],
    *,
    order: _Order,
    limit: int,
) -> list[tuple[str, ...]]:
    """Keys of up to `limit` rows of `condition`, in order, locked; those that somebody else has are left out.

    MySQL and MariaDB lock the row behind a range as well, which is somebody's who would wait for the end of
    this. So the rows are found without a lock, and then each is locked alone.
    """
    table = key[0].table
    found = select(*key).where(condition).order_by(order.column)
    if not is_mysql(connection):
        rows = await connection.execute(found.limit(limit).with_for_update(skip_locked=True))
        return [tuple(row) for row in rows]
    found = forced(found, table, index=order.index_name).limit(limit)
    free: list[tuple[str, ...]] = []
    seen_count = 0
    while len(free) < limit:
        seen = [tuple(row) for row in await connection.execute(found.offset(seen_count))]
        seen_count += len(seen)
        if not seen:
            break
        wanted = rows_of(connection, key, rows=seen)
        is_wanted = and_(*(column == wanted.c[column.name] for column in key))
        locking = looked_up(select(*key).select_from(wanted.join(table, is_wanted)), table).where(condition)
        # Named, since MySQL takes the table of keys for one more to be locked, and refuses that.
        locking = locking.with_for_update(of=table, skip_locked=True)
        free += [tuple(row) for row in await connection.execute(locking)]
    return free
