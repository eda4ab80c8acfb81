"""A node that its workers cannot reach, while it reaches the database; on virtual time."""

from __future__ import annotations

from support.cluster import python_task, value_of
from support.fleet import WORKER_LEASE_US, Fleet, FleetNode, lasting

from ostinato.core.instants import MINUTE, SECOND
from ostinato.core.states import State
from ostinato.observe.records import NodeIdle, NodeServing, PartitionsReleased
from ostinato.testing.virtual_clock import run_virtual

_TASKS = [python_task(f"t{number}", overlap="allow") for number in range(8)]
_NAMES = " ".join(task.name for task in _TASKS)


def moves_of(members: list[FleetNode]) -> int:
    """How often one of them has handed something over."""
    return sum(len(member.seen(PartitionsReleased)) for member in members)


def test_its_partitions_go_to_nodes_that_workers_reach_and_what_ran_goes_on() -> None:
    async def story() -> None:
        fleet = Fleet()
        members = await fleet.open("a b c", *_TASKS)
        workers = [fleet.add_worker(name, lasting(fleet, 15 * SECOND), tasks=_NAMES) for name in ("w1", "w2")]
        running = [await fleet.submit(task) for task in _TASKS]
        for identity in running:
            await fleet.in_state(identity, State.RUNNING)
        first, moved = fleet.nodes["a"], moves_of(members)
        assert first.owned
        cut_us = fleet.clock.boot_us()
        for worker in workers:
            worker.cut("a")
        waiting = [await fleet.submit(task) for task in _TASKS]
        await fleet.until(lambda: value_of(not first.owned), within_us=WORKER_LEASE_US)
        assert fleet.clock.boot_us() - cut_us <= WORKER_LEASE_US // 2 + SECOND
        (record,) = first.seen(NodeIdle)
        assert record.count in (21, 22)
        assert first.node.ready()["idle"] is True
        for identity in (*running, *waiting):
            assert (await fleet.in_state(identity, State.SUCCESS)).attempt == 1
        assert fleet.clock.boot_us() - cut_us <= MINUTE
        await fleet.sleep(MINUTE)
        assert sorted(len(member.owned) for member in members) == [0, 32, 32]
        assert moves_of(members) == moved + 1
        # One that is reached again takes its share.
        workers[0].dial("a")
        await fleet.settled(within_us=10 * SECOND)
        assert len(first.seen(NodeServing)) == 1
        assert [member.seen(NodeIdle) for member in members[1:]] == [[], []]
        assert first.node.ready()["idle"] is False
        await fleet.close()

    run_virtual(story())


def test_without_any_worker_every_node_keeps_what_it_owns() -> None:
    async def story() -> None:
        fleet = Fleet()
        members = await fleet.open("a b c", *_TASKS)
        before, moved = [member.owned for member in members], moves_of(members)
        await fleet.sleep(10 * WORKER_LEASE_US)
        worker = fleet.add_worker("w1", lasting(fleet, SECOND), tasks=_NAMES)
        await fleet.sleep(10 * WORKER_LEASE_US)
        await worker.kill()
        await fleet.sleep(10 * WORKER_LEASE_US)
        assert [member.owned for member in members] == before
        assert moves_of(members) == moved
        assert all(not member.seen(NodeIdle) for member in members)
        await fleet.close()

    run_virtual(story())


def test_workers_that_restart_one_after_the_other_move_nothing() -> None:
    async def story() -> None:
        fleet = Fleet()
        members = await fleet.open("a b", *_TASKS)
        moved = moves_of(members)
        worker = fleet.add_worker("w0", lasting(fleet, SECOND), tasks=_NAMES)
        for number in range(1, 20):
            await fleet.sleep(WORKER_LEASE_US)
            await worker.kill()
            worker = fleet.add_worker(f"w{number}", lasting(fleet, SECOND), tasks=_NAMES)
            worker.cut("a")
            await fleet.sleep(WORKER_LEASE_US // 3)
            worker.dial("a")
        assert moves_of(members) == moved
        await fleet.close()

    run_virtual(story())


def test_a_link_that_comes_and_goes_moves_partitions_only_at_its_own_pace() -> None:
    async def story() -> None:
        fleet = Fleet()
        members = await fleet.open("a b", *_TASKS)
        worker = fleet.add_worker("w1", lasting(fleet, SECOND), tasks=_NAMES)
        rounds, moved = 10, moves_of(members)
        for _ in range(rounds):
            worker.cut("a")
            await fleet.sleep(WORKER_LEASE_US)
            worker.dial("a")
            await fleet.sleep(2 * SECOND)
        assert rounds <= moves_of(members) - moved <= 2 * rounds
        await fleet.settled()
        await fleet.close()

    run_virtual(story())


def test_a_node_alone_with_its_workers_gone_keeps_everything_and_takes_over_when_idle() -> None:
    async def story() -> None:
        fleet = Fleet()
        first, second = await fleet.open("a b", *_TASKS)
        worker = fleet.add_worker("w1", lasting(fleet, SECOND), tasks=_NAMES)
        worker.cut("a")
        await fleet.until(lambda: value_of(not first.owned), within_us=2 * WORKER_LEASE_US)
        assert len(second.owned) == 64
        # Idle, it is better than nobody.
        await fleet.end("b", how="kill")
        await fleet.until(lambda: value_of(len(first.owned) == 64), within_us=10 * SECOND)
        await fleet.close()

    run_virtual(story())
