"""The connections of one role, kept from one transaction to the next.

SQLAlchemy's own pool hands out a connection within a greenlet and resets it when it comes back, which costs
more than a short transaction itself. So what has been taken from it stays here, the last used first: there is
room for as many transactions at a time as the engine has connections.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

#: Any: a connection of asyncpg or asyncmy, which the dialect alone looks into.
DriverConnection: TypeAlias = Any


class Kept(NamedTuple):
    """One connection."""

    connection: AsyncConnection
    driver: DriverConnection
    #: Of the role when it was made.
    generation: int


class RoleConnections:
    """At most `size` connections of one engine."""

    def __init__(self, engine: AsyncEngine, *, size: int) -> None:
        self.engine = engine
        self._room = asyncio.Semaphore(size)
        self._idle: list[Kept] = []
        #: Raised by each loss of a connection: idle ones from before it are not tried any more.
        self._generation = 0
        self._is_closed = False

    async def take(self) -> Kept:
        """A connection that is not older than the newest loss of one; waits until there is room."""
        await self._room.acquire()
        try:
            while self._idle:
                kept = self._idle.pop()
                if kept.generation == self._generation:
                    return kept
                await _close(kept.connection)
            return await self._connect()
        except BaseException:
            self._room.release()
            raise

    async def _connect(self) -> Kept:
        generation = self._generation
        connection = await self.engine.connect()
        try:
            return Kept(connection, driver_of(connection), generation)
        except BaseException:
            await connection.close()
            raise

    def give_back(self, kept: Kept) -> None:
        """What `take` gave, with no transaction open."""
        self._idle.append(kept)
        self._room.release()

    async def drop(self, kept: Kept) -> None:
        """What `take` gave, which is not to be used again."""
        try:
            await _close(kept.connection)
        finally:
            self._room.release()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def lose(self) -> None:
        """A connection was lost: whatever became of it may have become of all."""
        self._generation += 1

    async def close(self) -> None:
        """Close what is idle; what is not is to be dropped by whoever has it."""
        self._is_closed = True
        while self._idle:
            await self._idle.pop().connection.close()
        await self.engine.dispose()


async def _close(connection: AsyncConnection) -> None:
    try:
        await connection.invalidate()
    finally:
        await connection.close()


def driver_of(connection: AsyncConnection) -> DriverConnection:
    """The connection of asyncpg or asyncmy below `connection`."""
    if connection.sync_connection is None:
        raise RuntimeError("the connection has not been made")
    return connection.sync_connection.connection.driver_connection
