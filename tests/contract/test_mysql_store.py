"""The contract of stores on MariaDB, and on MySQL where the environment names a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection
from support.servers import SERVER_KINDS, TestDatabase, fresh_database

from ostinato.clock import Clock
from ostinato.store.mysql.store import MysqlStore
from ostinato.store.protocol import Store
from ostinato.store.server.url import ServerUrl
from ostinato.testing.contracts.store import StoreContract
from ostinato.testing.contracts.store_kit import ContractClock
from ostinato.testing.contracts.store_ownership import ManyNodesContract


class StoreOnContractClock(MysqlStore):
    """Its server's time is that of the test's clock, which stands still until it is moved."""

    def __init__(self, url: ServerUrl, clock: Clock) -> None:
        super().__init__(url, clock=clock)

    async def server_now_us(self, connection: AsyncConnection) -> int:
        return self._clock.wall_us()


@pytest.fixture(scope="module", params=[kind for kind in SERVER_KINDS if kind != "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    with fresh_database(request.param) as database:
        yield database


@pytest.fixture
def clock() -> ContractClock:
    return ContractClock()


class TestMysqlStore(StoreContract, ManyNodesContract):
    @pytest.fixture
    async def store(self, database: TestDatabase, clock: ContractClock) -> AsyncIterator[Store]:
        database.clean()
        store = StoreOnContractClock(database.server_url, clock)
        await store.open()
        yield store
        await store.close()
