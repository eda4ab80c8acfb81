"""A SQLite file as one side of a copy."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, Table, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from ostinato.core.instants import SECOND
from ostinato.errors import UnavailableError
from ostinato.store.copying import Row, Side
from ostinato.store.sqlite.database import connect_writer
from ostinato.store.sqlite.failures import translate
from ostinato.store.sqlite.lock_file import LockFile

Result = TypeVar("Result")

_DEADLINE_US = 10 * SECOND


class SqliteSide:
    """One transaction, which keeps every other writer away until it ends."""

    def __init__(self, connection: Connection, path: str) -> None:
        self.shown = path
        self._connection = connection

    async def rows(self, statement: Select[Any]) -> Sequence[Row]:
        return await self._run(lambda: [dict(row) for row in self._connection.execute(statement).mappings()])

    async def insert(self, table: Table, rows: Sequence[Row]) -> None:
        await self._run(lambda: self._connection.execute(table.insert(), [dict(row) for row in rows]))

    async def _run(self, work: Callable[[], Result]) -> Result:
        try:
            return await asyncio.to_thread(work)
        except DBAPIError as error:
            if isinstance(error.orig, sqlite3.Error):
                raise translate(error.orig, path=self.shown, operation="copying") from error
            raise


@asynccontextmanager
async def sqlite_side(path: str, *, makes_database: bool, partition_count: int) -> AsyncIterator[Side]:
    """The file at `path`, migrated as by opening it, locked against schedulers and other writers.

    Raises ``DATABASE_UNAVAILABLE`` where there is none and it is not to be made, ``NODE_ALREADY_RUNNING``,
    ``DATABASE_UNAVAILABLE`` where another copy is under way, ``SCHEMA_VERSION`` and what opening a database
    does.
    """
    if not makes_database:
        _require_file(path)
    lock = LockFile(path, purpose="copy")
    lock.acquire()
    try:
        connection = await asyncio.to_thread(
            connect_writer, path, deadline_us=_DEADLINE_US, partition_count=partition_count
        )
        try:
            engine = create_engine(
                "sqlite://", creator=lambda: connection, poolclass=StaticPool, pool_reset_on_return=None
            )
            with engine.connect() as session:
                # After connecting, which rolls back.
                connection.execute("BEGIN IMMEDIATE")
                yield SqliteSide(session, path)
                connection.commit()
        finally:
            connection.close()
    finally:
        lock.release()


def _require_file(path: str) -> None:
    if not os.path.exists(path):
        raise UnavailableError("DATABASE_UNAVAILABLE", f"there is no database {path}", subject=path)
