"""The simulated database with nothing broken: time on the wire, locks, blocked statements, hints."""

from __future__ import annotations

import asyncio

import pytest
from support.simulated_database import DatabaseStage

from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.errors import UnavailableError
from ostinato.simulation.database_calls import Transaction
from ostinato.simulation.database_locks import exclusive, shared
from ostinato.simulation.database_store import SimulatedStore
from ostinato.simulation.history import (
    HistoryCommitted,
    NodeRowCommitted,
    OwnerCommitted,
    RequestCommitted,
    RowCommitted,
)
from ostinato.store.batches import CommitBatch, NodeRow, Proof, Request, RequestAnswer
from ostinato.store.memory.commit import proven_partitions
from ostinato.testing.contracts.store_kit import (
    ALL,
    T0,
    history_row,
    make_assign,
    make_instance,
    make_submission,
)
from ostinato.testing.virtual_clock import run_virtual


async def join(store: SimulatedStore, name: str) -> None:
    await store.register_node(NodeRow(name, 0, "", T0))


class OpenCommit:
    """A transaction of an owner that stands still between its proof and its COMMIT."""

    def __init__(self, store: SimulatedStore, batch: CommitBatch) -> None:
        self.has_proven = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self.runs = 0
        self.task = asyncio.create_task(store.calls.run("committing a batch", self._run, role="owner"))
        self._tables = store.server.tables
        self._batch = batch

    async def _run(self, transaction: Transaction) -> frozenset[int]:
        self.runs += 1
        locks = shared(("partition", proof.partition) for proof in self._batch.proofs)
        proven: frozenset[int] = await transaction.lock(
            locks, lambda _: proven_partitions(self._tables, self._batch)
        )
        self.has_proven.set()
        await self.may_go_on.wait()
        await transaction.commit(lambda: None)
        return proven


def test_each_way_takes_time_and_the_call_happens_in_between() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        store = stage.store("node")
        # Connects.
        await store.now_us()
        stage.server.slow_wire(
            "node",
            there_us=(300 * MILLISECOND, 300 * MILLISECOND + 1),
            back_us=(500 * MILLISECOND, 500 * MILLISECOND + 1),
        )
        began_us = stage.loop.elapsed_us
        before_us = await store.now_us() - stage.server.clock.wall_us()
        assert before_us == -500 * MILLISECOND
        assert stage.loop.elapsed_us - began_us == 800 * MILLISECOND

    run_virtual(main())


def test_a_taker_waits_for_the_open_transaction_of_the_owner_and_ends_its_session_after_a_second() -> None:
    """Design section 3: a taker that is blocked for a second ends the blocking session."""

    async def main() -> None:
        stage = DatabaseStage()
        first, second = stage.store("first"), stage.store("second")
        await join(first, "node-1")
        await join(second, "node-2")
        proofs = await first.take_partitions("node-1", [1, 2])
        frozen = OpenCommit(first, CommitBatch(proofs=proofs))
        await frozen.has_proven.wait()
        began_us = stage.loop.elapsed_us
        taken = await second.take_partitions("node-2", [1, 2], dead_nodes={"node-1": 0})
        assert taken == [Proof(1, "node-2", 2), Proof(2, "node-2", 2)]
        assert SECOND <= stage.loop.elapsed_us - began_us < SECOND + 300 * MILLISECOND
        # Its COMMIT had been sent to a session that was ended: it cannot know that nothing was written.
        frozen.may_go_on.set()
        with pytest.raises(UnavailableError, match="whether anything was written is unknown"):
            await frozen.task

    run_virtual(main())


def test_a_taker_goes_on_as_soon_as_the_owner_has_committed() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        first, second = stage.store("first"), stage.store("second")
        await join(first, "node-1")
        await join(second, "node-2")
        proofs = await first.take_partitions("node-1", [1])
        slow = OpenCommit(first, CommitBatch(proofs=proofs))
        await slow.has_proven.wait()
        taking = asyncio.create_task(second.take_partitions("node-2", [1], dead_nodes={"node-1": 0}))
        await stage.pass_us(400 * MILLISECOND)
        assert not taking.done()
        slow.may_go_on.set()
        assert await slow.task == {1}
        began_us = stage.loop.elapsed_us
        assert await taking == [Proof(1, "node-2", 2)]
        assert stage.loop.elapsed_us - began_us < 10 * MILLISECOND

    run_virtual(main())


def test_silence_amid_a_transaction_ends_the_session_before_the_ownership_lease_does() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        store, other = stage.store("first"), stage.store("second")
        await join(store, "node-1")
        proofs = await store.take_partitions("node-1", [1])
        frozen = OpenCommit(store, CommitBatch(proofs=proofs))
        await frozen.has_proven.wait()
        began_us = stage.loop.elapsed_us

        async def lock(transaction: Transaction) -> None:
            await transaction.lock(exclusive([("partition", 1)]))
            await transaction.commit(lambda: None)

        await other.calls.run("locking", lock, role="owner")
        assert abs(stage.loop.elapsed_us - began_us - 2 * SECOND) < 10 * MILLISECOND
        frozen.task.cancel()

    run_virtual(main())


def test_owners_share_the_lock_of_a_partition_and_rows_are_locked_one_after_the_other() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        store = stage.store("node")
        await join(store, "node-1")
        proofs = await store.take_partitions("node-1", ALL)
        row = make_instance(1)
        await store.submit([make_submission(1)])
        open_one = OpenCommit(store, CommitBatch(proofs=proofs))
        await open_one.has_proven.wait()
        batches = [CommitBatch(proofs=list(proofs), assigns=[make_assign(row)]) for _ in range(2)]
        reports = await asyncio.gather(*(store.commit(batch) for batch in batches))
        assert sorted(len(report.unmatched) for report in reports) == [0, 1]
        open_one.may_go_on.set()
        await open_one.task

    run_virtual(main())


def test_the_same_key_submitted_twice_at_once_makes_one_instance() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        stores = [stage.store(f"client-{number}") for number in range(4)]
        lists = [[make_submission(number, key="k")] for number in range(4)]
        pairs = zip(stores, lists, strict=True)
        receipts = await asyncio.gather(*(store.submit(rows) for store, rows in pairs))
        assert [receipt.created for (receipt,) in receipts].count(True) == 1
        assert len({receipt.instance_id for (receipt,) in receipts}) == 1
        assert len(stage.of(RowCommitted)) == 1

    run_virtual(main())


def test_two_that_would_wait_for_each_other_for_ever_are_told_apart() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        store = stage.store("node")
        await store.open()
        runs: list[str] = []

        async def cross(transaction: Transaction, first: str, second: str) -> None:
            runs.append(first)
            await transaction.lock(exclusive([("row", first)]))
            await stage.pass_us(50 * MILLISECOND)
            await transaction.lock(exclusive([("row", second)]))
            await transaction.commit(lambda: None)

        await asyncio.gather(
            store.calls.run("crossing", lambda transaction: cross(transaction, "a", "b"), role="owner"),
            store.calls.run("crossing", lambda transaction: cross(transaction, "b", "a"), role="owner"),
        )
        assert len(runs) == 3
        assert stage.loop.elapsed_us < SECOND

    run_virtual(main())


def test_a_lock_that_is_not_granted_in_time_is_asked_for_again_until_the_deadline() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        store, other = stage.store("first"), stage.store("second")
        await join(store, "node-1")
        proofs = await store.take_partitions("node-1", [1])
        stage.server.slow_commits(1.0, (30 * SECOND, 30 * SECOND + 1))
        frozen = OpenCommit(store, CommitBatch(proofs=proofs))
        frozen.may_go_on.set()
        await frozen.has_proven.wait()
        await stage.pass_us(10 * MILLISECOND)
        stage.server.full_speed()
        began_us = stage.loop.elapsed_us

        async def lock(transaction: Transaction) -> None:
            await transaction.lock(exclusive([("partition", 1)]))

        with pytest.raises(UnavailableError):
            await other.calls.run("locking", lock, role="owner")
        assert 9 * SECOND < stage.loop.elapsed_us - began_us <= 10 * SECOND
        with pytest.raises(UnavailableError):
            await frozen.task

    run_virtual(main())


def test_the_lock_of_a_node_that_died_tells_at_once_and_that_of_a_living_one_does_not() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        stores = [stage.store(name) for name in ("first", "second", "third")]
        for number, store in enumerate(stores):
            await join(store, f"node-{number}")
        assert (await stores[2].watch_nodes()).freed == frozenset()
        stage.clients["first"].crash()
        await stage.pass_us(3 * SECOND)
        seen = await stores[2].watch_nodes()
        assert (len(seen.nodes), seen.freed) == (3, {"node-0"})
        # Who has not seen it held says nothing.
        assert (await stores[1].watch_nodes()).freed == frozenset()

    run_virtual(main())


def test_behind_a_proxy_that_pools_transactions_no_lock_tells() -> None:
    async def main() -> None:
        stage = DatabaseStage(has_session_locks=False)
        first, second = stage.store("first"), stage.store("second")
        await join(first, "node-1")
        await second.watch_nodes()
        stage.clients["first"].crash()
        await stage.pass_us(3 * SECOND)
        seen = await second.watch_nodes()
        assert ([row.id for row in seen.nodes], seen.freed) == (["node-1"], frozenset())
        assert not await first.owns_by_lock("node-1")

    run_virtual(main())


def test_others_hear_of_a_submission_at_once() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        node, client = stage.store("node"), stage.store("client")
        waiter = asyncio.create_task(node.wait_for_change(stage.clock.boot_us() + 60 * SECOND))
        await stage.pass_us(SECOND)
        await client.submit([make_submission(1)])
        await waiter
        assert stage.loop.elapsed_us < SECOND + 10 * MILLISECOND

    run_virtual(main())


def test_a_commit_tells_what_has_really_changed_with_one_number() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        node, client = stage.store("node"), stage.store("client")
        await join(node, "node-1")
        proofs = await node.take_partitions("node-1", ALL)
        row = make_instance(1)
        request = Request(id="r1", partition=3, kind="cancel", namespace="default", created_us=T0)
        await client.submit([make_submission(1)])
        await client.add_requests([request])
        stage.events.clear()
        batch = CommitBatch(
            proofs=proofs,
            assigns=[make_assign(row), make_assign(make_instance(2))],
            history=[history_row(row), history_row(make_instance(2))],
            answers=[RequestAnswer("r1", 3, "OK", "")],
        )
        assert (await node.commit(batch)).unmatched == {"i000002"}
        (moved,) = stage.of(RowCommitted)
        assert moved.before == row
        assert moved.after == (await node.get_instances([row.id]))[row.id]
        assert (moved.proof, moved.process) == (Proof(3, "node-1", 1), "node")
        assert [told.row.instance_id for told in stage.of(HistoryCommitted)] == [row.id]
        assert [told.answer_code for told in stage.of(RequestCommitted)] == ["OK"]
        assert {event.transaction for event in stage.events} == {moved.transaction}  # type: ignore[attr-defined]  # each of these has one
        await node.remove_node("node-1")
        assert [told.is_there for told in stage.of(NodeRowCommitted)] == [False]
        assert [told.after for told in stage.of(OwnerCommitted)] == [Proof(number, "", 1) for number in ALL]

    run_virtual(main())


@pytest.mark.parametrize("seed", range(3))
def test_one_seed_gives_one_history(seed: int) -> None:
    async def main() -> list[str]:
        stage = DatabaseStage(seed)
        stores = [stage.store(f"node-{number}") for number in range(3)]
        stage.server.break_connections("node-1", there_share=0.2, back_share=0.2)

        async def work(store: SimulatedStore, number: int) -> None:
            for turn in range(20):
                try:
                    await store.submit([make_submission(f"i{turn}-{number}", key=str(turn))])
                except UnavailableError:
                    await stage.pass_us(MILLISECOND)

        await asyncio.gather(*(work(store, number) for number, store in enumerate(stores)))
        return list(map(repr, stage.events))

    assert run_virtual(main()) == run_virtual(main())
