"""The contract of stores on PostgreSQL, reached directly and through a proxy that pools transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection
from support.pooling_proxy import PrivatePgbouncer
from support.servers import TestDatabase, fresh_database

from ostinato.store.postgres.store import PostgresStore
from ostinato.store.protocol import Store
from ostinato.store.server.url import read_server_url
from ostinato.testing.contracts.store import StoreContract
from ostinato.testing.contracts.store_commit import CommitContract
from ostinato.testing.contracts.store_fires import FireContract
from ostinato.testing.contracts.store_kit import ContractClock
from ostinato.testing.contracts.store_lists import RequestContract
from ostinato.testing.contracts.store_ownership import ManyNodesContract, OwnershipContract
from ostinato.testing.contracts.store_submit import SubmitContract
from ostinato.testing.contracts.store_tasks import DeletionContract, TaskContract
from ostinato.testing.contracts.store_work import WorkContract
from ostinato.testing.contracts.store_workers import WorkerContract


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


@pytest.fixture(scope="module")
def proxy(server: TestDatabase) -> Iterator[PrivatePgbouncer]:
    with PrivatePgbouncer(server.server_url) as proxy:
        yield proxy


class TestPostgresStoreBehindPgbouncer(
    OwnershipContract,
    ManyNodesContract,
    CommitContract,
    FireContract,
    WorkContract,
    SubmitContract,
    TaskContract,
    DeletionContract,
    RequestContract,
    WorkerContract,
):
    """All but the lists, which send what they send to a server."""

    @pytest.fixture
    async def store(
        self, clock: ContractClock, server: TestDatabase, proxy: PrivatePgbouncer
    ) -> AsyncIterator[Store]:
        server.clean()
        url = read_server_url(proxy.url_of(server.server_url.database))
        store = _ClockedStore(url, clock=clock)
        await store.open()
        yield store
        await store.close()
