"""A database of each kind there is: a SQLite file, PostgreSQL, MariaDB, and MySQL where a server is named.

@pytest.fixture(scope="module", params=STORE_KINDS)
def place(request, tmp_path_factory) -> Iterator[Place]:
    with place_of(request.param, tmp_path_factory.mktemp("store")) as place:
        yield place

async def test_x(place):
    place.clean()
    async with place.opened() as store, RealCluster(store) as cluster:
        ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias

from support.cluster import Cluster
from support.servers import SERVER_KINDS, ServerKind, TestDatabase, fresh_database

from ostinato.clock import SystemClock
from ostinato.scheduler.config import NodeConfig
from ostinato.store.from_url import open_store_from_url
from ostinato.store.protocol import Store

StoreKind: TypeAlias = Literal["sqlite"] | ServerKind

STORE_KINDS: tuple[StoreKind, ...] = ("sqlite", *SERVER_KINDS)


class Place:
    """One database, for any number of stores."""

    def __init__(self, kind: StoreKind, *, folder: Path, server: TestDatabase | None = None) -> None:
        self.kind = kind
        self.server = server
        self._folder = folder
        self._file_number = 0

    @property
    def url(self) -> str:
        """As users write it."""
        if self.server is not None:
            return self.server.url
        return f"sqlite:///{self._folder}/store-{self._file_number}.db"

    def clean(self) -> None:
        """No rows, and nobody else's session; of SQLite another file."""
        if self.server is not None:
            self.server.clean()
        else:
            self._file_number += 1

    @asynccontextmanager
    async def opened(self, url: str = "") -> AsyncIterator[Store]:
        """A store as a process of its own would have it; `url` leads to the database another way."""
        store = open_store_from_url(url or self.url, clock=SystemClock())
        try:
            await store.open()
            yield store
        finally:
            await store.close()


@contextmanager
def place_of(kind: StoreKind, folder: Path) -> Iterator[Place]:
    """An empty database, dropped at the end."""
    if kind == "sqlite":
        yield Place(kind, folder=folder)
        return
    with fresh_database(kind) as server:
        yield Place(kind, folder=folder, server=server)


class RealCluster(Cluster):
    """One node over a real database, on the machine's clock; `start` it."""

    def __init__(
        self, place: Place, *, url: str = "", seed: int = 1, config: NodeConfig | None = None
    ) -> None:
        """`url` leads to the database another way."""
        # One for both: a monotonic time of another one would mean nothing.
        clock = SystemClock()
        store = open_store_from_url(url or place.url, clock=clock)
        super().__init__(seed=seed, config=config, store=store, clock=clock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
