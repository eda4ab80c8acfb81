"""Nodes on PostgreSQL: session locks, take-overs, races of owners, owners that are frozen."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import msgspec
import pytest
from support.postgres_wire import StatementProxy, outside
from support.servers import TestDatabase, fresh_database

from ostinato.clock import SystemClock
from ostinato.core.instants import SECOND
from ostinato.core.states import State
from ostinato.store.batches import CommitReport, NodeRow, Proof
from ostinato.store.postgres.ownership import lock_key
from ostinato.store.postgres.store import PostgresStore
from ostinato.store.server.url import ServerUrl
from ostinato.testing.contracts.store_kit import (
    ALL,
    NODE,
    T0,
    Owner,
    make_assign,
    make_instance,
    make_submission,
    make_success,
)

#: Of this database: the server's other databases have locks of the same names.
_OWN_LOCKS = (
    "FROM pg_locks WHERE locktype = 'advisory' AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_LOCKS = f"SELECT count(*) {_OWN_LOCKS}"
#: What the frozen owner does: a transaction that holds the lock of its partition, of which it says so.
_FROZEN_OWNER = """
import sys, psycopg
connection = psycopg.connect(sys.argv[1])
connection.execute(sys.argv[2])
print("holds", flush=True)
sys.stdin.read()
"""

Opener = Callable[..., "asyncio.Future[PostgresStore]"]


@pytest.fixture(scope="module")
def server() -> Iterator[TestDatabase]:
    with fresh_database("postgresql") as database:
        yield database


@pytest.fixture
async def stores(server: TestDatabase) -> AsyncIterator[_Stores]:
    server.clean()
    async with AsyncExitStack() as stack:
        yield _Stores(server.server_url, stack)


class _Stores:
    """Opens stores of a database, each as a process of its own would."""

    def __init__(self, url: ServerUrl, stack: AsyncExitStack) -> None:
        self._url = url
        self._stack = stack

    async def open(self, **changes: object) -> PostgresStore:
        store = PostgresStore(msgspec.structs.replace(self._url, **changes), clock=SystemClock())
        self._stack.push_async_callback(store.close)
        await store.open()
        return store

    async def node(self, name: str, **changes: object) -> PostgresStore:
        store = await self.open(**changes)
        await store.register_node(NodeRow(name, 0, "", T0))
        return store


def _ask(server: TestDatabase, query: str) -> int:
    with outside(server) as session:
        row = session.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def _end_session_of_lock(server: TestDatabase, node: str) -> None:
    """And wait until its locks are free."""
    key = lock_key(node)
    with outside(server) as session:
        ended = session.execute(
            f"SELECT pg_terminate_backend(pid, 5000) {_OWN_LOCKS}"
            " AND (classid::bigint << 32 | objid::bigint) = %s",
            (key,),
        ).fetchall()
    assert ended == [(True,)]


# ── session locks ─────────────────────────────────────────────────────────────────────────────────────


async def test_the_end_of_a_nodes_session_is_seen_at_once(stores: _Stores, server: TestDatabase) -> None:
    await stores.node("node-1")
    watcher = await stores.node("node-2")
    assert (await watcher.watch_nodes()).freed == frozenset()
    _end_session_of_lock(server, "node-1")
    seen = await watcher.watch_nodes()
    assert [node.id for node in seen.nodes] == ["node-1", "node-2"]
    assert seen.freed == {"node-1"}


async def test_a_node_that_lost_its_session_takes_its_lock_again_and_keeps_its_row(
    stores: _Stores, server: TestDatabase
) -> None:
    node = await stores.node("node-1")
    watcher = await stores.node("node-2")
    await watcher.watch_nodes()
    _end_session_of_lock(server, "node-1")
    assert await node.renew_node("node-1")
    assert (await watcher.watch_nodes()).freed == frozenset()
    assert _ask(server, _LOCKS) == 2
    _end_session_of_lock(server, "node-1")
    assert (await watcher.watch_nodes()).freed == {"node-1"}


async def test_what_another_session_saw_held_is_not_known_to_this_one(
    stores: _Stores, server: TestDatabase
) -> None:
    """After a restart of the server all locks are free, and only the counters tell who lives."""
    await stores.node("node-1")
    watcher = await stores.node("node-2")
    await watcher.watch_nodes()
    _end_session_of_lock(server, "node-1")
    _end_session_of_lock(server, "node-2")
    assert (await watcher.watch_nodes()).freed == frozenset()
    assert (await watcher.watch_nodes()).freed == frozenset()


async def test_a_lock_is_taken_once_and_given_back(stores: _Stores, server: TestDatabase) -> None:
    node = await stores.node("node-1")
    for _ in range(3):
        await node.renew_node("node-1")
    assert _ask(server, _LOCKS) == 1
    await node.remove_node("node-1")
    assert _ask(server, _LOCKS) == 0


async def test_without_a_session_lock_the_counter_alone_tells(stores: _Stores, server: TestDatabase) -> None:
    node = await stores.node("node-1", session_lock="off")
    watcher = await stores.node("node-2")
    assert _ask(server, _LOCKS) == 1
    for _ in range(2):
        assert (await watcher.watch_nodes()).freed == frozenset()
        assert await node.renew_node("node-1")
    assert {row.renewals for row in (await node.watch_nodes()).nodes} == {2, 0}


async def test_behind_a_proxy_that_pools_transactions_there_is_no_session_lock(
    stores: _Stores, server: TestDatabase
) -> None:
    """Such a proxy gives clients process ids of its own making; nothing is prepared by name behind it."""
    url = server.server_url
    with StatementProxy(f"{url.host}:{url.port}", fakes_process_ids=True) as proxy:
        node = await stores.node("node-1", host="127.0.0.1", port=proxy.port, sslmode="disable")
        assert _ask(server, _LOCKS) == 0
        owner = Owner(node, await node.take_partitions("node-1", ALL))
        (row,) = await owner.run(make_instance(1))
        assert row.state is State.RUNNING
        assert await node.list_tasks(None, after=None, limit=5) == []
        assert _ask(server, "SELECT count(*) FROM pg_prepared_statements") == 0
        assert proxy.named == set()
        await node.close()


# ── races ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_c085_five_nodes_submit_one_key_at_once(stores: _Stores) -> None:
    nodes = [await stores.open() for _ in range(5)]
    for turn in range(100):
        wanted = [make_submission(f"t{turn}-{number}", key=f"boot-{turn}") for number in range(5)]
        for each in wanted:
            each.key_expires_us = 2**62
        answers = await asyncio.gather(
            *(node.submit([each]) for node, each in zip(nodes, wanted, strict=True))
        )
        receipts = [receipt for (receipt,) in answers]
        assert len({receipt.instance_id for receipt in receipts}) == 1
        assert sum(receipt.created for receipt in receipts) == 1
    assert not any(node.database.repeats["deadlock"] for node in nodes)


async def test_lists_of_the_same_keys_in_any_order_do_not_lock_each_other_out(stores: _Stores) -> None:
    nodes = [await stores.open() for _ in range(4)]
    rows = [make_submission(f"n{number:03}", key=f"k{999 - number}") for number in range(200)]
    for row in rows:
        row.key_expires_us = 2**62
    answers = await asyncio.gather(
        *(
            node.submit(rows[shift:] + rows[:shift])
            for shift, node in zip((0, 50, 100, 150), nodes, strict=True)
        )
    )
    created = [receipt.instance_id for answer in answers for receipt in answer if receipt.created]
    assert sorted(created) == [row.instance.id for row in rows]
    assert not any(node.database.repeats["deadlock"] for node in nodes)


async def test_five_nodes_race_for_the_partitions_of_a_dead_one(stores: _Stores) -> None:
    dead = await stores.node(NODE)
    await dead.take_partitions(NODE, ALL)
    names = [f"node-{number}" for number in range(2, 7)]
    nodes = [await stores.node(name) for name in names]
    wanted = range(20, 64)
    answers = await asyncio.gather(
        *(
            node.take_partitions(name, wanted, dead_nodes={NODE: 0})
            for name, node in zip(names, nodes, strict=True)
        )
    )
    # One takes them all; then the row of the dead one is gone, and the others find a living owner.
    assert sorted(len(answer) for answer in answers) == [0, 0, 0, 0, len(wanted)]
    owners = await dead.partition_owners()
    assert {proof.epoch for proof in owners} == {1, 2}
    assert {proof.owner for proof in owners[20:]} <= set(names)
    assert {proof.owner for proof in owners[:20]} == {NODE}


# ── frozen owners ─────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _frozen(server: TestDatabase, statement: str) -> Iterator[None]:
    """A process that is stopped within a transaction, after `statement`, which no time-out ends."""
    url = server.server_url
    address = f"host={url.host} port={url.port} user={url.user} dbname={url.database}"
    process = subprocess.Popen(
        [sys.executable, "-c", _FROZEN_OWNER, address, statement],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"holds\n"
        os.kill(process.pid, signal.SIGSTOP)
        yield
    finally:
        process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1 FROM partition_owner WHERE partition IN (5, 6) FOR SHARE",
        "UPDATE node SET renewals = renewals + 1 WHERE id = 'node-1'",
    ],
    ids=["commit", "renewal"],
)
async def test_a_frozen_owners_open_transaction_does_not_hold_up_the_take_over(
    stores: _Stores, server: TestDatabase, statement: str
) -> None:
    owner = await stores.node(NODE)
    await owner.take_partitions(NODE, ALL)
    taker = await stores.node("node-2")
    clock = SystemClock()
    with _frozen(server, statement):
        began_us = clock.boot_us()
        taken = await taker.take_partitions("node-2", [4, 5], dead_nodes={NODE: 0})
        took_us = clock.boot_us() - began_us
    assert taken == [Proof(4, "node-2", 2), Proof(5, "node-2", 2)]
    assert SECOND <= took_us < 5 * SECOND
    assert not await owner.renew_node(NODE)


async def test_takers_that_wait_behind_a_frozen_owner_do_not_end_each_other(
    stores: _Stores, server: TestDatabase
) -> None:
    owner = await stores.node(NODE)
    await owner.take_partitions(NODE, ALL)
    takers = [await stores.node(f"node-{number}") for number in range(2, 5)]
    with _frozen(server, "SELECT 1 FROM partition_owner WHERE partition = 5 FOR SHARE"):
        answers = await asyncio.gather(
            *(
                taker.take_partitions(f"node-{number}", [5, 6], dead_nodes={NODE: 0})
                for number, taker in enumerate(takers, start=2)
            )
        )
    assert sorted(len(answer) for answer in answers) == [0, 0, 2]
    assert not any(taker.database.repeats["lost"] for taker in takers)


async def test_a_taker_waits_for_a_commit_that_goes_on(stores: _Stores, server: TestDatabase) -> None:
    """A living owner's last transaction is finished first, and what it wrote is seen."""
    owner, taker = await stores.node(NODE), await stores.node("node-2")
    await owner.take_partitions(NODE, ALL)
    with outside(server) as session:
        session.autocommit = False
        session.execute("SELECT 1 FROM partition_owner WHERE partition = 5 FOR SHARE")
        taking = asyncio.create_task(taker.take_partitions("node-2", [5], dead_nodes={NODE: 0}))
        await asyncio.wait((taking,), timeout=0.3)
        assert not taking.done()
        session.commit()
        assert await taking == [Proof(5, "node-2", 2)]


@pytest.mark.parametrize("kind", ["assigns", "successes"])
async def test_a_move_that_has_waited_for_a_taker_writes_nothing(
    stores: _Stores, server: TestDatabase, kind: str
) -> None:
    """I5: proof and move are one statement, whose view of the rows is older than its wait."""
    owner = Owner(node := await stores.node(NODE), await node.take_partitions(NODE, ALL))
    batch, row = owner.batch(), make_instance(1)
    if kind == "assigns":
        await owner.submit(row)
        batch.assigns = [make_assign(row)]
    else:
        (row,) = await owner.run(row)
        batch.successes = [make_success(row)]
    with outside(server) as session:
        session.autocommit = False
        session.execute(
            "UPDATE partition_owner SET owner = 'node-2', epoch = epoch + 1 WHERE partition = %s",
            (row.partition,),
        )
        committing = asyncio.create_task(node.commit(batch))
        await asyncio.wait((committing,), timeout=0.3)
        assert not committing.done()
        session.commit()
        assert await committing == CommitReport(lost_partitions=frozenset({row.partition}))
    assert (await owner.get(row.id)).state is row.state


# ── identity ──────────────────────────────────────────────────────────────────────────────────────────


async def test_the_identity_is_that_of_the_database_whoever_asks(
    stores: _Stores, server: TestDatabase
) -> None:
    first, second = await stores.open(), await stores.open()
    assert await first.identity() == await second.identity() == await first.identity()
    with fresh_database("postgresql") as other:
        elsewhere = PostgresStore(other.server_url, clock=SystemClock())
        await elsewhere.open()
        try:
            assert await elsewhere.identity() != await first.identity()
        finally:
            await elsewhere.close()


async def test_where_the_clusters_name_may_not_be_read_its_start_stands_for_it(
    stores: _Stores, server: TestDatabase
) -> None:
    store = await stores.open()
    user = f"{server.server_url.database}_reader"
    with outside(server) as session:
        session.execute(f"CREATE ROLE {user} LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}")
        session.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        try:
            reader = await stores.open(user=user)
            identity = await reader.identity()
            assert identity != await store.identity()
            assert identity == await reader.identity()
        finally:
            session.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
            session.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")
