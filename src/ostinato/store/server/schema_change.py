"""The mark of a change of the schema that has not ended, on servers that cannot undo half of one.

MySQL and MariaDB commit at every change of a table. Killed between two of them, an upgrade or downgrade
leaves tables that no revision has, under a revision that says nothing of it. So the change is written down
before its first step, and the mark goes in the transaction that writes the last revision. PostgreSQL needs
none.
"""

from __future__ import annotations

from sqlalchemy import inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.errors import UserError
from ostinato.store.migrations import SERVER_CHANGE_TABLE
from ostinato.store.schema_facts import SchemaChange

_CREATE = f"""CREATE TABLE IF NOT EXISTS {SERVER_CHANGE_TABLE}
(from_revision VARCHAR(32) NOT NULL, to_revision VARCHAR(32) NOT NULL) ENGINE=InnoDB"""


async def stored_change(connection: AsyncConnection) -> SchemaChange | None:
    """The change that has not ended; a table without a row was made for one that never began."""
    if not await _has_table(connection):
        return None
    found = await connection.execute(text(f"SELECT from_revision, to_revision FROM {SERVER_CHANGE_TABLE}"))
    row = found.first()
    return None if row is None else SchemaChange(from_revision=row[0], to_revision=row[1])


async def begin_change(connection: AsyncConnection, change: SchemaChange) -> None:
    """Write `change` down. The row is committed by the first step, before that does anything."""
    if _needs_mark(connection):
        if not await _has_table(connection):
            await connection.execute(text(_CREATE))
        await connection.execute(text(f"DELETE FROM {SERVER_CHANGE_TABLE}"))
        await connection.execute(
            text(f"INSERT INTO {SERVER_CHANGE_TABLE} VALUES (:from_revision, :to_revision)"),
            {"from_revision": change.from_revision, "to_revision": change.to_revision},
        )


async def end_change(connection: AsyncConnection) -> None:
    """Remove the mark, together with what is not committed yet: the last revision."""
    if _needs_mark(connection) and await _has_table(connection):
        await connection.execute(text(f"DELETE FROM {SERVER_CHANGE_TABLE}"))
        await connection.execute(text(f"DROP TABLE {SERVER_CHANGE_TABLE}"))


def not_ended(change: SchemaChange, *, subject: str) -> UserError:
    """The schema is in the middle of `change`, which goes on or has broken off."""
    return UserError(
        "SCHEMA_VERSION",
        f"{subject} is in the middle of a schema {change}",
        subject=subject,
        field="database",
        hint=f"wait for its end, or where it has broken off, repeat it: {change.command}",
    )


def _needs_mark(connection: AsyncConnection) -> bool:
    return connection.dialect.name != "postgresql"


async def _has_table(connection: AsyncConnection) -> bool:
    return await connection.run_sync(lambda each: inspect(each).has_table(SERVER_CHANGE_TABLE))
