"""PostgreSQL behind a PgBouncer that pools transactions: no session is ours, and nothing rests on one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, closing
from typing import Any

import pytest
from support.pooling_proxy import PrivatePgbouncer
from support.postgres_wire import outside
from support.servers import TestDatabase, connect, fresh_database

from ostinato.clock import SystemClock
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.errors import UnavailableError
from ostinato.store.batches import NodeRow, NodesSeen, Proof
from ostinato.store.postgres.store import PostgresStore
from ostinato.store.server.url import ServerUrl, read_server_url
from ostinato.testing.contracts.store_kit import ALL, NODE, T0, Owner, counts, make_instance, make_submission

_ADVISORY_LOCKS = (
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
#: Of the stores' clients, as the proxy passes their name on.
_SESSIONS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'ostinato'"
)


@pytest.fixture(scope="module")
def server() -> Iterator[TestDatabase]:
    with fresh_database("postgresql") as database:
        yield database


@pytest.fixture(scope="module")
def proxy(server: TestDatabase) -> Iterator[PrivatePgbouncer]:
    with PrivatePgbouncer(server.server_url) as proxy:
        yield proxy


@pytest.fixture
def url(server: TestDatabase, proxy: PrivatePgbouncer) -> ServerUrl:
    server.clean()
    return read_server_url(proxy.url_of(server.server_url.database))


@pytest.fixture
async def stores(url: ServerUrl) -> AsyncIterator[_Stores]:
    async with AsyncExitStack() as stack:
        yield _Stores(url, stack)


class _Stores:
    """Opens stores through the proxy, each as a process of its own would."""

    def __init__(self, url: ServerUrl, stack: AsyncExitStack) -> None:
        self._url = url
        self._stack = stack

    async def open(self) -> PostgresStore:
        store = PostgresStore(self._url, clock=SystemClock())
        self._stack.push_async_callback(store.close)
        await store.open()
        return store

    async def node(self, name: str) -> PostgresStore:
        store = await self.open()
        await store.register_node(NodeRow(name, 0, "", T0))
        return store


def _ask(server: TestDatabase, query: str) -> list[Any]:
    """First column of what the server itself answers."""
    with outside(server) as session:
        return [row[0] for row in session.execute(query).fetchall()]


async def test_nothing_of_a_node_stays_with_a_session(
    stores: _Stores, server: TestDatabase, url: ServerUrl
) -> None:
    """Locks, channels, settings and named statements would be met by whoever comes next, or by nobody."""
    node, watcher = await stores.node("node-1"), await stores.node("node-2")
    owner = Owner(node, await node.take_partitions("node-1", ALL))
    waiting = asyncio.create_task(node.wait_for_change(SystemClock().boot_us() + 60 * SECOND))
    for number in range(20):
        await owner.finish(make_instance(number))
        assert await node.renew_node("node-1")
        assert (await watcher.watch_nodes()).freed == frozenset()
    waiting.cancel()
    assert _ask(server, _ADVISORY_LOCKS) == [0]
    sessions = len(_ask(server, _SESSIONS))
    assert sessions > 1
    with closing(connect(url)) as client:
        client.autocommit = True
        client.prepare_threshold = None
        found = set()
        # In turn, so that every one of them is met.
        for _ in range(3 * sessions):
            rows = client.execute(
                "SELECT pg_backend_pid(), (SELECT count(*) FROM pg_prepared_statements),"
                " (SELECT count(*) FROM pg_listening_channels()), current_setting('jit'),"
                " current_setting('lock_timeout'), current_setting('enable_seqscan')"
            ).fetchall()
            found |= set(rows)
    assert len({row[0] for row in found}) > 1
    assert {row[1:] for row in found} == {(0, 0, "on", "0", "on")}


async def test_who_lives_is_told_by_the_counter_alone(stores: _Stores, server: TestDatabase) -> None:
    node, watcher = await stores.node("node-1"), await stores.node("node-2")
    await node.take_partitions("node-1", [3])
    await node.close()
    for _ in range(3):
        assert await watcher.watch_nodes() == NodesSeen(tuple(await watcher.nodes()))
    assert await watcher.take_partitions("node-2", [3], dead_nodes={"node-1": 0}) == [Proof(3, "node-2", 2)]


async def test_many_stores_share_fewer_sessions_than_they_have_connections(
    stores: _Stores, server: TestDatabase
) -> None:
    several = [await stores.open() for _ in range(4)]
    rows = [make_submission(f"n{number}", key=f"k{number % 50}") for number in range(400)]
    for row in rows:
        row.key_expires_us = 2**62
    answers = await asyncio.gather(*(several[number % 4].submit([row]) for number, row in enumerate(rows)))
    assert sum(receipt.created for (receipt,) in answers) == 50
    assert await counts(several[0]) == {"pending": 50}
    assert len(_ask(server, _SESSIONS)) <= 8


async def test_a_client_that_idles_amid_a_transaction_does_not_hold_up_a_take_over(
    stores: _Stores, url: ServerUrl
) -> None:
    """Its session belongs to the proxy; the taker ends it all the same, while others go on."""
    owner, taker, busy = [await stores.node(name) for name in (NODE, "node-2", "node-3")]
    await owner.take_partitions(NODE, ALL)
    clock = SystemClock()
    with closing(connect(url)) as frozen:
        frozen.execute("SELECT 1 FROM partition_owner WHERE partition IN (5, 6) FOR SHARE")
        began_us = clock.boot_us()
        taking = asyncio.create_task(taker.take_partitions("node-2", [4, 5], dead_nodes={NODE: 0}))
        number = 0
        while not taking.done():
            number += 1
            await busy.submit([make_submission(f"b{number}")])
            assert await busy.renew_node("node-3")
        took_us = clock.boot_us() - began_us
    assert await taking == [Proof(4, "node-2", 2), Proof(5, "node-2", 2)]
    # A second of patience; without it the session would be ended by nobody.
    assert SECOND <= took_us < 3 * SECOND
    assert number > 10


async def test_sessions_that_end_behind_the_proxy_lose_and_double_nothing(
    stores: _Stores, server: TestDatabase
) -> None:
    node, client = await stores.node(NODE), await stores.open()
    owner = Owner(node, await node.take_partitions(NODE, ALL))

    async def submit(number: int) -> bool:
        row = make_submission(f"s{number:03}", key=f"k{number}")
        row.key_expires_us = 2**62
        created = False
        for _ in range(20):
            try:
                (receipt,) = await client.submit([row])
            except UnavailableError:
                # Unknown whether it was written: the same again.
                created = True
                continue
            assert receipt.instance_id == row.instance.id
            return created or receipt.created
        raise AssertionError("never answered")

    submitting = asyncio.gather(*(submit(number) for number in range(300)))
    ended = 0
    for _ in range(10):
        await asyncio.wait((submitting,), timeout=0.1)
        ended += len(_ask(server, f"SELECT pg_terminate_backend(pid) FROM ({_SESSIONS}) AS every"))
    assert all(await submitting)
    assert ended > 8
    assert await counts(client) == {"pending": 300}
    (row,) = await owner.run(make_instance(1))
    assert row.attempt == 1


async def test_a_proxy_that_is_started_anew_is_reached_again_at_once(
    stores: _Stores, proxy: PrivatePgbouncer
) -> None:
    store = await stores.node(NODE)
    await store.submit([make_submission(1)])
    proxy.stop()
    with pytest.raises(UnavailableError) as caught:
        await store.submit([make_submission(2)])
    assert caught.value.code == "DATABASE_UNAVAILABLE"
    proxy.start()
    clock = SystemClock()
    began_us = clock.boot_us()
    assert (await store.submit([make_submission(2)]))[0].created
    assert await store.renew_node(NODE)
    assert clock.boot_us() - began_us < SECOND
    assert await counts(store) == {"pending": 2}


async def test_a_call_that_is_given_up_is_cancelled_behind_the_proxy(
    stores: _Stores, server: TestDatabase
) -> None:
    store = await stores.open()

    async def sleep(connection: Any) -> None:
        await connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        await connection.exec_driver_sql("SELECT pg_sleep(3600)")

    with pytest.raises(UnavailableError, match="did not end within 300 ms"):
        await store.database.run("sleeping", sleep, deadline_us=300 * MILLISECOND, role="owner")
    clock = SystemClock()
    ends_us = clock.boot_us() + 5 * SECOND
    asleep = f"{_SESSIONS} AND query LIKE 'SELECT pg_sleep%' AND state = 'active'"
    while await asyncio.to_thread(_ask, server, asleep):
        assert clock.boot_us() < ends_us
    assert await store.partition_owners()
