"""The real node, supervisor and control code in simulated processes, each fault by itself."""

from __future__ import annotations

import asyncio
from collections import Counter

from support.simulated import SimulatedCluster, assert_single_execution, executions, short

from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.states import State
from ostinato.observe.records import TreeEndReported
from ostinato.scheduler.config import NodeConfig
from ostinato.simulation.executions import work_for
from ostinato.simulation.history import Observed
from ostinato.simulation.worker_host import WorkerHost

WORKER_LEASE_US = 6 * SECOND


async def long() -> str:
    """User code that takes half a minute."""
    await work_for(30 * SECOND)
    return "done"


async def running_at(made: SimulatedCluster) -> tuple[str, WorkerHost]:
    """Submit a long task, wait until it runs; its id, and the worker that runs it."""
    instance_id = await made.submit("long")
    await made.until(lambda: [began for began, ended in executions(made.events) if ended is None])
    (began,) = [began for began, ended in executions(made.events) if ended is None]
    (host,) = [worker for worker in made.workers if worker.name == began.machine]
    return instance_id, host


def cluster_of(*, worker_lease_us: int = WORKER_LEASE_US, **said: int) -> SimulatedCluster:
    config = NodeConfig(worker_lease_us=worker_lease_us)
    cluster = SimulatedCluster(1, config=config, **said)
    retry = RetryPolicy(interval_us=SECOND, max_retry=3, max_lost=50)
    cluster.task("short", short, retry=retry)
    cluster.task("long", long, retry=retry)
    return cluster


def reports(made: SimulatedCluster) -> list[str]:
    """Why trees have ended, as nodes were told."""
    records = [event.record for event in made.events if isinstance(event, Observed)]
    return [record.reason for record in records if isinstance(record, TreeEndReported)]


def second_start_us(made: SimulatedCluster, instance_id: str) -> int:
    began = [began for began, _ in executions(made.events) if began.instance_id == instance_id]
    return began[1].at_us


def test_what_is_submitted_is_executed_once() -> None:
    cluster = cluster_of()

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        for _ in range(20):
            assert await made.submit("short")
        await made.all_ended()
        assert Counter(row.state for row in await made.instances()) == {"success": 20}

    cluster.run(story)
    told = executions(cluster.events)
    assert len({began.instance_id for began, _ in told}) == len(told) == 20
    assert [ended.how for _, ended in told if ended is not None] == ["returned"] * 20


def test_a_killed_supervisor_s_guardian_ends_its_tree_and_reports_it_at_once() -> None:
    cluster = cluster_of()

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        instance_id, host = await running_at(made)
        killed_us = made.loop.true_us
        host.kill()
        await made.until(lambda: len(executions(made.events)) == 2)
        (_, ended), _ = executions(made.events)
        assert ended is not None
        assert ended.how == "killed"
        assert ended.at_us - killed_us < 100 * MILLISECOND
        # Long before the lease is over.
        assert second_start_us(made, instance_id) - killed_us < 3 * SECOND
        assert "the supervisor is gone" in reports(made)[0]
        await made.until(lambda: host.machine.processes == [])
        host.start()
        await made.all_ended()

    cluster.run(story)
    assert_single_execution(cluster.events)


def test_a_frozen_supervisor_s_attempts_end_before_its_lease_does() -> None:
    cluster = cluster_of()

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        instance_id, host = await running_at(made)
        await made.sleep(3 * SECOND)
        frozen_us = made.loop.true_us
        host.freeze()
        await made.until(lambda: len(executions(made.events)) == 2)
        (_, ended), _ = executions(made.events)
        assert ended is not None
        assert ended.at_us - frozen_us < WORKER_LEASE_US - 700 * MILLISECOND
        assert second_start_us(made, instance_id) > ended.at_us
        assert "its lease ended" in reports(made)[0]
        host.thaw()
        await made.all_ended()
        (row,) = await made.instances()
        assert (row.state, row.counters.lost) == (State.SUCCESS, 1)

    cluster.run(story)
    assert_single_execution(cluster.events)


def test_a_killed_guardian_takes_its_processes_with_it_and_is_replaced() -> None:
    cluster = cluster_of(workers=1)

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        _, host = await running_at(made)
        first = host.guardian
        host.kill_guardian()
        await made.until(lambda: host.guardian is not first)
        await made.all_ended()
        (row,) = await made.instances()
        assert (row.state, row.counters.lost) == (State.SUCCESS, 1)

    cluster.run(story)
    assert_single_execution(cluster.events)


def test_a_frozen_guardian_is_killed_by_its_supervisor() -> None:
    cluster = cluster_of(workers=1)

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        _, host = await running_at(made)
        first = host.guardian
        assert first is not None
        host.freeze_guardian()
        await made.until(lambda: not first.process.is_alive, within_us=10 * SECOND)
        await made.all_ended()

    cluster.run(story)
    assert_single_execution(cluster.events)
    assert [ended.how for _, ended in executions(cluster.events) if ended] == ["killed", "returned"]


def test_a_frozen_guardian_whose_supervisor_was_killed_is_the_one_that_is_thawed() -> None:
    cluster = cluster_of(workers=1)

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        _, host = await running_at(made)
        first = host.guardian
        assert first is not None
        host.freeze_guardian()
        host.kill()
        host.start()
        await made.until(lambda: host.guardian is not first)
        assert first.process.is_alive
        host.thaw_guardian()
        await made.until(lambda: not first.process.is_alive, within_us=30 * SECOND)
        await made.all_ended()

    cluster.run(story)
    assert_single_execution(cluster.events)


def test_a_lost_machine_s_instance_runs_elsewhere_once_its_lease_is_over() -> None:
    cluster = cluster_of()

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        instance_id, host = await running_at(made)
        lost_us = made.loop.true_us
        host.crash_machine()
        await made.until(lambda: len(executions(made.events)) == 2)
        waited_us = second_start_us(made, instance_id) - lost_us
        assert WORKER_LEASE_US - SECOND < waited_us < WORKER_LEASE_US + 3 * SECOND
        host.start()
        await made.all_ended()

    cluster.run(story)
    assert_single_execution(cluster.events)


def test_a_suspended_machine_does_nothing_and_ends_its_attempt_when_it_wakes() -> None:
    cluster = cluster_of()

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        instance_id, host = await running_at(made)
        host.machine.suspend()
        await made.sleep(15 * SECOND)
        first, second = executions(made.events)
        assert first[1] is None
        assert second[0].machine != host.name
        host.machine.wake()
        await made.sleep(SECOND)
        first, second = executions(made.events)
        assert first[1] is not None
        # Which of supervisor and guardian is first is chance.
        assert first[1].how in ("raised", "killed")
        assert second[1] is None
        await made.all_ended()
        assert [row.id for row in await made.instances()] == [instance_id]

    cluster.run(story)


def test_a_killed_node_s_attempts_are_adopted_by_the_next() -> None:
    cluster = cluster_of(worker_lease_us=12 * SECOND)

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        await running_at(made)
        for node in made.nodes:
            node.kill()
            await made.sleep(2 * SECOND)
            node.start()
            await made.sleep(6 * SECOND)
        await made.all_ended()

    cluster.run(story)
    assert [ended.how for _, ended in executions(cluster.events) if ended] == ["returned"]


def test_a_stopped_node_hands_over_and_ends() -> None:
    cluster = cluster_of()

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        await running_at(made)
        node = made.nodes[0]
        node.stop()
        await made.until(lambda: not node.is_running)
        assert [row.address for row in await made.store.nodes()] == ["n2"]
        await made.all_ended()

    cluster.run(story)
    assert [ended.how for _, ended in executions(cluster.events) if ended] == ["returned"]


def test_a_frozen_node_loses_its_partitions_and_joins_again() -> None:
    cluster = cluster_of()

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        await made.sleep(5 * SECOND)
        made.nodes[0].freeze()
        await made.sleep(8 * SECOND)
        assert [row.address for row in await made.store.nodes()] == ["n2"]
        made.nodes[0].thaw()
        await made.sleep(8 * SECOND)
        assert sorted(row.address for row in await made.store.nodes()) == ["n1", "n2"]
        await made.submit("short")
        await made.all_ended()

    cluster.run(story)
    assert_single_execution(cluster.events)


def test_a_result_that_no_node_could_take_is_brought_from_the_spool() -> None:
    cluster = cluster_of(workers=1)

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        await made.sleep(2 * SECOND)
        await made.submit("short")
        await made.until(lambda: executions(made.events))
        for node in made.nodes:
            node.kill()
        await made.until(lambda: executions(made.events)[0][1])
        await made.sleep(SECOND)
        made.workers[0].kill()
        await made.sleep(SECOND)
        for node in made.nodes:
            node.start()
        made.workers[0].start()
        await made.all_ended()
        (row,) = await made.instances()
        assert (row.state, row.attempt) == (State.SUCCESS, 1)

    cluster.run(story)


def test_a_drained_worker_ends_when_its_work_has() -> None:
    cluster = cluster_of(workers=1)

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        await made.submit("short")
        await made.until(lambda: executions(made.events))
        made.workers[0].drain()
        await made.until(lambda: not made.workers[0].is_running)
        await made.all_ended()
        await made.sleep(SECOND)
        assert made.workers[0].machine.processes == []
        assert made.workers[0].machine.disk.names() == []

    cluster.run(story)
    assert [ended.how for _, ended in executions(cluster.events) if ended] == ["returned"]


def test_a_cancel_ends_what_runs_and_is_answered() -> None:
    cluster = cluster_of()

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        instance_id, _ = await running_at(made)
        assert await made.client.cancel(instance_id, reason="not needed") == "OK"
        await made.all_ended()
        (row,) = await made.instances()
        assert row.state is State.CANCELLED
        assert await made.client.replay(instance_id) == "OK"
        assert await made.client.cancel(instance_id) == "OK"
        await made.all_ended()

    cluster.run(story)
    assert_single_execution(cluster.events)


def test_a_def_task_that_is_told_to_end_goes_on_until_it_is_killed() -> None:
    cluster = SimulatedCluster(1)
    cluster.task("long", long, is_async=False, grace_us=2 * SECOND)

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        instance_id, _ = await running_at(made)
        cancelled_us = made.loop.true_us
        await made.client.cancel(instance_id)
        await made.all_ended()
        ((_, ended),) = executions(made.events)
        assert ended is not None
        assert ended.how == "killed"
        assert 2 * SECOND <= ended.at_us - cancelled_us < 3 * SECOND

    cluster.run(story)


def test_a_neighbour_of_one_that_had_to_be_killed_is_lost_uncounted() -> None:
    """All ``async def`` tasks of a worker share a process, which dies with the one that does not end."""
    cluster = SimulatedCluster(1, workers=1)

    async def stubborn() -> None:
        for _ in range(2):
            try:
                await work_for(30 * SECOND)
            except asyncio.CancelledError:
                continue

    cluster.task("long", long)
    cluster.task("stubborn", stubborn, grace_us=SECOND)

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        await running_at(made)
        instance_id = await made.submit("stubborn")
        await made.until(lambda: len(executions(made.events)) == 2)
        await made.client.cancel(instance_id)
        await made.all_ended()
        rows = {row.task: row for row in await made.instances()}
        assert rows["stubborn"].state is State.CANCELLED
        neighbour = rows["long"]
        assert (neighbour.state, neighbour.attempt, neighbour.counters.lost) == (State.SUCCESS, 2, 0)

    cluster.run(story)
    assert_single_execution(cluster.events)


def test_a_killed_process_of_a_task_fails_its_attempt_at_once() -> None:
    cluster = SimulatedCluster(1)
    cluster.task("long", long, is_async=False)

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        instance_id, host = await running_at(made)
        killed_us = made.loop.true_us
        for process in host.tasks:
            process.crash()
        await made.all_ended()
        assert second_start_us(made, instance_id) - killed_us < 3 * SECOND
        (row,) = await made.instances()
        assert (row.state, row.counters.failures) == (State.SUCCESS, 1)

    cluster.run(story)
    assert_single_execution(cluster.events)


def test_a_slow_node_and_a_slow_worker_get_their_work_done() -> None:
    cluster = cluster_of()

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        await made.sleep(2 * SECOND)
        for host in (*made.nodes, *made.workers):
            host.slow(3 * MILLISECOND)
        for _ in range(5):
            await made.submit("short")
        await made.all_ended()

    cluster.run(story)
    assert_single_execution(cluster.events)
    assert len(executions(cluster.events)) == 5
