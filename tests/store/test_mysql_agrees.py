"""MariaDB and MySQL do the same as the in-memory store on any sequence of calls."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection
from support.servers import SERVER_KINDS, TestDatabase, fresh_database
from support.store_walk import STEPS, walk_alike

from ostinato.store.memory import MemoryStore
from ostinato.store.mysql.store import MysqlStore
from ostinato.testing.contracts.store_kit import ContractClock


class StoreOnContractClock(MysqlStore):
    """Its server's time is that of the test's clock."""

    async def server_now_us(self, connection: AsyncConnection) -> int:
        return self._clock.wall_us()


@pytest.fixture(scope="module", params=[kind for kind in SERVER_KINDS if kind != "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    with fresh_database(request.param) as database:
        yield database


@pytest.mark.parametrize("seed", range(100, 102))
async def test_both_stores_answer_alike(database: TestDatabase, seed: int) -> None:
    database.clean()
    clock = ContractClock()
    store = StoreOnContractClock(database.server_url, clock=clock)
    assert await walk_alike(MemoryStore(clock), store, random.Random(seed)) == STEPS
