"""The membership of one node: identity, belief, trouble with the store, what it tells; on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from support.cluster import ADDRESS, Cluster, python_task, value_of
from support.fleet import Fleet, FleetNode, lasting

from ostinato.core.instants import DAY, HOUR, MINUTE, SECOND
from ostinato.core.states import State
from ostinato.observe.records import BacklogMeasured, NodeDeclaredDead, NodeRejoined, PartitionsLost
from ostinato.scheduler.config import NodeConfig
from ostinato.store.batches import NodeRow, NodesSeen, Proof
from ostinato.store.protocol import Store
from ostinato.testing.virtual_clock import run_virtual

#: What a free lock proves: nothing of the process that held it.
_LOCK_IS_FREE = "its session lock is free: it has ended, or its renewal connection was dropped"


def store_of(member: FleetNode) -> Store:
    """The store as this node alone reaches it."""
    return member.node.parts.store


def test_another_server_or_timeline_ends_every_belief_at_once_and_the_node_joins_anew() -> None:
    async def story() -> None:
        fleet, task = Fleet(), python_task()
        first, second = await fleet.open("a b", task)
        fleet.add_worker("w1", lasting(fleet, 20 * SECOND))
        identity = await fleet.submit(task)
        await fleet.in_state(identity, State.RUNNING)
        ids = {first.node_id, second.node_id}

        async def another() -> str:
            return "another timeline"

        changed_us = fleet.clock.boot_us()
        for member in (first, second):
            store_of(member).identity = another  # type: ignore[method-assign]  # after a failover
        await fleet.until(lambda: value_of(bool(first.seen(NodeRejoined) and second.seen(NodeRejoined))))
        assert fleet.clock.boot_us() - changed_us <= 2 * SECOND
        await fleet.settled()
        assert not ids & {first.node_id, second.node_id}
        # Its own former identity is dead for certain: nobody waits for its counter.
        assert fleet.clock.boot_us() - changed_us <= 3 * SECOND
        done = await fleet.in_state(identity, State.SUCCESS)
        assert (done.attempt, len(fleet.executions)) == (1, 1)
        assert len(await fleet.store.nodes()) == 2
        await fleet.close()

    run_virtual(story())


@pytest.mark.parametrize("name", ["watch_nodes", "partition_owners", "now_us", "find_work", "held_tasks"])
def test_a_statement_that_hangs_holds_up_no_renewal(name: str) -> None:
    async def story() -> None:
        fleet = Fleet()
        first, second = await fleet.open("a b")
        ids = {first.node_id, second.node_id}

        async def hang(*_: object, **__: object) -> object:
            return await asyncio.get_running_loop().create_future()

        setattr(store_of(first), name, hang)
        await fleet.sleep(MINUTE)
        assert {first.node_id, second.node_id} == ids
        assert (len(first.owned), len(second.owned)) == (32, 32)
        assert second.seen(NodeDeclaredDead) == []
        await fleet.close()

    run_virtual(story())


def test_a_node_that_does_not_believe_takes_nothing_and_declares_nobody_dead() -> None:
    """Its looks work, its renewals do not."""

    async def story() -> None:
        fleet = Fleet()
        first, _ = await fleet.open("a b")

        async def hang(_: str) -> bool:
            return await asyncio.get_running_loop().create_future()

        store_of(first).renew_node = hang  # type: ignore[method-assign]  # its connection has stalled
        await fleet.sleep(3 * SECOND)
        assert not first.node.parts.ownership.is_believed
        await fleet.end("b", how="kill")
        await fleet.sleep(MINUTE)
        assert first.seen(NodeDeclaredDead) == []
        owners = {proof.owner for proof in await fleet.store.partition_owners()}
        assert first.node_id in owners
        assert first.owned == set()
        await fleet.close()

    run_virtual(story())


def test_a_take_over_whose_answer_was_lost_is_found_in_the_next_look() -> None:
    async def story() -> None:
        fleet = Fleet()
        (first,) = await fleet.open("a")
        second = FleetNode(fleet, "b")
        take = store_of(second).take_partitions
        lost: list[int] = []

        async def take_and_lose_the_answer(
            node_id: str, partitions: Sequence[int], *, dead_nodes: Mapping[str, int] = {}
        ) -> list[Proof]:
            taken = await take(node_id, partitions, dead_nodes=dead_nodes)
            if taken and not lost:
                lost.extend(proof.partition for proof in taken)
                return []
            return taken

        store_of(second).take_partitions = take_and_lose_the_answer  # type: ignore[method-assign]  # its first answer is lost
        fleet.nodes["b"] = second
        await second.node.start()
        await fleet.settled()
        assert set(lost) <= second.owned
        assert len(first.owned) == 32
        await fleet.close()

    run_virtual(story())


def test_a_free_session_lock_is_a_death_that_is_seen_at_once() -> None:
    async def story() -> None:
        fleet = Fleet()
        first, second = await fleet.open("a b")
        dead_id = first.node_id
        await fleet.end("a", how="kill")
        watch_nodes = store_of(second).watch_nodes

        async def with_freed_lock() -> NodesSeen:
            seen = await watch_nodes()
            return NodesSeen(seen.nodes, frozenset({dead_id}))

        store_of(second).watch_nodes = with_freed_lock  # type: ignore[method-assign]  # an adapter with locks
        killed_us = fleet.clock.boot_us()
        await fleet.settled()
        assert fleet.clock.boot_us() - killed_us <= SECOND
        (record,) = second.seen(NodeDeclaredDead)
        assert (record.dead_id, record.reason) == (dead_id, _LOCK_IS_FREE)
        await fleet.close()

    run_virtual(story())


def test_of_a_node_that_lives_and_has_lost_its_lock_no_more_is_told_than_is_known() -> None:
    async def story() -> None:
        fleet = Fleet()
        first, second = await fleet.open("a b")
        former_id = first.node_id
        began = {node.address: node.started_us for node in await fleet.store.nodes()}
        watch_nodes = store_of(second).watch_nodes

        async def with_dropped_connection() -> NodesSeen:
            seen = await watch_nodes()
            return NodesSeen(seen.nodes, frozenset({former_id}))

        store_of(second).watch_nodes = with_dropped_connection  # type: ignore[method-assign]  # an adapter with locks
        await fleet.sleep(5 * SECOND)
        (declared,) = second.seen(NodeDeclaredDead)
        assert (declared.dead_id, declared.reason) == (former_id, _LOCK_IS_FREE)
        (rejoined,) = first.seen(NodeRejoined)
        assert (rejoined.former_id, rejoined.node_id) == (former_id, first.node_id)
        (lost,) = first.seen(PartitionsLost)
        assert lost.reason == "its row is gone: another node has declared it dead"
        # It is the same process, which was started once.
        assert {node.address: node.started_us for node in await fleet.store.nodes()} == began
        await fleet.close()

    run_virtual(story())


def count_deletions(member: FleetNode, calls: list[str]) -> None:
    """Note each time that this node deletes what is too old."""
    delete = store_of(member).delete_finished

    async def counted(**arguments: int) -> int:
        calls.append(member.address)
        return await delete(**arguments)

    store_of(member).delete_finished = counted  # type: ignore[method-assign]  # the same, counted


def test_finished_work_is_deleted_by_one_node_and_live_work_counted_by_one() -> None:
    async def story() -> None:
        config = NodeConfig(
            worker_lease_us=6 * SECOND,
            success_retention_us=HOUR,
            ownership_lease_us=MINUTE,
            renewal_us=20 * SECOND,
            look_us=10 * SECOND,
        )
        fleet, task = Fleet(config=config), python_task()
        members = await fleet.open("a b c", task)
        worker = fleet.add_worker("w1", lasting(fleet, SECOND))
        await fleet.in_state(await fleet.submit(task), State.SUCCESS)
        await worker.kill()
        calls: list[str] = []
        for member in members:
            count_deletions(member, calls)
        await fleet.sleep(20 * MINUTE)
        owner = fleet.owner(0)
        counted_by = [member for member in members if member.seen(BacklogMeasured)]
        assert counted_by == [owner]
        await fleet.sleep(2 * HOUR)
        assert set(calls) == {owner.address}
        assert await fleet.instances() == []
        # Another node counts from now on; the sum over all nodes stays right.
        await fleet.store.remove_node(owner.node_id)
        await fleet.sleep(MINUTE)
        (lost, *_) = owner.seen(PartitionsLost)
        assert lost.owned_count == 0
        await fleet.close()

    run_virtual(story())


def test_the_addresses_of_the_nodes_that_live_are_known_to_each() -> None:
    async def story() -> None:
        fleet = Fleet()
        first, second, third = await fleet.open("a b c")
        await fleet.sleep(SECOND)
        for member in (first, second, third):
            assert sorted(member.node.membership.addresses()) == ["a", "b", "c"]
        await fleet.end("c", how="kill")
        await fleet.settled()
        await fleet.sleep(SECOND)
        assert sorted(first.node.membership.addresses()) == ["a", "b"]
        await fleet.close()

    run_virtual(story())


def test_a_jump_of_the_time_that_one_node_sees_holds_its_fires_alone() -> None:
    async def story() -> None:
        fleet = Fleet()
        first, second = await fleet.open("a b")
        now_us = store_of(first).now_us
        jumps = [DAY]

        async def jumping() -> int:
            return await now_us() + (jumps.pop() if jumps else 0)

        store_of(first).now_us = jumping  # type: ignore[method-assign]  # one sample is wrong
        await fleet.until(lambda: value_of(first.node.parts.time.is_in_doubt))
        assert not second.node.parts.time.is_in_doubt
        assert abs(first.node.parts.time.now_us() - fleet.clock.wall_us()) < SECOND
        await fleet.until(lambda: value_of(not first.node.parts.time.is_in_doubt), within_us=3 * SECOND)
        await fleet.close()

    run_virtual(story())


def test_the_row_of_a_node_tells_where_workers_reach_it() -> None:
    async def story() -> None:
        cluster = Cluster(config=NodeConfig(worker_lease_us=6 * SECOND, address="here:8641"))
        await cluster.start()
        (row,) = await cluster.store.nodes()
        assert (row.id, row.address) == (cluster.node.node_id, "here:8641")
        assert isinstance(row, NodeRow)
        assert cluster.node.address == ADDRESS
        await cluster.stop()

    run_virtual(story())
