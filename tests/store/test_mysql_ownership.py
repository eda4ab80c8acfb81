"""Who owns what on MariaDB and MySQL: session locks, races for a partition, owners that are frozen."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import Any

import pytest
from support.mysql_proxy import MysqlProxy
from support.servers import SERVER_KINDS, TestDatabase, connect, fresh_database

from ostinato.clock import SystemClock
from ostinato.core.states import State
from ostinato.errors import UserError
from ostinato.store.batches import CommitReport, NodeRow, NodesSeen, Proof
from ostinato.store.mysql.ownership import lock_name
from ostinato.store.mysql.store import MysqlStore
from ostinato.store.server.url import ServerUrl, read_server_url
from ostinato.testing.contracts.store_kit import ALL, NODE, T0, Owner, history_row, make_assign, make_instance

ROUNDS = 1000 if os.environ.get("OSTINATO_CASES_FULL") == "1" else 20
NODES = [f"node-{number}" for number in range(1, 6)]


@pytest.fixture(scope="module", params=[kind for kind in SERVER_KINDS if kind != "postgresql"])
def module_database(request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    with fresh_database(request.param) as database:
        yield database


@pytest.fixture
def database(module_database: TestDatabase) -> TestDatabase:
    module_database.clean()
    return module_database


@pytest.fixture
async def store(database: TestDatabase) -> AsyncIterator[MysqlStore]:
    async with _opened(database.server_url) as store:
        yield store


class StoreThatDoesNotLook(MysqlStore):
    """Would be used behind a proxy that hides found rows: what then keeps it right, if not its refusal."""

    async def _require_found_rows(self) -> None:
        pass


@asynccontextmanager
async def _opened(url: ServerUrl, kind: type[MysqlStore] = MysqlStore) -> AsyncIterator[MysqlStore]:
    store = kind(url, clock=SystemClock())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _node(identifier: str) -> NodeRow:
    return NodeRow(identifier, 0, "127.0.0.1:8640", T0)


def _ask(database: TestDatabase, query: str) -> Any:
    """First value of what another session hears."""
    with closing(connect(database.server_url)) as connection:
        cursor = connection.cursor()
        cursor.execute(query)
        row = cursor.fetchone()
        return None if row is None else row[0]


# ── session locks ─────────────────────────────────────────────────────────────────────────────────────


def _holder(database: TestDatabase, node_id: str) -> int | None:
    name = lock_name(database.server_url.database, node_id)
    found: int | None = _ask(database, f"SELECT IS_USED_LOCK('{name}')")
    return found


def test_the_name_of_a_lock_fits_and_belongs_to_one_node_of_one_database() -> None:
    names = {lock_name(database, node) for database in ("a", "b") for node in ("x" * 64, "y", "é")}
    assert len(names) == 6
    assert {len(name) <= 64 for name in names} == {True}


async def test_a_node_takes_its_lock_once_however_often_it_renews(
    database: TestDatabase, store: MysqlStore
) -> None:
    """MySQL counts: a lock taken twice would still be held when it has been released once."""
    await store.register_node(_node(NODE))
    for _ in range(3):
        assert await store.renew_node(NODE)
    assert _holder(database, NODE) is not None
    await store.remove_node(NODE)
    assert _holder(database, NODE) is None
    assert await store.nodes() == []


async def test_a_lock_that_was_lost_with_its_session_is_taken_anew_and_the_row_kept(
    database: TestDatabase, store: MysqlStore
) -> None:
    await store.register_node(_node(NODE))
    former = _holder(database, NODE)
    _ask(database, f"KILL {former}")
    while _holder(database, NODE) is not None:
        pass
    assert await store.renew_node(NODE)
    assert _holder(database, NODE) not in (None, former)
    assert [node.renewals for node in await store.nodes()] == [1]


async def test_a_lock_is_freed_only_if_this_session_has_seen_it_held(
    database: TestDatabase, store: MysqlStore
) -> None:
    await store.register_node(_node("watcher"))
    async with _opened(database.server_url) as other:
        await other.register_node(_node("other"))
        await other.register_node(_node("without-lock"))
        _ask(database, f"KILL {_holder(database, 'without-lock')}")
        while _holder(database, "other") is not None:
            pass
        # Free, but nobody has seen it held.
        assert (await store.watch_nodes()).freed == frozenset()
        await other.renew_node("other")
        assert (await store.watch_nodes()).freed == frozenset()
        _ask(database, f"KILL {_holder(database, 'other')}")
        while _holder(database, "other") is not None:
            pass
        seen = await store.watch_nodes()
        assert seen.freed == {"other"}
        assert [node.id for node in seen.nodes] == ["other", "watcher", "without-lock"]
        await other.renew_node("other")
        assert (await store.watch_nodes()).freed == frozenset()
        # The watcher's own session ends: what it had seen is worth nothing any more.
        _ask(database, f"KILL {_holder(database, 'watcher')}")
        _ask(database, f"KILL {_holder(database, 'other')}")
        while _holder(database, "other") is not None or _holder(database, "watcher") is not None:
            pass
        assert (await store.watch_nodes()).freed == frozenset()


async def test_without_session_locks_the_counters_alone_tell(database: TestDatabase) -> None:
    url = read_server_url(f"{database.url}?session_lock=off")
    async with _opened(url) as store, _opened(url) as other:
        await store.register_node(_node(NODE))
        assert await store.renew_node(NODE)
        assert _holder(database, NODE) is None
        assert await other.watch_nodes() == NodesSeen((NodeRow(NODE, 1, "127.0.0.1:8640", T0),))


async def test_the_server_is_named_the_same_by_all_who_reach_it(
    database: TestDatabase, store: MysqlStore
) -> None:
    async with _opened(database.server_url) as other:
        assert await store.identity() == await other.identity()
    assert "server_id=" in await store.identity()


# ── races ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_five_nodes_race_for_a_partition_and_one_gets_it(database: TestDatabase) -> None:
    assert await _race(database.server_url, kind=MysqlStore) == ROUNDS


async def test_five_nodes_race_alike_where_found_rows_are_not_counted(database: TestDatabase) -> None:
    async with _hiding_proxy(database) as url:
        assert await _race(url, kind=StoreThatDoesNotLook) == ROUNDS


async def _race(url: ServerUrl, *, kind: type[MysqlStore]) -> int:
    """Each round a dead node's partition, and a free one; returns in how many each was taken once."""
    won = 0
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(_opened(url, kind)) for _ in NODES]
        for node, store in zip(NODES, stores, strict=True):
            await store.register_node(_node(node))
        for turn in range(ROUNDS):
            dead = f"dead-{turn}"
            await stores[0].register_node(_node(dead))
            (before,) = await stores[0].take_partitions(dead, [7])
            taken = await asyncio.gather(
                *(
                    store.take_partitions(node, [7, 9], dead_nodes={dead: 0})
                    for node, store in zip(NODES, stores, strict=True)
                )
            )
            proofs = [proof for answer in taken for proof in answer]
            assert sorted(proof.partition for proof in proofs) == [7, 9]
            assert next(proof for proof in proofs if proof.partition == 7).epoch == before.epoch + 1
            owners = await stores[0].partition_owners()
            assert {owners[7], owners[9]} == set(proofs)
            won += not await stores[0].renew_node(dead)
            for node, store in zip(NODES, stores, strict=True):
                await store.release_partitions(node, [7, 9])
        await _each_commits_once(stores)
    return won


async def _each_commits_once(stores: list[MysqlStore]) -> None:
    """Five nodes assign the same instance: those without the partition, or second, write nothing."""
    proofs = [Proof(3, node, 1) for node in NODES]
    row = make_instance(1)
    await Owner(stores[0], []).submit(row)
    (proofs[2],) = await stores[2].take_partitions(NODES[2], [3])
    reports = await asyncio.gather(
        *(_assign(store, proof) for store, proof in zip(stores, proofs, strict=True))
    )
    assert sum(report == CommitReport() for report in reports) == 1
    again = await asyncio.gather(*(_assign(stores[2], proofs[2]) for _ in range(5)))
    assert [report.unmatched for report in again] == [{row.id}] * 5
    found = (await stores[0].get_instances([row.id]))[row.id]
    assert (found.state, found.attempt) == (State.RUNNING, 1)
    assert len(await stores[0].history(row.id)) == 1


async def _assign(store: MysqlStore, proof: Proof) -> CommitReport:
    owner = Owner(store, [proof])
    batch = owner.batch()
    batch.assigns = [make_assign(make_instance(1))]
    batch.history = [history_row(make_instance(1))]
    return await store.commit(batch)


async def test_a_proxy_that_hides_found_rows_is_refused_at_once(database: TestDatabase) -> None:
    async with _hiding_proxy(database) as url:
        store = MysqlStore(url, clock=SystemClock())
        with pytest.raises(UserError) as caught:
            await store.open()
    assert caught.value.code == "DATABASE_UNUSABLE"
    assert "CLIENT_FOUND_ROWS" in caught.value.hint


@asynccontextmanager
async def _hiding_proxy(database: TestDatabase) -> AsyncIterator[ServerUrl]:
    async def kill(session: int) -> None:
        raise AssertionError(session)

    url = database.server_url
    async with MysqlProxy((url.host, url.port), kill=kill, hides_found_rows=True) as proxy:
        yield read_server_url(
            f"mysql://{url.user}:{url.password or ''}@127.0.0.1:{proxy.port}/{url.database}"
        )


# ── owners that are frozen ────────────────────────────────────────────────────────────────────────────

#: Holds the partition as a commit does, says so, and would go on once it is asked to.
_HOLDER = """
import sys
from support.servers import connect
from ostinato.store.server.url import read_server_url
connection = connect(read_server_url(sys.argv[1]))
cursor = connection.cursor()
cursor.execute("SELECT owner FROM partition_owner WHERE `partition` = 3 LOCK IN SHARE MODE")
print("held", flush=True)
sys.stdin.readline()
"""


async def test_a_frozen_owner_that_is_amid_a_transaction_does_not_hold_up_a_take_over(
    database: TestDatabase, store: MysqlStore
) -> None:
    await Owner.of(store)
    await store.register_node(_node("node-2"))
    frozen = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _HOLDER,
        database.url,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert frozen.stdout is not None
        assert await frozen.stdout.readline() == b"held\n"
        frozen.send_signal(signal.SIGSTOP)
        begun_us = SystemClock(0).boot_us()
        taken = await store.take_partitions("node-2", [3], dead_nodes={NODE: 0})
        taken_us = SystemClock(0).boot_us() - begun_us
    finally:
        frozen.kill()
        await frozen.wait()
    assert taken == [Proof(3, "node-2", 2)]
    # A second of patience, then the session that is in the way is ended; its own time-outs come later.
    assert 900_000 <= taken_us < 1_900_000


async def test_an_owner_s_session_that_idles_amid_a_transaction_is_ended_by_the_server(
    database: TestDatabase, store: MysqlStore
) -> None:
    """Whoever may not end the sessions of others waits for less than the ownership lease of 3 s."""
    async with store.database.engine("owner").connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        await store.database.dialect.begin(driver, role="owner", left_us=10_000_000)
        begun_us = SystemClock(0).boot_us()
        session = driver.thread_id()
        query = f"SELECT count(*) FROM information_schema.processlist WHERE id = {session}"
        while await asyncio.to_thread(_ask, database, query):
            pass
        assert SystemClock(0).boot_us() - begun_us < 3_000_000
        await connection.invalidate()


async def test_everybody_takes_what_is_free_whatever_else_is_locked(
    database: TestDatabase, store: MysqlStore
) -> None:
    """The lock of one partition makes nobody wait who asks for another."""
    await store.register_node(_node(NODE))
    with closing(connect(database.server_url)) as other:
        cursor = other.cursor()
        cursor.execute("SELECT owner FROM partition_owner WHERE `partition` = 3 FOR UPDATE")
        others = [number for number in ALL if number != 3]
        begun_us = SystemClock(0).boot_us()
        assert len(await store.take_partitions(NODE, others)) == 63
        row = make_instance(1, partition=4)
        owner = Owner(store, [Proof(4, NODE, 1)])
        await owner.submit(row)
        batch = owner.batch()
        batch.assigns = [make_assign(row)]
        assert await store.commit(batch) == CommitReport()
        assert SystemClock(0).boot_us() - begun_us < 900_000
        other.rollback()
