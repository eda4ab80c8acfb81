"""Ends sessions that keep a taker of partitions waiting: a frozen owner must not hold up its take-over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ostinato.clock import Clock
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.store.postgres.dialect import PostgresDialect
from ostinato.store.postgres.statements import statement
from ostinato.store.server.database import DriverConnection

#: How long one session may keep a taker waiting, and how often is looked who does.
_PATIENCE_US = SECOND
_LOOK_US = 250 * MILLISECOND


@asynccontextmanager
async def ending_blockers(
    driver: DriverConnection, dialect: PostgresDialect, *, clock: Clock
) -> AsyncIterator[None]:
    """While this lasts, whoever keeps the transaction of `driver` waiting for a second loses its session.

    Through a connection of its own: those of the pools may all be waiting for the same lock. Where that
    fails, the taker's lock time-out ends its wait, and it begins again.
    """
    process = await driver.fetchval("SELECT pg_backend_pid()")
    watch = asyncio.create_task(_end_blockers(process, dialect, clock=clock))
    try:
        yield
    except Exception as error:
        if watch.done() and not watch.cancelled() and (failure := watch.exception()) is not None:
            error.add_note(f"and who blocks it could not be ended: {failure}")
        raise
    finally:
        watch.cancel()
        await asyncio.wait((watch,))


async def _end_blockers(process: int, dialect: PostgresDialect, *, clock: Clock) -> None:
    await clock.sleep_until_us(clock.boot_us() + _LOOK_US)
    connection = await dialect.connect()
    try:
        #: When each of those that block now was seen first: another taker, let in by the end of the same
        #: frozen owner, has a second of its own.
        since_us: dict[int, int] = {}
        while True:
            now_us = clock.boot_us()
            found = await connection.fetch(statement("find_blockers"), process)
            since_us = {row["pid"]: since_us.get(row["pid"], now_us) for row in found}
            for blocker, first_us in since_us.items():
                if now_us - first_us >= _PATIENCE_US - _LOOK_US:
                    await connection.execute("SELECT pg_terminate_backend($1)", blocker)
            await clock.sleep_until_us(now_us + _LOOK_US)
    finally:
        connection.terminate()
