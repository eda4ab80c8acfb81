"""A PostgreSQL database for a module and a store on it for each test; modules on others name their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from support.servers import TestDatabase, fresh_database

from ostinato.clock import SystemClock
from ostinato.store.postgres.store import PostgresStore


@pytest.fixture(scope="module")
def server() -> Iterator[TestDatabase]:
    with fresh_database("postgresql") as database:
        yield database


@pytest.fixture
async def store(server: TestDatabase) -> AsyncIterator[PostgresStore]:
    server.clean()
    store = PostgresStore(server.server_url, clock=SystemClock())
    await store.open()
    yield store
    await store.close()
