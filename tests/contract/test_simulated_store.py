"""The contract of stores on the simulated database, with nothing wrong with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest
from support.simulated_database import Client, TimedLoop

from ostinato.simulation.database import DatabaseServer
from ostinato.simulation.history import History
from ostinato.store.protocol import Store
from ostinato.testing.contracts.store import StoreContract
from ostinato.testing.contracts.store_kit import ContractClock
from ostinato.testing.contracts.store_ownership import ManyNodesContract


@pytest.fixture
def clock() -> ContractClock:
    return ContractClock()


class TestSimulatedStore(StoreContract, ManyNodesContract):
    @pytest.fixture
    async def store(self, clock: ContractClock) -> AsyncIterator[Store]:
        loop = TimedLoop(asyncio.get_running_loop())
        history = History(loop.now_us)
        server = DatabaseServer(loop, history, rng=Random(1), clock=clock)
        store = server.store_for(Client("node"), clock)
        await store.open()
        yield store
        await store.close()
