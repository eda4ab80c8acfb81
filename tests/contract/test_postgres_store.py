"""The contract of stores on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection
from support.servers import TestDatabase, fresh_database

from ostinato.store.postgres.store import PostgresStore
from ostinato.store.protocol import Store
from ostinato.testing.contracts.store import StoreContract
from ostinato.testing.contracts.store_kit import ContractClock
from ostinato.testing.contracts.store_ownership import ManyNodesContract


class _ClockedStore(PostgresStore):
    """The server's time is that of the test."""

    async def server_now_us(self, connection: AsyncConnection) -> int:
        return self._clock.wall_us()


@pytest.fixture(scope="module")
def server() -> Iterator[TestDatabase]:
    with fresh_database("postgresql") as database:
        yield database


@pytest.fixture
def clock() -> ContractClock:
    return ContractClock()


class TestPostgresStore(StoreContract, ManyNodesContract):
    @pytest.fixture
    async def store(self, clock: ContractClock, server: TestDatabase) -> AsyncIterator[Store]:
        server.clean()
        store = _ClockedStore(server.server_url, clock=clock)
        await store.open()
        yield store
        await store.close()
