"""An app over an in-memory store, closed after the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ostinato import App
from ostinato.clock import SystemClock
from ostinato.store.memory import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SystemClock())


@pytest.fixture
def app(store: MemoryStore) -> Iterator[App]:
    app = App("shop")

    async def opened(clock: object) -> MemoryStore:
        return store

    app.use_store(opened)
    yield app
    app.close()
