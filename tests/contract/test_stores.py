"""The contract of stores, on each adapter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ostinato.store.memory import MemoryStore
from ostinato.store.protocol import Store
from ostinato.store.sqlite.store import SqliteStore
from ostinato.testing.contracts.store import StoreContract
from ostinato.testing.contracts.store_kit import ContractClock
from ostinato.testing.contracts.store_ownership import ManyNodesContract


@pytest.fixture
def clock() -> ContractClock:
    return ContractClock()


class TestMemoryStore(StoreContract, ManyNodesContract):
    @pytest.fixture
    async def store(self, clock: ContractClock) -> AsyncIterator[Store]:
        store = MemoryStore(clock)
        await store.open()
        yield store
        await store.close()


class TestSqliteStore(StoreContract):
    @pytest.fixture
    async def store(self, clock: ContractClock, tmp_path: Path) -> AsyncIterator[Store]:
        store = SqliteStore(str(tmp_path / "contract.db"), clock=clock)
        await store.open()
        yield store
        await store.close()
