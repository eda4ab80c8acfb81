"""Hints of changes on PostgreSQL: told by NOTIFY, heard again after any loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from random import Random

import msgspec
import pytest
from support.postgres_wire import outside
from support.proxy import Proxy
from support.servers import TestDatabase, fresh_database

from ostinato.clock import SystemClock
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.store.batches import NodeRow, Submission
from ostinato.store.changes import ChangeSignal
from ostinato.store.hints import Hints, named
from ostinato.store.postgres.changes import CHECK_US, Listener
from ostinato.store.postgres.dialect import PostgresDialect
from ostinato.store.postgres.store import PostgresStore
from ostinato.store.server.channel import CHANGE_CHANNEL
from ostinato.testing.contracts.store_kit import T0, make_definition, make_submission

_FAR_US = 3600 * SECOND


@pytest.fixture(scope="module")
def server() -> Iterator[TestDatabase]:
    with fresh_database("postgresql") as database:
        yield database


@pytest.fixture
async def stores(server: TestDatabase) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """One that waits as a node does, one that submits."""
    server.clean()
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(2):
            store = PostgresStore(server.server_url, clock=clock)
            stack.push_async_callback(store.close)
            await store.open()
            opened.append(store)
        await opened[0].register_node(NodeRow("node-1", 0, "", T0))
        await asyncio.wait_for(opened[0].listener.is_listening.wait(), 5)
        yield opened[0], opened[1]


def _end_listeners(server: TestDatabase) -> None:
    with outside(server) as session:
        ended = session.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query ILIKE 'LISTEN%'"
        ).fetchall()
    assert ended == [(True,)]


def _waits(store: PostgresStore) -> asyncio.Task[None]:
    return asyncio.create_task(store.wait_for_change(SystemClock(0).boot_us() + 10**14))


async def test_another_process_is_told_of_each_kind_of_change(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    node, client = stores
    for change in (
        client.submit([make_submission(1)]),
        client.apply([make_definition()], now_us=T0),
        client.add_requests([]),
    ):
        waiting = _waits(node)
        await asyncio.wait((waiting,), timeout=0.1)
        assert not waiting.done()
        await change
        await asyncio.wait_for(waiting, 5)


async def test_own_changes_come_back_as_no_hint(stores: tuple[PostgresStore, PostgresStore]) -> None:
    node, client = stores
    await node.submit([make_submission(1)])
    await asyncio.wait_for(_waits(node), 5)
    again = _waits(node)
    # The hint of another process, sent later, is heard after one's own would have been.
    await asyncio.wait((again,), timeout=0.3)
    assert not again.done()
    await client.submit([make_submission(2)])
    await asyncio.wait_for(again, 5)


async def test_a_hint_names_what_was_submitted_alone(stores: tuple[PostgresStore, PostgresStore]) -> None:
    node, client = stores
    instance = make_submission(1, task="ü'\\", payload=b'{"secret":1}', due_us=T0, created_us=T0).instance
    waiting = _waits(node)
    await client.submit([Submission(instance=instance)])
    await asyncio.wait_for(waiting, 5)
    assert node.take_hinted() == [named(instance)]
    assert node.take_hinted() == []


async def test_a_thousand_submissions_are_a_few_hints(
    stores: tuple[PostgresStore, PostgresStore], server: TestDatabase
) -> None:
    _, client = stores
    heard: asyncio.Queue[str] = asyncio.Queue()
    connection = await PostgresDialect(server.server_url).connect()
    await connection.add_listener(CHANGE_CHANNEL, lambda *message: heard.put_nowait(message[-1]))
    await asyncio.gather(*(client.submit([make_submission(number)]) for number in range(1000)))
    await client.close()
    await connection.execute("SELECT pg_notify($1, 'end')", CHANGE_CHANNEL)
    count = 0
    while await heard.get() != "end":
        count += 1
    connection.terminate()
    assert 1 <= count <= 250


async def test_a_listener_whose_session_has_ended_hears_again(
    stores: tuple[PostgresStore, PostgresStore], server: TestDatabase
) -> None:
    node, client = stores
    _end_listeners(server)
    # Whoever waits looks once: something may have been told while nobody heard.
    await asyncio.wait_for(_waits(node), 10)
    assert node.listener.losses == node.counters().listener_losses == 1
    waiting = _waits(node)
    await client.submit([make_submission(1)])
    await asyncio.wait_for(waiting, 5)


async def test_c113_a_connection_that_has_died_without_a_word_is_replaced(server: TestDatabase) -> None:
    """Nothing arrives any more, and no end either; the check finds out."""
    server.clean()
    clock = SystemClock()
    url = server.server_url
    with Proxy(f"{url.host}:{url.port}") as proxy:
        host, _, port = proxy.address.rpartition(":")
        dialect = PostgresDialect(msgspec.structs.replace(url, host=host, port=int(port)))
        changes = ChangeSignal(clock)
        listener = Listener(
            dialect,
            changes,
            name="node",
            clock=clock,
            rng=Random(1),
            hints=Hints(),
            check_us=200 * MILLISECOND,
        )
        listener.start()
        try:
            await asyncio.wait_for(listener.is_listening.wait(), 5)
            proxy.blackhole()
            while listener.is_listening.is_set():
                await clock.sleep_until_us(clock.boot_us() + 10 * MILLISECOND)
            proxy.resume()
            await asyncio.wait_for(listener.is_listening.wait(), 15)
            assert listener.losses == 1
            assert await changes.wait(clock.boot_us() + _FAR_US)
        finally:
            await listener.close()
    assert CHECK_US * 3 // 2 < 30 * SECOND


async def test_without_sessions_of_its_own_a_store_waits_for_the_time_alone(server: TestDatabase) -> None:
    server.clean()
    clock = SystemClock()
    url = msgspec.structs.replace(server.server_url, session_lock="off")
    store = PostgresStore(url, clock=clock)
    await store.open()
    try:
        await store.register_node(NodeRow("node-1", 0, "", T0))
        until_us = clock.boot_us() + 50 * MILLISECOND
        await store.wait_for_change(until_us)
        assert clock.boot_us() >= until_us
        assert not store.listener.is_listening.is_set()
    finally:
        await store.close()
