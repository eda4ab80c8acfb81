"""An app's connection: the gateway its URL names; definitions are applied before the first submission."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random, SystemRandom
from typing import TypeAlias

from ostinato.clock import Clock
from ostinato.control.pressure import PressureGate
from ostinato.control.submit import SubmitRequest
from ostinato.core.definition import TaskDefinition
from ostinato.sdk.client import Client
from ostinato.sdk.gateway.address import SaidUrl, naming_source, require_database, said_url
from ostinato.sdk.gateway.database import DatabaseGateway
from ostinato.sdk.gateway.protocol import Gateway
from ostinato.sdk.transaction.submit import submit_within, submit_within_async
from ostinato.settings import load_pressure
from ostinato.store.batches import ApplyReceipt, SubmitReceipt
from ostinato.store.protocol import Store

#: Makes an open store on the running loop. The clock is the one that its waits are told in.
OpenStore: TypeAlias = Callable[[Clock], Awaitable[Store]]

#: Of a store that was handed in and has no URL.
_UNNAMED = SaidUrl("", "")


class Connection:
    """Submits and applies for one app. Everything with a `Gateway` argument runs on the client's loop."""

    def __init__(self, url: str | None, definitions: Callable[[], list[TaskDefinition]], *, by: str) -> None:
        """`by` is the app's name, which the history tells of its requests."""
        self._url = url
        self._definitions = definitions
        self._by = by
        self._rng: Random = SystemRandom()
        #: What has been applied by this process; a task declared later is applied before the next submission.
        self._applied: list[TaskDefinition] = []
        #: One entry for each call under way that may make the database.
        self._makers: list[object] = []
        self.client: Client[Gateway] = Client(self._open)

    def use_store(self, open_store: OpenStore, *, clock: Clock | None) -> None:
        """Ask this store from now on instead of what the URL names."""
        self.client.close()

        async def opened(used: Clock) -> Gateway:
            return self._on_store(await open_store(used), used)

        self.client = Client(opened, clock=clock)
        self._applied = []

    def use_client(self, client: Client[Gateway]) -> Client[Gateway]:
        """Call through `client` from now on, and apply anew; returns the client until now, still open."""
        before, self.client = self.client, client
        self._applied = []
        return before

    @contextmanager
    def making_database(self) -> Iterator[None]:
        """While this holds, a database file that does not exist is made instead of refused."""
        maker = object()
        self._makers.append(maker)
        try:
            yield
        finally:
            self._makers.remove(maker)

    async def apply(self, gateway: Gateway) -> list[ApplyReceipt]:
        """Store the app's definitions; unchanged ones make no new version (C041)."""
        definitions = self._definitions()
        receipts = await gateway.apply(definitions)
        self._applied = definitions
        return receipts

    async def submit(self, gateway: Gateway, requests: Sequence[SubmitRequest]) -> list[SubmitReceipt]:
        """Submit, after the definitions have been applied once."""
        if self._applied != self._definitions():
            await self.apply(gateway)
        return await gateway.submit(requests)

    def submit_within(self, connection: object, requests: Sequence[SubmitRequest]) -> list[SubmitReceipt]:
        """Submit in the transaction of the user's own `connection`, in this thread; applies nothing."""
        return submit_within(connection, requests, clock=self.client.clock, rng=self._rng)

    async def submit_within_async(
        self, connection: object, requests: Sequence[SubmitRequest]
    ) -> list[SubmitReceipt]:
        """As `submit_within`, on the running loop."""
        return await submit_within_async(connection, requests, clock=self.client.clock, rng=self._rng)

    async def _open(self, clock: Clock) -> Gateway:
        said = said_url(self._url)
        if not said.is_http:
            return await self._on_database(said, clock)
        # In a thread, as what follows: the libraries and certificates take a while to load.
        return await asyncio.to_thread(_http_gateway, said, clock=clock, rng=self._rng, by=self._by)

    async def _on_database(self, said: SaidUrl, clock: Clock) -> Gateway:
        if not self._makers:
            require_database(said)
        limits = load_pressure(os.environ)
        with naming_source(said):
            store = await asyncio.to_thread(_store, said, clock=clock)
            try:
                await store.open()
            except BaseException:
                await store.close()
                raise
        pressure = PressureGate(store, limits, clock=clock) if limits.is_set else None
        return self._on_store(store, clock, said=said, pressure=pressure)

    def _on_store(
        self, store: Store, clock: Clock, *, said: SaidUrl = _UNNAMED, pressure: PressureGate | None = None
    ) -> Gateway:
        return DatabaseGateway(store, said, clock=clock, rng=self._rng, by=self._by, pressure=pressure)


# Imported only here: the SDK stays light in a process that never submits.


def _http_gateway(said: SaidUrl, *, clock: Clock, rng: Random, by: str) -> Gateway:
    from ostinato.sdk.gateway.http import HttpGateway
    from ostinato.sdk.gateway.transport import Transport

    return HttpGateway(Transport(said, clock=clock), rng=rng, by=by)


def _store(said: SaidUrl, *, clock: Clock) -> Store:
    from ostinato.store.from_url import open_store_from_url

    return open_store_from_url(said.value, clock=clock)
