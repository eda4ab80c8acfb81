"""A server's database as one side of a copy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Select, Table
from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.clock import Clock
from ostinato.store.copying import Row, Side
from ostinato.store.server.administration import FaultReader, administering
from ostinato.store.server.migration import require_no_node
from ostinato.store.server.revision import require_schema
from ostinato.store.server.url import ServerUrl


class ServerSide:
    """One transaction; that of a target is committed where the copy came to its end."""

    def __init__(self, connection: AsyncConnection, shown: str) -> None:
        self.shown = shown
        self._connection = connection

    async def rows(self, statement: Select[Any]) -> Sequence[Row]:
        found = await self._connection.execute(statement)
        return [dict(row) for row in found.mappings()]

    async def insert(self, table: Table, rows: Sequence[Row]) -> None:
        await self._connection.execute(table.insert(), [dict(row) for row in rows])


@asynccontextmanager
async def server_side(url: ServerUrl, *, fault: FaultReader, clock: Clock) -> AsyncIterator[Side]:
    """The database of `url`, with the newest schema and without a scheduler; nobody migrates it meanwhile.

    Raises ``SCHEMA_VERSION``, ``NODE_ALREADY_RUNNING`` and what ``administering`` does.
    """
    async with administering(
        url, fault=fault, operation="looking for schedulers", is_change=False
    ) as connection:
        await require_schema(connection, subject=url.shown)
        await require_no_node(connection, clock=clock, subject=url.shown)
    async with administering(
        url, fault=fault, operation="copying", is_change=True, isolation="REPEATABLE READ"
    ) as connection:
        yield ServerSide(connection, url.shown)
