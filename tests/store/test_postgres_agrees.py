"""PostgreSQL does the same as the in-memory store on any sequence of calls."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection
from support.servers import TestDatabase, fresh_database
from support.store_walk import STEPS, walk_alike

from ostinato.store.memory import MemoryStore
from ostinato.store.postgres.store import PostgresStore
from ostinato.testing.contracts.store_kit import ContractClock


class _ClockedStore(PostgresStore):
    """The server's time is that of the test."""

    async def server_now_us(self, connection: AsyncConnection) -> int:
        return self._clock.wall_us()


@pytest.fixture(scope="module")
def server() -> Iterator[TestDatabase]:
    with fresh_database("postgresql") as database:
        yield database


@pytest.mark.parametrize("seed", range(200, 204))
async def test_both_stores_answer_alike(server: TestDatabase, seed: int) -> None:
    server.clean()
    clock = ContractClock()
    store = _ClockedStore(server.server_url, clock=clock)
    assert await walk_alike(MemoryStore(clock), store, random.Random(seed)) == STEPS
