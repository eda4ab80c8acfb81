"""The schema of a SQLite file, changed by command as it otherwise is by opening it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from sqlalchemy import Connection

from ostinato.core.instants import SECOND
from ostinato.errors import OstinatoError, UnavailableError, UserError
from ostinato.store.schema_facts import NO_REVISION, SchemaFacts, require_target
from ostinato.store.sqlite.database import change_schema, connect, stored_revision, why_unusable
from ostinato.store.sqlite.failures import translate, unusable
from ostinato.store.sqlite.lock_file import LockFile

_DEADLINE_US = 10 * SECOND


class SqliteAdministrator:
    """One file. A node that runs keeps it from being downgraded, by the lock that it holds."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def facts(self) -> SchemaFacts:
        self._require_file()
        return await asyncio.to_thread(self._look)

    async def upgrade(self, revision: str, *, partition_count: int) -> SchemaFacts:
        def bring(session: Connection, stored: str) -> None:
            from ostinato.store.migrations.run import upgrade

            require_target(revision, stored=stored, is_upgrade=True)
            upgrade(session, partition_count=partition_count, revision=revision)

        return await asyncio.to_thread(self._change, bring, "upgrading the schema")

    async def downgrade(self, revision: str) -> SchemaFacts:
        def bring(session: Connection, stored: str) -> None:
            from ostinato.store.migrations.run import downgrade

            require_target(revision, stored=stored, is_upgrade=False)
            downgrade(session, revision=revision)

        self._require_file()
        if revision == NO_REVISION:
            raise UserError(
                "INVALID_VALUE",
                "a SQLite file always has a schema",
                subject=self._path,
                field="to",
                hint="remove the file to lose all that it holds",
            )
        lock = LockFile(self._path, purpose="downgrade")
        lock.acquire()
        try:
            return await asyncio.to_thread(self._change, bring, "downgrading the schema")
        finally:
            lock.release()

    def _look(self) -> SchemaFacts:
        with _translated(self._path, "reading the schema"), self._connected(read_only=True) as connection:
            revision = stored_revision(connection, self._path)
            if not revision:
                return SchemaFacts(database=self._path, revision=None)
            (count,) = connection.execute("SELECT count(*) FROM partition_owner").fetchone()
            return SchemaFacts(database=self._path, revision=revision, partitions=count)

    def _change(self, change: Callable[[Connection, str], None], operation: str) -> SchemaFacts:
        why = why_unusable(self._path)
        if why:
            raise unusable(self._path, why)
        with _translated(self._path, operation), self._connected(read_only=False) as connection:
            # Refuses a file that is not ours before anything is written into it.
            stored_revision(connection, self._path)
            connection.execute("PRAGMA synchronous = FULL")
            change_schema(connection, self._path, change=change)
        return self._look()

    def _connected(self, *, read_only: bool) -> closing[sqlite3.Connection]:
        return closing(connect(self._path, deadline_us=_DEADLINE_US, read_only=read_only))

    def _require_file(self) -> None:
        """Connecting would make one, and a mistyped path look like an empty database."""
        if not os.path.exists(self._path):
            raise UnavailableError(
                "DATABASE_UNAVAILABLE",
                f"there is no database {self._path}",
                subject=self._path,
                field="database",
                hint="name the one that is meant, or make one with ostinato db upgrade",
            )


@contextmanager
def _translated(path: str, operation: str) -> Iterator[None]:
    """What SQLite raises within becomes an error of ours, with the field that names the database."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path=path, operation=operation, is_opening=True) from error
    except OstinatoError as error:
        error.field = error.field or "database"
        raise
