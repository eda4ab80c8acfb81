"""Contract of stores: nodes, partitions, epochs, proofs, wake-ups."""

from __future__ import annotations

import asyncio

import pytest

from ostinato.store.batches import CommitBatch, NodeRow, Proof
from ostinato.store.protocol import Store
from ostinato.testing.contracts.store_kit import (
    ALL,
    NODE,
    PARTITION_COUNT,
    SECOND,
    T0,
    ContractClock,
    Owner,
    history_row,
    make_assign,
    make_definition,
    make_instance,
    make_submission,
)


class OwnershipContract:
    async def test_a_new_database_has_every_partition_free_at_epoch_0(self, store: Store) -> None:
        assert store.partition_count == PARTITION_COUNT
        assert await store.partition_owners() == [Proof(number, "", 0) for number in ALL]

    async def test_now_is_the_clock_of_the_database(self, store: Store, clock: ContractClock) -> None:
        assert await store.now_us() == clock.now_us

    async def test_taking_raises_the_epoch_each_time(self, store: Store) -> None:
        owner = await Owner.of(store)
        assert owner.proofs == [Proof(number, NODE, 1) for number in ALL]
        assert await store.take_partitions(NODE, [7, 5]) == [Proof(5, NODE, 2), Proof(7, NODE, 2)]
        assert (await store.partition_owners())[4:8] == [
            Proof(4, NODE, 1),
            Proof(5, NODE, 2),
            Proof(6, NODE, 1),
            Proof(7, NODE, 2),
        ]

    async def test_a_node_without_a_row_takes_nothing(self, store: Store) -> None:
        assert await store.take_partitions("nobody", ALL) == []
        assert {proof.owner for proof in await store.partition_owners()} == {""}

    async def test_renewal_counts_until_the_row_is_gone(self, store: Store) -> None:
        await store.register_node(NodeRow(NODE, 0, "127.0.0.1:8640", T0))
        assert await store.renew_node(NODE)
        assert await store.renew_node(NODE)
        assert await store.nodes() == [NodeRow(NODE, 2, "127.0.0.1:8640", T0)]
        await store.remove_node(NODE)
        assert not await store.renew_node(NODE)
        assert await store.nodes() == []

    async def test_a_node_s_standing_is_kept_through_its_renewals(self, store: Store) -> None:
        await store.register_node(NodeRow(NODE, 0, "127.0.0.1:8640", T0))
        for standing in ("serving", "idle", ""):
            await store.note_standing(NODE, standing)
            assert await store.renew_node(NODE)
            (row,) = await store.nodes()
            assert row.standing == standing
            assert (await store.watch_nodes()).nodes == (row,)
        await store.note_standing("nobody", "idle")
        assert await store.nodes() == [row]

    async def test_removing_a_node_frees_its_partitions_and_keeps_their_epochs(self, store: Store) -> None:
        await Owner.of(store)
        await store.remove_node(NODE)
        await store.remove_node(NODE)
        assert await store.partition_owners() == [Proof(number, "", 1) for number in ALL]

    # ── proofs ───────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize(
        "proof", [Proof(3, NODE, 1), Proof(3, "node-2", 2), Proof(3, "", 2), Proof(3, NODE, 3)]
    )
    async def test_a_stale_or_foreign_proof_writes_nothing(self, store: Store, proof: Proof) -> None:
        """I5: the epoch is 2 here, of node-1."""
        owner = await Owner.of(store)
        await store.take_partitions(NODE, [3])
        row = make_instance(1)
        await owner.submit(row)
        batch = CommitBatch(
            proofs=[proof],
            assigns=[make_assign(row)],
            inserts=[make_instance(2)],
            history=[history_row(row, unconditional=True)],
        )
        report = await store.commit(batch)
        assert report.lost_partitions == {3}
        assert not report.unmatched
        assert await owner.get(row.id) == row
        assert await store.get_instances(["i000002"]) == {}
        assert await store.history(row.id) == []

    async def test_rows_without_any_proof_are_not_written(self, store: Store) -> None:
        owner = await Owner.of(store)
        row = make_instance(1)
        await owner.submit(row)
        report = await store.commit(CommitBatch(proofs=[owner.proofs[4]], assigns=[make_assign(row)]))
        assert report.lost_partitions == {3}
        assert await owner.get(row.id) == row

    async def test_only_the_lost_partition_of_a_batch_is_left_out(self, store: Store) -> None:
        owner = await Owner.of(store)
        await store.take_partitions(NODE, [3])
        rows = [make_instance(1, partition=3), make_instance(2, partition=4)]
        await owner.submit(*rows)
        batch = owner.batch()
        batch.assigns = [make_assign(row) for row in rows]
        batch.history = [history_row(row) for row in rows]
        report = await store.commit(batch)
        assert report.lost_partitions == {3}
        assert await owner.get("i000001") == rows[0]
        assert (await owner.get("i000002")).attempt == 1
        assert await store.history("i000001") == []
        assert len(await store.history("i000002")) == 1

    async def test_a_proof_of_another_partition_does_not_move_a_row(self, store: Store) -> None:
        owner = await Owner.of(store)
        row = make_instance(1, partition=3)
        await owner.submit(row)
        report = await store.commit(
            CommitBatch(proofs=[owner.proofs[4]], assigns=[make_assign(row, partition=4)])
        )
        assert report.unmatched == {row.id}
        assert await owner.get(row.id) == row

    # ── wake-ups ─────────────────────────────────────────────────────────────────────────────────────

    async def test_waiting_ends_at_the_time_given(self, store: Store, clock: ContractClock) -> None:
        until = clock.boot_us() + SECOND // 20
        await store.wait_for_change(until)
        assert clock.boot_us() >= until
        await store.wait_for_change(0)

    async def test_waiting_ends_with_a_submission(self, store: Store, clock: ContractClock) -> None:
        waiter = asyncio.create_task(store.wait_for_change(clock.boot_us() + 60 * SECOND))
        await asyncio.wait([waiter], timeout=0.05)
        assert not waiter.done()
        await store.submit([make_submission(1)])
        await asyncio.wait_for(waiter, 5)

    async def test_a_change_before_the_wait_is_not_missed(self, store: Store, clock: ContractClock) -> None:
        far_us = clock.boot_us() + 60 * SECOND
        await store.apply([make_definition()], now_us=T0)
        await asyncio.wait_for(store.wait_for_change(far_us), 5)
        # Told once: the same change does not end the next wait.
        again = asyncio.create_task(store.wait_for_change(far_us))
        await asyncio.wait([again], timeout=0.1)
        assert not again.done()
        again.cancel()

    async def test_every_waiter_is_told(self, store: Store, clock: ContractClock) -> None:
        far_us = clock.boot_us() + 60 * SECOND
        waiters = [asyncio.create_task(store.wait_for_change(far_us)) for _ in range(3)]
        await asyncio.wait(waiters, timeout=0.05)
        await store.submit([make_submission(1)])
        done, waiting = await asyncio.wait(waiters, timeout=5)
        assert (len(done), len(waiting)) == (3, 0)


class ManyNodesContract:
    """For adapters whose ``capabilities.many_nodes`` is true."""

    async def test_a_living_node_keeps_its_partitions(self, store: Store) -> None:
        await Owner.of(store)
        await store.register_node(NodeRow("node-2", 0, "", T0))
        assert await store.take_partitions("node-2", [1, 2]) == []

    async def test_a_dead_node_loses_row_and_partitions_together(self, store: Store) -> None:
        await Owner.of(store)
        await store.register_node(NodeRow("node-2", 0, "", T0))
        taken = await store.take_partitions("node-2", [1, 2], dead_nodes={NODE: 0})
        assert taken == [Proof(1, "node-2", 2), Proof(2, "node-2", 2)]
        assert not await store.renew_node(NODE)
        # The rest belongs to a node without a row: free for whoever comes.
        assert await store.take_partitions("node-2", [3]) == [Proof(3, "node-2", 2)]

    async def test_a_node_that_has_renewed_itself_since_it_was_found_dead_lives(self, store: Store) -> None:
        await Owner.of(store)
        await store.register_node(NodeRow("node-2", 0, "", T0))
        assert await store.renew_node(NODE)
        assert await store.take_partitions("node-2", [1, 2], dead_nodes={NODE: 0}) == []
        assert await store.renew_node(NODE)
        assert (await store.partition_owners())[1] == Proof(1, NODE, 1)

    async def test_released_partitions_are_free_for_others_at_their_epoch(self, store: Store) -> None:
        await Owner.of(store)
        await store.register_node(NodeRow("node-2", 0, "", T0))
        await store.release_partitions("node-2", [1])
        await store.release_partitions(NODE, [2, 3])
        assert (await store.partition_owners())[1:4] == [Proof(1, NODE, 1), Proof(2, "", 1), Proof(3, "", 1)]
        assert await store.take_partitions("node-2", [1, 2]) == [Proof(2, "node-2", 2)]
