"""Distinct values of an index's first column, one seek each."""

from __future__ import annotations

from sqlalchemy import Column, Table, func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.store.server.dialect_sql import forced, is_mysql

#: Seeks of one statement; no deeper than a recursion has to be.
_SEEKS_MAX = 500


async def first_values(
    connection: AsyncConnection, column: Column[str], *, index: str, limit: int
) -> list[str]:
    """The first `limit` values of `column`, the first of `index`; the cost grows with them, not with rows."""
    if is_mysql(connection):
        # Its loose index scan; in a recursion it would go through all that lies behind each value.
        table = column.table
        assert isinstance(table, Table)
        distinct = forced(select(column).distinct(), table, index=index)
        return list((await connection.scalars(distinct.order_by(column).limit(limit))).all())
    found: list[str] = []
    while len(found) < limit:
        count = min(limit - len(found), _SEEKS_MAX)
        rows = await _next_values(connection, column, after=found[-1] if found else "", count=count)
        found += rows
        if len(rows) < count:
            break
    return found


async def _next_values(
    connection: AsyncConnection, column: Column[str], *, after: str, count: int
) -> list[str]:
    first = select(func.min(column).label("value"), literal(1).label("place")).where(column > after)
    found = first.cte("found", recursive=True)
    following = select(func.min(column)).where(column > found.c.value).correlate(found).scalar_subquery()
    found = found.union_all(
        select(following, found.c.place + 1).where(found.c.value.is_not(None), found.c.place < count)
    )
    statement = select(found.c.value).where(found.c.value.is_not(None)).order_by(found.c.place)
    return list((await connection.scalars(statement)).all())
