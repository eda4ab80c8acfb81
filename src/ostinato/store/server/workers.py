"""Rows of workers as the nodes know them, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.store.batches import WorkerRow
from ostinato.store.rules import require_storable
from ostinato.store.schema import node, worker
from ostinato.store.server.dialect_sql import chunks, delete_rows, looked_up, rows_of, upsert
from ostinato.store.server.rows import Columns, Value

_COLUMNS = (
    worker.c.worker_id,
    worker.c.node_id,
    worker.c.worker_name,
    worker.c.state,
    worker.c.running_count,
    worker.c.protocol,
    worker.c.connected_us,
    worker.c.seen_us,
    worker.c.facts,
)

_KEY = (worker.c.worker_id, worker.c.node_id)


class _Facts(msgspec.Struct):
    """What of a row is only shown."""

    labels: dict[str, str] = {}
    capacity: dict[str, int] = {}
    tasks: list[str] = []
    executors: list[str] = []
    problems: list[str] = []


_decode_facts = msgspec.json.Decoder(_Facts).decode


async def record_workers(
    connection: AsyncConnection, rows: Sequence[WorkerRow], *, gone_before_us: int
) -> None:
    """Upsert `rows`; those of nodes that are not there are ``gone``, and old ones of these are deleted.

    Raises ``INVALID_VALUE`` for a row that does not fit; then nothing is written.
    """
    for row in rows:
        require_storable(row)
    values = {(row.worker_id, row.node_id): _values(row) for row in rows}
    if values:
        await connection.execute(upsert(connection, worker), [values[key] for key in sorted(values)])
    await _end_abandoned(connection, gone_before_us=gone_before_us)


async def _end_abandoned(connection: AsyncConnection, *, gone_before_us: int) -> None:
    """Every node does this for all: what another is at is passed over."""
    abandoned = and_(worker.c.state != "gone", worker.c.node_id.not_in(select(node.c.id)))
    ended = [row | {"state": "gone"} for row in await _locked(connection, abandoned)]
    if ended:
        await connection.execute(upsert(connection, worker, only=("state",)), ended)
    old = await _locked(connection, and_(worker.c.state == "gone", worker.c.seen_us < gone_before_us))
    await delete_rows(connection, _KEY, values=[(row["worker_id"], row["node_id"]) for row in old])


async def _locked(connection: AsyncConnection, condition: ColumnElement[bool]) -> list[dict[str, Any]]:
    """Rows that meet `condition`, locked; nothing is locked where there are none, as is usual."""
    found: list[dict[str, Any]] = []
    seen = [tuple(row) for row in await connection.execute(select(*_KEY).where(condition).order_by(*_KEY))]
    for names in chunks(seen):
        wanted = rows_of(connection, _KEY, rows=names)
        is_wanted = and_(*(column == wanted.c[column.name] for column in _KEY))
        statement = looked_up(select(*_COLUMNS).select_from(wanted.join(worker, is_wanted)), worker)
        rows = await connection.execute(
            statement.where(condition).with_for_update(of=worker, skip_locked=True)
        )
        found += [dict(row) for row in rows.mappings()]
    return found


async def workers(connection: AsyncConnection) -> list[WorkerRow]:
    """Every recorded worker, by (name, id, node)."""
    order = (worker.c.worker_name, worker.c.worker_id, worker.c.node_id)
    return [_worker_row(row) for row in await connection.execute(select(*_COLUMNS).order_by(*order))]


def _values(row: WorkerRow) -> dict[str, Value]:
    facts = _Facts(row.labels, row.capacity, row.tasks, row.executors, row.problems)
    return {
        "worker_id": row.worker_id,
        "node_id": row.node_id,
        "worker_name": row.worker_name,
        "state": row.state,
        "running_count": row.running_count,
        "protocol": row.protocol,
        "connected_us": row.connected_us,
        "seen_us": row.seen_us,
        "facts": msgspec.json.encode(facts),
    }


def _worker_row(row: Columns) -> WorkerRow:
    facts = _decode_facts(row[8])
    return WorkerRow(
        worker_id=row[0],
        node_id=row[1],
        worker_name=row[2],
        state=row[3],
        running_count=row[4],
        protocol=row[5],
        connected_us=row[6],
        seen_us=row[7],
        labels=facts.labels,
        capacity=facts.capacity,
        tasks=facts.tasks,
        executors=facts.executors,
        problems=facts.problems,
    )
