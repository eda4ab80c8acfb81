"""Several nodes share the partitions: joining, leaving, dying, freezing; on virtual time."""

from __future__ import annotations

from support.cluster import python_task
from support.fleet import OWNERSHIP_LEASE_US, WORKER_LEASE_US, Fleet, FleetNode, lasting

from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.states import State
from ostinato.observe.records import (
    NodeDeclaredDead,
    NodeRejoined,
    PartitionsReleased,
    PartitionsTaken,
    WritesRefused,
)
from ostinato.testing.virtual_clock import run_virtual


def test_nodes_that_join_get_their_share_and_a_clean_stop_hands_over_at_once() -> None:
    async def story() -> None:
        fleet = Fleet()
        await fleet.open("a")
        assert len(fleet.nodes["a"].owned) == 64
        joined_us = fleet.clock.boot_us()
        second = await fleet.add("b")
        assert second.node.ready()["ready"] is True
        await fleet.settled()
        assert fleet.clock.boot_us() - joined_us <= 2 * SECOND
        await fleet.add("c")
        await fleet.settled()
        assert sorted(len(member.owned) for member in fleet.nodes.values()) == [21, 21, 22]
        left_us = fleet.clock.boot_us()
        await fleet.end("a")
        await fleet.settled()
        assert fleet.clock.boot_us() - left_us <= SECOND
        await fleet.end("b")
        await fleet.settled()
        assert len(fleet.nodes["c"].owned) == 64
        await fleet.close()

    run_virtual(story())


def test_only_what_is_too_much_moves_and_nothing_moves_without_a_change() -> None:
    async def story() -> None:
        fleet = Fleet()
        first, second = await fleet.open("a b")
        before = {"a": first.owned, "b": second.owned}
        await fleet.sleep(300 * SECOND)
        assert before == {"a": first.owned, "b": second.owned}
        assert len(first.seen(PartitionsReleased)) == 1
        third = await fleet.add("c")
        await fleet.settled()
        assert first.owned < before["a"]
        assert second.owned < before["b"]
        assert third.owned == (before["a"] - first.owned) | (before["b"] - second.owned)
        await fleet.close()

    run_virtual(story())


def test_a_killed_node_s_partitions_are_taken_after_its_lease_and_margin() -> None:
    async def story() -> None:
        fleet = Fleet()
        first, _, _ = await fleet.open("a b c")
        await fleet.sleep(5 * SECOND)
        dead_id, killed_us = first.node_id, fleet.clock.boot_us()
        await fleet.end("a", how="kill")
        await fleet.settled()
        took_us = fleet.clock.boot_us() - killed_us
        assert OWNERSHIP_LEASE_US - SECOND <= took_us <= OWNERSHIP_LEASE_US + SECOND
        found = fleet.nodes["b"].seen(NodeDeclaredDead) + fleet.nodes["c"].seen(NodeDeclaredDead)
        assert {record.dead_id for record in found} == {dead_id}
        assert {node.id for node in await fleet.store.nodes()} == {
            member.node_id for member in fleet.nodes.values()
        }
        await fleet.close()

    run_virtual(story())


def test_running_attempts_go_on_through_take_overs_and_their_results_count_once() -> None:
    """Kill, clean stop and rebalancing while work runs: nothing lost, nothing doubled."""

    async def story() -> None:
        fleet, task = Fleet(), [python_task(name) for name in ("t", "u", "v", "w", "x", "y")]
        await fleet.open("a b c", *task)
        names = " ".join(definition.name for definition in task)
        fleet.add_worker("w1", lasting(fleet, 40 * SECOND), tasks=names)
        fleet.add_worker("w2", lasting(fleet, 40 * SECOND), tasks=names)
        ids = [await fleet.submit(definition) for definition in task * 4]
        for identity in ids:
            await fleet.in_state(identity, State.RUNNING)
        await fleet.end("a", how="kill")
        await fleet.settled()
        await fleet.sleep(12 * SECOND)
        await fleet.end("b")
        await fleet.settled()
        await fleet.sleep(12 * SECOND)
        await fleet.add("a")
        await fleet.settled()
        await fleet.all_ended()
        rows = [await fleet.instance(identity) for identity in ids]
        assert {(row.state, row.attempt) for row in rows} == {(State.SUCCESS, 1)}
        assert len(fleet.executions) == len(ids)
        await fleet.close()

    run_virtual(story())


def test_a_frozen_owner_writes_and_dispatches_nothing_when_it_wakes() -> None:
    async def story() -> None:
        fleet, task = Fleet(), python_task()
        await fleet.open("a b", task)
        (partition,) = {(await fleet.store.get_tasks([task.ref]))[task.ref].partition}
        frozen = fleet.owner(partition)
        fleet.add_worker("w1", lasting(fleet, SECOND))
        await fleet.sleep(2 * SECOND)
        former_id = frozen.node_id
        frozen.freeze()
        identity = await fleet.submit(task)
        await fleet.in_state(identity, State.SUCCESS)
        await fleet.sleep(10 * SECOND)
        assigned = len(fleet.executions)
        frozen.thaw()
        await fleet.settled()
        assert assigned == len(fleet.executions) == 1
        (record,) = frozen.seen(NodeRejoined)
        assert record.former_id == former_id != frozen.node_id
        assert len(frozen.owned) == 32
        await fleet.close()

    run_virtual(story())


def test_a_decision_that_was_under_way_when_its_owner_froze_is_refused_by_proof_and_counted() -> None:
    async def story() -> None:
        fleet, task = Fleet(), python_task()
        await fleet.open("a b", task)
        row = (await fleet.store.get_tasks([task.ref]))[task.ref]
        frozen = fleet.owner(row.partition)
        worker = fleet.add_worker("w1", lasting(fleet, SECOND))
        await fleet.sleep(2 * SECOND)
        # Found due by its owner, which freezes before it can commit the assignment.
        find_work = frozen.node.dispatch._store.find_work

        async def find_then_freeze(*args: object, **named: object) -> object:
            found = await find_work(*args, **named)  # type: ignore[arg-type]  # as it was called
            if found.instances:
                frozen.freeze()
                await frozen.gate.passed()
            return found

        frozen.node.dispatch._store.find_work = find_then_freeze  # type: ignore[method-assign]  # the moment of the freeze
        identity = await fleet.submit(task)
        done = await fleet.in_state(identity, State.SUCCESS)
        assert done.attempt == 1
        frozen.node.dispatch._store.find_work = find_work  # type: ignore[method-assign]  # as before
        frozen.thaw()
        await fleet.settled()
        await fleet.sleep(10 * SECOND)
        refused = frozen.seen(WritesRefused)
        assert [(record.count, record.partition_count) for record in refused] == [(1, 1)]
        assert (await fleet.instance(identity)).attempt == 1
        assert len(fleet.executions) == 1
        assert worker.refused_count == 0
        await fleet.close()

    run_virtual(story())


def test_a_node_whose_row_is_gone_forgets_all_and_comes_back_as_another_in_the_same_process() -> None:
    async def story() -> None:
        fleet = Fleet()
        first, second = await fleet.open("a b")
        former_id = first.node_id
        fleet.add_worker("w1", lasting(fleet, SECOND))
        await fleet.sleep(2 * SECOND)
        await fleet.store.remove_node(former_id)
        await fleet.until(lambda: _is(first.node_id != former_id))
        await fleet.settled()
        assert first.node.ready()["ready"] is True
        (record,) = first.seen(NodeRejoined)
        assert (record.former_id, record.node_id) == (former_id, first.node_id)
        # Its worker has greeted the new identity, and the lists say so.
        await fleet.until(lambda: _is_connected(fleet, first.node_id))
        assert len(second.owned) == 32
        await fleet.close()

    run_virtual(story())


def test_c105_each_start_under_the_same_name_is_a_node_of_its_own() -> None:
    """Never two owners of a partition at one epoch, whatever the address is called."""

    async def story() -> None:
        fleet = Fleet()
        await fleet.open("a b")
        ids = {member.node_id for member in fleet.nodes.values()}
        twin = FleetNode(fleet, "c")
        # It tells workers the address that another node tells them.
        twin.node.parts.ownership._config = fleet.config_of("a")
        fleet.nodes["c"] = twin
        await twin.node.start()
        await fleet.settled()
        assert twin.node_id not in ids
        assert sorted(row.address for row in await fleet.store.nodes()) == ["a", "a", "b"]
        owners = await fleet.store.partition_owners()
        assert len({proof.owner for proof in owners}) == 3
        await fleet.close()

    run_virtual(story())


def test_c097_a_node_killed_and_restarted_under_its_name_fifty_times_leaves_nothing_running() -> None:
    async def story() -> None:
        fleet, task = Fleet(), python_task(overlap="allow")
        await fleet.open("node-1", task)
        fleet.add_worker("w1", lasting(fleet, 2 * SECOND))
        row = (await fleet.store.get_tasks([task.ref]))[task.ref]
        epochs = [(await fleet.store.partition_owners())[row.partition].epoch]
        for _ in range(50):
            await fleet.submit(task)
            await fleet.sleep(300 * MILLISECOND)
            await fleet.end("node-1", how="kill")
            await fleet.sleep(500 * MILLISECOND)
            await fleet.add("node-1")
            await fleet.settled()
            epochs.append((await fleet.store.partition_owners())[row.partition].epoch)
        assert epochs == sorted(set(epochs))
        await fleet.all_ended(within_us=2 * OWNERSHIP_LEASE_US + WORKER_LEASE_US + 20 * SECOND)
        assert {row.state for row in await fleet.instances()} == {State.SUCCESS}
        await fleet.close()

    run_virtual(story())


def test_c109_after_an_outage_of_the_database_nobody_is_declared_dead_who_comes_back_a_moment_later() -> None:
    async def story() -> None:
        fleet, task = Fleet(), python_task(overlap="allow")
        first, second = await fleet.open("a b", task)
        fleet.add_worker("w1", lasting(fleet, 20 * SECOND))
        await fleet.sleep(2 * SECOND)
        ids = {first.node_id, second.node_id}
        taken = len(first.seen(PartitionsTaken)) + len(second.seen(PartitionsTaken))
        first.gate.is_cut_off = second.gate.is_cut_off = True
        await fleet.sleep(300 * SECOND)
        assert first.owned == second.owned == set()
        waiting = [await fleet.submit(task) for _ in range(5)]
        first.gate.is_cut_off = False
        await fleet.sleep(3 * SECOND)
        second.gate.is_cut_off = False
        for identity in waiting:
            await fleet.in_state(identity, State.SUCCESS)
        assert {first.node_id, second.node_id} == ids
        assert taken == len(first.seen(PartitionsTaken)) + len(second.seen(PartitionsTaken))
        assert len(fleet.executions) == 5
        await fleet.close()

    run_virtual(story())


async def _is(condition: bool) -> bool:
    return condition


async def _is_connected(fleet: Fleet, node_id: str) -> bool:
    return any(row.node_id == node_id and row.state == "connected" for row in await fleet.store.workers())
