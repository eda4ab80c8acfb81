"""Whether a server's database has the schema of this version."""

from __future__ import annotations

from sqlalchemy import inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.errors import UserError
from ostinato.store.migrations import HEAD_REVISION, SERVER_VERSION_TABLE
from ostinato.store.server.schema_change import not_ended, stored_change

#: What brings a database up to date; with a database of its own in the settings it needs no more.
UPGRADE = "ostinato db upgrade"


async def stored_revision(connection: AsyncConnection) -> str | None:
    """Revision of the schema; None: there never was one; empty: its first upgrade has not ended."""
    if not await connection.run_sync(lambda each: inspect(each).has_table(SERVER_VERSION_TABLE)):
        return None
    return str(await connection.scalar(text(f"SELECT version_num FROM {SERVER_VERSION_TABLE}")) or "")


async def require_schema(connection: AsyncConnection, *, subject: str) -> None:
    """Raise ``SCHEMA_VERSION`` unless the database has exactly the schema of this version, whole.

    A server's database is not migrated by whoever comes first: many share it, and some may be of another
    version.
    """
    change = await stored_change(connection)
    if change is not None:
        raise not_ended(change, subject=subject)
    revision = await stored_revision(connection)
    if revision == HEAD_REVISION:
        return
    if revision and revision > HEAD_REVISION:
        raise too_new(revision, subject=subject)
    if revision is None:
        message = f"{subject} has no tables of Ostinato yet"
    elif not revision:
        message = f"{subject} has a schema that is not finished"
    else:
        message = f"{subject} has schema {revision}, and this version needs {HEAD_REVISION}"
    raise UserError("SCHEMA_VERSION", message, subject=subject, field="database", hint=f"run {UPGRADE}")


def too_new(revision: str, *, subject: str) -> UserError:
    """A newer version of Ostinato has made the database."""
    return UserError(
        "SCHEMA_VERSION",
        f"{subject} has schema {revision}, which this version does not know",
        subject=subject,
        field="database",
        hint="use the newer version of Ostinato that made it",
    )
