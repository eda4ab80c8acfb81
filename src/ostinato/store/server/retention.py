"""Deletes what is over and old, a batch at a time, without waiting for anybody.

Rows that somebody else has locked are passed over (``SKIP LOCKED``) and met again in a later batch. So a
retention that is slow never stands in a queue of locks, and several may run at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.core.states import State
from ostinato.store.schema import history, idempotency_key, instance, output, request
from ostinato.store.server.dialect_sql import delete_rows, forced

_KEY = (idempotency_key.c.namespace, idempotency_key.c.task, idempotency_key.c.key)


async def delete_finished(
    connection: AsyncConnection,
    *,
    success_before_us: int,
    other_before_us: int,
    now_us: int,
    limit: int,
) -> int:
    """One batch of retention. Answered requests and expired keys go in the same number per call."""
    await _delete_requests(connection, other_before_us, limit=limit)
    await _delete_keys(connection, now_us, limit=limit)
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
    statement = (
        select(instance.c.id)
        .where(instance.c.state == state.value, instance.c.finished_us < before_us)
        .order_by(instance.c.finished_us)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return (await connection.scalars(forced(statement, instance, index="instance_finished"))).all()


async def _delete_requests(connection: AsyncConnection, before_us: int, *, limit: int) -> None:
    statement = (
        select(request.c.id)
        .where(request.c.answered_us < before_us)
        .order_by(request.c.answered_us)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    statement = forced(statement, request, index="request_answered")
    rows = await connection.execute(statement)
    await delete_rows(connection, (request.c.id,), values=[tuple(row) for row in rows])


async def _delete_keys(connection: AsyncConnection, now_us: int, *, limit: int) -> None:
    statement = (
        select(*_KEY)
        .where(idempotency_key.c.expires_us <= now_us)
        .order_by(idempotency_key.c.expires_us)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    statement = forced(statement, idempotency_key, index="idempotency_key_expiry")
    rows = await connection.execute(statement)
    await delete_rows(connection, _KEY, values=[tuple(row) for row in rows])
