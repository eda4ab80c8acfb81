"""An app's calls of the store: submit and apply, with the app's definitions applied once before the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ostinato.clock import Clock
from ostinato.control.apply import apply
from ostinato.control.submit import SubmitRequest, submit
from ostinato.core.definition import TaskDefinition
from ostinato.sdk.client import DatabaseClient, OpenStore, database_url, require_database
from ostinato.store.batches import ApplyReceipt, SubmitReceipt
from ostinato.store.protocol import Store


class Gateway:
    """Submits and applies for one app. Everything with a `Store` argument runs on the client's loop."""

    def __init__(self, url: str | None, definitions: Callable[[], list[TaskDefinition]]) -> None:
        self._url = url
        self._definitions = definitions
        #: What has been applied by this process; a task declared later is applied before the next submission.
        self._applied: list[TaskDefinition] = []
        #: One entry for each call under way that may make the database.
        self._makers: list[object] = []
        self.client = DatabaseClient(self._open)

    def use_store(self, open_store: OpenStore, *, clock: Clock | None) -> None:
        """Ask this store from now on instead of the one that the URL names."""
        self.client.close()
        self.client = DatabaseClient(open_store, clock=clock)
        self._applied = []

    @contextmanager
    def making_database(self) -> Iterator[None]:
        """While this holds, a database file that does not exist is made instead of refused."""
        maker = object()
        self._makers.append(maker)
        try:
            yield
        finally:
            self._makers.remove(maker)

    async def _open(self, clock: Clock) -> Store:
        url = database_url(self._url)
        if not self._makers:
            require_database(self._url)
        # Only here, so that importing the SDK stays light in a process that never submits.
        from ostinato.store.from_url import open_store_from_url

        store = open_store_from_url(url, clock=clock)
        try:
            await store.open()
        except BaseException:
            await store.close()
            raise
        return store

    async def apply(self, store: Store) -> list[ApplyReceipt]:
        """Store the app's definitions; unchanged ones make no new version (C041)."""
        definitions = self._definitions()
        receipts = await apply(store, definitions, now_us=await store.now_us())
        self._applied = definitions
        return receipts

    async def submit(self, store: Store, requests: Sequence[SubmitRequest]) -> list[SubmitReceipt]:
        """Submit, after the definitions have been applied once."""
        if self._applied != self._definitions():
            await self.apply(store)
        return await submit(store, requests, now_us=await store.now_us(), rng=self.client.rng)
