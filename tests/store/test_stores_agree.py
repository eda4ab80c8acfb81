"""The in-memory store and the others do the same on any sequence of calls: simulations rest on it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.store_walk import STEPS, walk_alike

from ostinato.store.memory import MemoryStore
from ostinato.store.sqlite.store import SqliteStore
from ostinato.testing.contracts.store_kit import ContractClock


@pytest.mark.parametrize("seed", range(6))
async def test_both_stores_answer_alike(tmp_path: Path, seed: int) -> None:
    clock = ContractClock()
    sqlite = SqliteStore(str(tmp_path / "a.db"), clock=clock)
    assert await walk_alike(MemoryStore(clock), sqlite, random.Random(seed)) == STEPS
