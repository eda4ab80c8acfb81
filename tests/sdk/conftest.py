"""An app over an in-memory store, closed after the test: straight into it, and over a real API."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random

import pytest
from prometheus_client import CollectorRegistry
from support.transaction_databases import Database, new_database
from support.transaction_ways import Way

from ostinato import App
from ostinato.clock import SystemClock
from ostinato.settings import Address
from ostinato.store.memory import MemoryStore

#: How an app reaches its scheduler.
WAYS = ("database", "http")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SystemClock())


@contextmanager
def served(store: MemoryStore, *, wait_us: int = 2_000_000) -> Iterator[str]:
    """The API over `store`, in a thread with a loop of its own; gives its address."""
    from ostinato.api.app import build_app
    from ostinato.api.server import ApiServer

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    api = build_app(store=store, clock=SystemClock(), rng=Random(1), wait_us=wait_us)
    server = ApiServer(
        Address("127.0.0.1", 0), readiness=lambda: {"ready": True}, registry=CollectorRegistry(), api=api
    )
    try:
        address = asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
        yield f"http://127.0.0.1:{address.port}"
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


@pytest.fixture
def make_app(store: MemoryStore) -> Iterator[Callable[[str], App]]:
    """Makes an app that reaches `store` in one of the `WAYS`."""

    async def opened(clock: object) -> MemoryStore:
        return store

    with ExitStack() as stack:

        def make(way: str) -> App:
            if way == "http":
                app = App("shop", stack.enter_context(served(store)))
            else:
                app = App("shop", "memory:")
                app.use_store(opened)
            stack.callback(app.close)
            return app

        yield make


@pytest.fixture(params=WAYS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """What programs of their own give as ``OSTINATO_URL``: a database that ``apply`` makes, or an API."""
    if request.param == "database":
        yield "sqlite:///shop.db"
        return
    with served(MemoryStore(SystemClock())) as address:
        yield address


@pytest.fixture(params=WAYS)
def app(request: pytest.FixtureRequest, make_app: Callable[[str], App]) -> App:
    return make_app(request.param)


@pytest.fixture
def shop() -> Iterator[App]:
    """An app whose scheduler is not there: what it does in a user's transaction needs none."""
    app = App("shop", "http://127.0.0.1:9")

    @app.task
    def notify(customer: int, text: str = "hello") -> bool:
        return True

    yield app
    app.close()


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Database]]:
    """Gives the session's database of a kind, made when it is first asked for."""
    made: dict[str, Database] = {}
    with ExitStack() as stack:

        def give(kind: str) -> Database:
            if kind not in made:
                made[kind] = stack.enter_context(new_database(kind, tmp_path_factory.mktemp(kind)))
            return made[kind]

        yield give


@pytest.fixture
def database(way: Way, databases: Callable[[str], Database], shop: App) -> Database:
    """The database that a way leads to, empty but for the tasks of `shop`."""
    found = databases(way.kind)
    found.clear()
    found.put_tasks(shop.definitions())
    return found
