"""A server's database as its administrator sees it: one connection without deadlines, one change at a time.

Migrations and copies may take long, and are started by people: what the stores have against stalls and for
throughput would be in their way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Literal, TypeAlias

from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from ostinato.core.instants import SECOND
from ostinato.errors import UnavailableError, UserError
from ostinato.store.migrations import SERVER_VERSION_TABLE
from ostinato.store.schema import metadata
from ostinato.store.server.faults import Fault, error_of
from ostinato.store.server.url import ServerUrl

#: What an error of the adapter's driver means; None for anything else.
FaultReader: TypeAlias = Callable[[BaseException], Fault | None]

#: A server that has said nothing for so long does not answer.
ANSWER_US = 10 * SECOND
#: How long a change waits for another one.
_LOCK_WAIT_US = 30 * SECOND
#: How long it waits for those who use a table. Everybody else queues behind it meanwhile, so it has to be
#: less than what makes a node lose its partitions.
_TABLE_WAIT_US = 2 * SECOND
#: Key of the advisory lock on PostgreSQL, whose locks belong to a database: the letters OSTINATO.
_LOCK_KEY = 0x4F5354494E41544F


@asynccontextmanager
async def administering(
    url: ServerUrl,
    *,
    fault: FaultReader,
    operation: str,
    is_change: bool,
    isolation: Literal["READ COMMITTED", "REPEATABLE READ"] = "READ COMMITTED",
) -> AsyncIterator[AsyncConnection]:
    """One transaction, committed at the end unless there was an error; a change excludes every other.

    Raises what ``faults.error_of`` says, and ``DATABASE_UNAVAILABLE`` where another change goes on for too
    long.
    """
    engine = create_async_engine(
        url.sqlalchemy_url(), connect_args=_arguments(url), poolclass=NullPool, isolation_level=isolation
    )
    try:
        async with engine.begin() as connection:
            if is_change:
                await _exclude_others(connection, url, fault)
            yield connection
    except Exception as error:
        found = fault(error)
        if found is None:
            raise
        raise error_of(found, operation=operation, subject=url.shown) from error
    finally:
        await engine.dispose()


def _arguments(url: ServerUrl) -> dict[str, object]:
    arguments = url.connect_arguments()
    seconds = ANSWER_US // SECOND
    if url.family == "mysql":
        return arguments | {"connect_timeout": seconds}
    # Unnamed, since behind a pooling proxy the names of statements are not ours alone.
    unnamed = {"prepared_statement_cache_size": 0, "prepared_statement_name_func": str}
    return arguments | unnamed | {"timeout": seconds}


async def _exclude_others(connection: AsyncConnection, url: ServerUrl, fault: FaultReader) -> None:
    seconds, table_seconds = _LOCK_WAIT_US // SECOND, _TABLE_WAIT_US // SECOND
    if url.family == "postgresql":
        await connection.execute(text(f"SET LOCAL lock_timeout = '{seconds}s'"))
        try:
            # Of the transaction, so that it also holds behind a proxy that pools transactions.
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
        except Exception as error:
            found = fault(error)
            if found is not None and found.counted_as == "lock_timeout":
                raise _under_way(url) from error
            raise
        await connection.execute(text(f"SET LOCAL lock_timeout = '{table_seconds}s'"))
        return
    # The default is a day.
    await connection.execute(text(f"SET SESSION lock_wait_timeout = {table_seconds}"))
    # Of the session, since no change of a schema leaves a transaction open. Names are the whole server's.
    name = f"ostinato:{sha256(url.database.encode()).hexdigest()[:32]}"
    taken = await connection.scalar(
        text("SELECT GET_LOCK(:name, :seconds)"), {"name": name, "seconds": seconds}
    )
    if taken != 1:
        raise _under_way(url)


def _under_way(url: ServerUrl) -> UnavailableError:
    return UnavailableError(
        "DATABASE_UNAVAILABLE",
        f"another upgrade, downgrade or copy of {url.shown} is under way",
        subject=url.shown,
        hint="wait for its end and look at ostinato db status",
    )


def require_ours_or_empty(connection: Connection, *, subject: str) -> None:
    """Raise ``DATABASE_UNUSABLE`` where a table has one of our names, and the database was never ours."""
    tables = set(inspect(connection).get_table_names())
    taken = sorted(tables & set(metadata.tables))
    if SERVER_VERSION_TABLE in tables or not taken:
        return
    raise UserError(
        "DATABASE_UNUSABLE",
        f"{subject} has tables of another program with the names of ours: {', '.join(taken)}",
        subject=subject,
        field="database",
        hint="give Ostinato a database of its own",
    )
