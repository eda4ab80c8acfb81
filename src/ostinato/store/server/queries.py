"""What anyone reads and writes beside births and lists: instances by id, history, output, requests."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.core.model import HistoryRow, Instance, OutputChunk
from ostinato.store import schema
from ostinato.store.batches import Request, RequestAnswer
from ostinato.store.rules import require_storable
from ostinato.store.schema import instance, request
from ostinato.store.schema import output as output_table
from ostinato.store.server.dialect_sql import (
    behind,
    chunks,
    findable,
    forced,
    insert_absent,
    marked,
    owned,
)
from ostinato.store.server.retention import delete_finished
from ostinato.store.server.rows import HISTORY, WHOLE, columns_of, history_row, whole_instance

__all__ = [
    "add_requests",
    "answers",
    "append_output",
    "count_history",
    "delete_finished",
    "find_requests",
    "get_instances",
    "history",
    "output",
]

_WHOLE = select(*columns_of(WHOLE))
_OUTPUT = (
    output_table.c.instance_id,
    output_table.c.attempt,
    output_table.c.attempt_id,
    output_table.c.sequence,
    output_table.c.at_us,
    output_table.c.stream,
    output_table.c.text,
)
_REQUEST = (
    request.c.id,
    request.c.partition,
    request.c.kind,
    request.c.namespace,
    request.c.created_us,
    request.c.task,
    request.c.instance_id,
    request.c.body,
    request.c.by,
)

#: MySQL knows no OFFSET without LIMIT.
_EVERYTHING = 2**62


def _ids(ids: Sequence[str]) -> list[str]:
    """Each once, sorted, those left out that no row can have."""
    return sorted({identifier for identifier in ids if findable(identifier)})


async def get_instances(connection: AsyncConnection, ids: Sequence[str]) -> dict[str, Instance]:
    """Whole rows; missing ones are left out."""
    found: dict[str, Instance] = {}
    for chunk in chunks(_ids(ids)):
        rows = await connection.execute(_WHOLE.where(instance.c.id.in_(chunk)))
        found |= {row[0]: whole_instance(row) for row in rows}
    return found


# ── history, output ───────────────────────────────────────────────────────────────────────────────────


async def history(
    connection: AsyncConnection, instance_id: str, *, after: int, limit: int | None
) -> list[HistoryRow]:
    """Rows in the order written: at most `limit` behind the first `after`."""
    if not findable(instance_id):
        return []
    table = schema.history
    # What is passed over is passed over in the index.
    page = select(table.c.sequence).where(table.c.instance_id == instance_id).order_by(table.c.sequence)
    page = forced(page, table, index="history_instance")
    if limit is not None or after:
        page = page.limit(_EVERYTHING if limit is None else limit).offset(after)
    chosen = page.subquery("page")
    columns = [table.c[name] for name in HISTORY]
    rows = await connection.execute(
        select(*columns)
        .select_from(chosen.join(table, table.c.sequence == chosen.c.sequence))
        .order_by(table.c.sequence)
    )
    return [history_row(row) for row in rows]


async def count_history(connection: AsyncConnection, instance_id: str) -> int:
    """Rows of the history of an instance; 0 for one that is unknown."""
    if not findable(instance_id):
        return 0
    counted = select(func.count()).select_from(schema.history)
    return int(await connection.scalar(counted.where(schema.history.c.instance_id == instance_id)) or 0)


async def append_output(connection: AsyncConnection, pieces: Sequence[OutputChunk]) -> None:
    """Store output once; that of instances which have been deleted is dropped.

    The instances are locked against a deletion until the end, or their output would stay for ever.
    """
    there: set[str] = set()
    for chunk in chunks(_ids([piece.instance_id for piece in pieces])):
        living = select(instance.c.id).where(instance.c.id.in_(chunk)).order_by(instance.c.id)
        living = forced(living, instance, index="PRIMARY")
        there |= set(await connection.scalars(living.with_for_update(read=True, key_share=True)))
    rows = [
        {
            "instance_id": piece.instance_id,
            "attempt": piece.attempt,
            "sequence": piece.sequence,
            "attempt_id": piece.attempt_id,
            "at_us": piece.at_us,
            "stream": piece.stream,
            "text": piece.text,
        }
        for piece in sorted(pieces, key=_place)
        if piece.instance_id in there
    ]
    if rows:
        await connection.execute(insert_absent(connection, output_table), rows)


def _place(piece: OutputChunk) -> tuple[str, int, int, str]:
    return piece.instance_id, piece.attempt, piece.sequence, piece.attempt_id


async def output(
    connection: AsyncConnection, instance_id: str, *, after: tuple[int, int], limit: int
) -> list[OutputChunk]:
    """Output by (attempt, sequence), strictly after the given pair."""
    if not findable(instance_id):
        return []
    order = (output_table.c.attempt, output_table.c.sequence)
    rows = await connection.execute(
        select(*_OUTPUT)
        .where(output_table.c.instance_id == instance_id, behind(connection, order, values=after))
        .order_by(*order, output_table.c.attempt_id)
        .limit(limit)
    )
    return [
        OutputChunk(
            instance_id=row[0],
            attempt=row[1],
            attempt_id=row[2],
            sequence=row[3],
            at_us=row[4],
            stream=row[5],
            text=row[6],
        )
        for row in rows
    ]


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────


async def add_requests(connection: AsyncConnection, requests: Sequence[Request]) -> None:
    """Insert requests; a repeated id changes nothing. Raises ``INVALID_VALUE`` for one that does not fit."""
    rows = []
    for row in sorted(requests, key=lambda row: row.id):
        require_storable(row)
        rows.append({column.name: getattr(row, column.name) for column in _REQUEST})
    if rows:
        await connection.execute(insert_absent(connection, request), rows)


async def answers(connection: AsyncConnection, request_ids: Sequence[str]) -> dict[str, RequestAnswer]:
    """Answers given so far."""
    columns = (
        request.c.id,
        request.c.partition,
        request.c.code,
        request.c.message,
        request.c.answer_instance_id,
        request.c.answered_us,
    )
    found: dict[str, RequestAnswer] = {}
    for chunk in chunks(_ids(request_ids)):
        rows = await connection.execute(
            select(*columns).where(request.c.id.in_(chunk), request.c.code.is_not(None))
        )
        found |= {row[0]: RequestAnswer(*row) for row in rows}
    return found


async def find_requests(
    connection: AsyncConnection, partitions: Sequence[int] | None, *, limit: int
) -> list[Request]:
    """Unanswered requests, oldest first."""
    created_us, is_open = marked(
        connection, request.c.created_us, where=request.c.code.is_(None), generated="open_created_us"
    )
    statement = select(*_REQUEST).where(is_open, owned(request.c.partition, partitions))
    statement = forced(statement, request, index="request_open")
    rows = await connection.execute(statement.order_by(created_us, request.c.id).limit(limit))
    return [
        Request(
            id=row[0],
            partition=row[1],
            kind=row[2],
            namespace=row[3],
            created_us=row[4],
            task=row[5],
            instance_id=row[6],
            body=row[7],
            by=row[8],
        )
        for row in rows
    ]
