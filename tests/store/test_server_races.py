"""Owners that race on the servers: one of two epochs writes, one of many takes, repetition has its bounds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, closing

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection
from support.servers import SERVER_KINDS, TestDatabase, connect, fresh_database

from ostinato.clock import SystemClock
from ostinato.core.instants import SECOND
from ostinato.errors import UnavailableError
from ostinato.store.batches import CommitBatch, NodeRow, Proof, RequestCancel, Submission
from ostinato.store.from_url import open_store_from_url
from ostinato.store.server.store import ServerStore
from ostinato.testing.contracts.store_kit import (
    ALL,
    NODE,
    T0,
    Owner,
    history_row,
    make_assign,
    make_instance,
    make_submission,
    make_success,
)

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"
RACE_COUNT = 1000 if FULL else 20
EPOCH_COUNT = 500 if FULL else 30


@pytest.fixture(scope="module", params=SERVER_KINDS)
def database(request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    with fresh_database(request.param) as database:
        yield database


@pytest.fixture
async def stores(database: TestDatabase) -> AsyncIterator[_Stores]:
    database.clean()
    async with AsyncExitStack() as stack:
        yield _Stores(database, stack)


class _Stores:
    """Opens stores of a database, each as a process of its own would."""

    def __init__(self, database: TestDatabase, stack: AsyncExitStack) -> None:
        self._database = database
        self._stack = stack

    async def node(self, name: str) -> ServerStore:
        store = open_store_from_url(self._database.url, clock=SystemClock())
        assert isinstance(store, ServerStore)
        self._stack.push_async_callback(store.close)
        await store.open()
        await store.register_node(NodeRow(name, 0, "", T0))
        return store


# ── owners ────────────────────────────────────────────────────────────────────────────────────────────


async def test_i5_of_two_owners_with_different_epochs_one_writes_each_row(stores: _Stores) -> None:
    """The former owner commits while the taker takes over: what it was told is what the database shows."""
    former, taker = await stores.node("node-1"), await stores.node("node-2")
    outcomes = set[bool]()
    for turn in range(EPOCH_COUNT):
        proofs = await former.take_partitions("node-1", [3])
        row = make_instance(turn, partition=3)
        await former.submit([Submission(instance=row)])
        batch = CommitBatch(proofs=proofs, assigns=[make_assign(row)], history=[history_row(row)])
        report, taken = await asyncio.gather(
            former.commit(batch), taker.take_partitions("node-2", [3], dead_nodes={"node-1": 0})
        )
        assert taken == [Proof(3, "node-2", proofs[0].epoch + 1)]
        found = (await taker.get_instances([row.id]))[row.id]
        was_written = report.lost_partitions == frozenset()
        outcomes.add(was_written)
        assert found.attempt == int(was_written)
        assert await taker.count_history(row.id) == int(was_written)
        assert (await former.commit(batch)).lost_partitions == {3}
        late = CommitBatch(proofs=taken, assigns=[make_assign(row)])
        assert (await taker.commit(late)).unmatched == ({row.id} if was_written else frozenset())
        await taker.release_partitions("node-2", [3])
        await former.register_node(NodeRow("node-1", 0, "", T0))
    assert outcomes


async def test_five_nodes_race_for_a_dead_ones_partition_and_a_free_one_and_each_goes_to_one(
    stores: _Stores,
) -> None:
    names = [f"node-{number}" for number in range(2, 7)]
    nodes = [await stores.node(name) for name in names]
    for turn in range(RACE_COUNT):
        dead = f"dead-{turn}"
        await nodes[0].register_node(NodeRow(dead, 0, "", T0))
        (before,) = await nodes[0].take_partitions(dead, [7])
        answers = await asyncio.gather(
            *(
                node.take_partitions(name, [7, 9], dead_nodes={dead: 0})
                for name, node in zip(names, nodes, strict=True)
            )
        )
        taken = sorted((proof for answer in answers for proof in answer), key=lambda proof: proof.partition)
        assert [proof.partition for proof in taken] == [7, 9]
        assert taken[0].epoch == before.epoch + 1
        owners = await nodes[0].partition_owners()
        assert [owners[7], owners[9]] == taken
        assert not await nodes[0].renew_node(dead)
        for name, node in zip(names, nodes, strict=True):
            await node.release_partitions(name, [7, 9])
    assert len(await nodes[0].nodes()) == 5


async def test_two_nodes_that_take_each_other_for_dead_do_not_both_die(stores: _Stores) -> None:
    first, second = await stores.node("node-1"), await stores.node("node-2")
    taken = await asyncio.gather(
        first.take_partitions("node-1", ALL, dead_nodes={"node-2": 0}),
        second.take_partitions("node-2", ALL, dead_nodes={"node-1": 0}),
    )
    assert sorted(map(len, taken)) == [0, 64]
    assert len(await first.nodes()) == 1


async def test_two_transactions_of_one_owner_whose_moves_cross_do_not_lock_each_other_out(
    stores: _Stores,
) -> None:
    node = await stores.node(NODE)
    owner = Owner(node, await node.take_partitions(NODE, ALL))
    for turn in range(30):
        first, second = await owner.run(make_instance(f"a{turn}"), make_instance(f"b{turn}"))
        batches = []
        for ends, goes_on in ((first, second), (second, first)):
            batch = owner.batch()
            batch.successes = [make_success(ends)]
            batch.cancel_requests = [RequestCancel(goes_on.id, goes_on.partition, 1, T0, "stop")]
            batches.append(batch)
        reports = await asyncio.gather(*(node.commit(batch) for batch in batches))
        # Whoever came second found that its row had ended.
        assert sorted(len(report.unmatched) for report in reports) == [0, 1]
    assert not node.database.repeats


# ── repetition ────────────────────────────────────────────────────────────────────────────────────────

_FAILURES = {
    "deadlock": ("40P01", 1213),
    "serialization": ("40001", 1020),
    "lock_timeout": ("55P03", 1205),
}


@pytest.mark.parametrize("cause", _FAILURES)
async def test_c115_what_the_server_rolls_back_for_others_is_repeated_within_bounds(
    stores: _Stores, database: TestDatabase, cause: str
) -> None:
    """Never more than twelve runs, each counted; and it has succeeded if the last of them does."""
    store = await stores.node(NODE)
    state, number = _FAILURES[cause]
    runs: list[int] = []

    async def fail_until(connection: AsyncConnection, last: int) -> int:
        runs.append(1)
        if len(runs) < last:
            await connection.exec_driver_sql(_raising(database, state, number))
        return len(runs)

    assert await store.database.run("trying", lambda c: fail_until(c, 4), role="owner") == 4
    assert store.database.repeats == {cause: 3}
    runs.clear()
    with pytest.raises(UnavailableError) as caught:
        await store.database.run("trying", lambda c: fail_until(c, 99), role="owner")
    assert caught.value.code == "DATABASE_UNAVAILABLE"
    assert len(runs) == 12
    assert len(await store.nodes()) == 1


def _raising(database: TestDatabase, state: str, number: int) -> str:
    if database.kind == "postgresql":
        return f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; END $$"
    state = state if state == "40001" else "HY000"
    return f"SIGNAL SQLSTATE '{state}' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = 'x'"


# ── maintenance that stalls ───────────────────────────────────────────────────────────────────────────


async def test_maintenance_that_stalls_on_one_statement_stops_nothing_else(
    stores: _Stores, database: TestDatabase
) -> None:
    """Somebody holds what retention wants to delete; nobody's work waits for what it holds itself."""
    store = await stores.node(NODE)
    owner = Owner(store, await store.take_partitions(NODE, ALL))
    old = await owner.finish(*[make_instance(number) for number in range(20)])
    batch = owner.batch()
    batch.history = [history_row(old[0], unconditional=True)]
    await store.commit(batch)
    expired, live = make_submission(900, key="a"), make_submission(901, key="b")
    live.key_expires_us = 2**62
    await store.submit([expired, live])
    clock = SystemClock()
    with closing(connect(database.server_url)) as other:
        cursor = other.cursor()
        cursor.execute("SELECT sentence FROM history WHERE instance_id = %s FOR UPDATE", (old[0].id,))
        deleting = asyncio.create_task(
            store.delete_finished(
                success_before_us=T0 + 60 * SECOND, other_before_us=0, keys_before_us=T0, limit=500
            )
        )
        await asyncio.wait((deleting,), timeout=0.3)
        assert not deleting.done()
        for number in range(100, 120):
            began_us = clock.boot_us()
            # The first of all that wait, and a key beside one that has expired.
            await owner.finish(make_instance(number))
            await store.submit([live])
            assert await store.renew_node(NODE)
            assert clock.boot_us() - began_us < 1_800_000
        other.rollback()
    # It has waited, or was given up by the server and repeated.
    assert await deleting >= 20
