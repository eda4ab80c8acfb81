"""Hard cases of groups G and H that one node shows: told on virtual time."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from support.cluster import ADDRESS, Cluster, python_task, value_of, worker_of
from support.scripted_worker import HEARTBEAT_US, ScriptedWorker

from ostinato.core.definition import TaskDefinition
from ostinato.core.failure.failure import safe_failure
from ostinato.core.ids import new_id
from ostinato.core.instants import HOUR, MINUTE, SECOND
from ostinato.core.model import Instance
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.schedule.trigger import CronTrigger
from ostinato.core.states import Hold, State
from ostinato.scheduler.config import NodeConfig
from ostinato.store.batches import Submission
from ostinato.testing.virtual_clock import run_virtual

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"

EVERY_SECOND = CronTrigger(cron="*/1 * * * * *")
#: Worker and ownership lease, and two seconds (I9 for one node).
PATIENCE_US = 6 * SECOND + 3 * SECOND + 2 * SECOND
STOPPED = safe_failure("CANCELLED", "the attempt was stopped")


# ── C095: nobody can run it ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("overlap", "live"), [("forbid", 1), ("queue", 101), ("replace", 1)])
def test_c095_fires_that_no_worker_can_run_wait_with_the_cause_and_are_bounded_by_the_overlap_rule(
    overlap: str, live: int
) -> None:
    async def story() -> None:
        cluster = Cluster()
        task = python_task(triggers=(EVERY_SECOND,), overlap=overlap)
        await cluster.start(task)
        other = await worker_of(cluster, lambda item: b"1", tasks=["other"])
        await cluster.sleep(HOUR)
        rows = await cluster.instances()
        states = Counter(row.state for row in rows)
        assert sum(states.values()) == 3600
        assert states.keys() <= {State.PENDING, State.SKIPPED, State.CANCELLED}
        assert states[State.PENDING] <= live
        waiting = [row for row in rows if row.state is State.PENDING]
        assert {row.attempt for row in waiting} == {0}
        # The newest may not have been looked at yet; those queued behind another wait for that one.
        held = [row for row in waiting if row.hold is Hold.NO_WORKER]
        assert held
        assert {row.reason for row in held} == {
            "no worker can run default/t: none of the 1 connected knows it"
        }
        assert other.assigned == []
        worker = await worker_of(cluster, lambda item: b"1")
        await cluster.in_state(held[0].id, State.SUCCESS)
        await worker.disconnect()
        await other.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_c095_a_made_up_fire_waits_for_workers_that_come_half_a_minute_late() -> None:
    async def story() -> None:
        cluster = Cluster()
        task = python_task(triggers=(CronTrigger(cron="0 * * * *"),))
        await cluster.start(task)
        await cluster.node.stop()
        await cluster.sleep(65 * MINUTE)
        cluster.node = cluster._node()
        await cluster.node.start()
        await cluster.sleep(30 * SECOND)
        (row,) = await cluster.instances()
        assert row.hold is Hold.NO_WORKER
        worker = await worker_of(cluster, lambda item: b"1")
        await cluster.in_state(row.id, State.SUCCESS)
        assert [item.attempt for item in worker.assigned] == [1]
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_c095_only_a_queue_time_out_ends_what_no_worker_can_run_and_says_what_was_missing() -> None:
    async def story() -> None:
        cluster = Cluster()
        task = python_task(queue_timeout_us=MINUTE)
        await cluster.start(task)
        now_us = cluster.clock.wall_us()
        impatient = await cluster.submit(task, expires_us=now_us + MINUTE)
        patient = await cluster.submit(task)
        failed = await cluster.in_state(impatient, State.FAILED)
        assert failed.finished_us is not None
        assert MINUTE <= failed.finished_us - now_us <= MINUTE + SECOND
        assert "no worker is connected" in failed.reason
        await cluster.sleep(HOUR)
        assert (await cluster.instance(patient)).state is State.PENDING
        await cluster.stop()

    run_virtual(story())


# ── C099, C101: who is lost and who is not ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("half_open", [False, True])
def test_c099_a_run_of_three_hours_with_one_new_stream_is_one_attempt(half_open: bool) -> None:
    """A rebinding NAT leaves the old stream half open; the node learns of it by the new one."""

    async def story() -> None:
        cluster, task = Cluster(), python_task(timeout_us=4 * HOUR)
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(task)
        await cluster.in_state(identity, State.RUNNING)
        await cluster.sleep(90 * MINUTE)
        if not half_open:
            await worker.disconnect()
            await cluster.sleep(SECOND)
        await worker.connect(ADDRESS)
        worker.beat(HEARTBEAT_US)
        await cluster.sleep(90 * MINUTE)
        (item,) = worker.assigned
        await worker.finish(item, b"7")
        done = await cluster.in_state(identity, State.SUCCESS)
        assert (done.attempt, done.counters.lost, done.result) == (1, 0, b"7")
        assert done.finished_us is not None
        assert done.started_us is not None
        assert worker.cancelled == []
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


async def _submit_many(cluster: Cluster, task: TaskDefinition, count: int) -> list[str]:
    """Due now, in order of their ids."""
    now_us = cluster.clock.wall_us()
    (row,) = (await cluster.store.get_tasks([task.ref])).values()
    instances = [
        Instance(
            id=new_id(now_us + number, cluster.rng),
            namespace=task.namespace,
            task=task.name,
            task_version=row.version,
            partition=row.partition,
            state=State.PENDING,
            priority=5,
            due_us=now_us,
            created_us=now_us,
        )
        for number in range(count)
    ]
    for start in range(0, count, 1000):
        await cluster.store.submit([Submission(instance=item) for item in instances[start : start + 1000]])
    return [item.id for item in instances]


def test_c101_lost_attempts_are_found_behind_any_number_of_living_ones() -> None:
    alive_count, lost_count = (20_000, 50) if FULL else (2_000, 50)
    config = NodeConfig(worker_lease_us=6 * SECOND, batch_count=alive_count // 2)

    async def story() -> None:
        cluster, task = Cluster(config=config), python_task()
        await cluster.start(task)
        large = await worker_of(cluster, lambda item: None, slots=alive_count)
        await _submit_many(cluster, task, alive_count)
        await cluster.until(lambda: value_of(len(large.assigned) == alive_count))
        small = ScriptedWorker(
            cluster.network, cluster.clock, lambda item: None, tasks=["t"], slots=lost_count
        )
        small.worker_id = "worker-2"
        await small.connect(ADDRESS)
        small.beat(HEARTBEAT_US)
        # Ids hold their time in milliseconds; these come after all the others.
        await cluster.sleep(SECOND)
        highest = await _submit_many(cluster, task, lost_count)
        await cluster.until(lambda: value_of(len(small.assigned) == lost_count))
        assert min(highest) > max(item.instance_id for item in large.assigned)
        await small.disconnect()
        await cluster.sleep(7 * SECOND)
        rows = await cluster.store.get_instances(highest)
        assert {row.state for row in rows.values()} <= {State.RETRY_WAITING, State.PENDING}
        assert {row.counters.lost for row in rows.values()} == {1}
        living = await cluster.store.get_instances([item.instance_id for item in large.assigned[:1000]])
        assert {(row.state, row.attempt) for row in living.values()} == {(State.RUNNING, 1)}
        await large.disconnect()
        await cluster.stop()

    run_virtual(story())


# ── C043: a loss in mid-run ───────────────────────────────────────────────────────────────────────────────


def test_c043_after_worker_and_scheduler_were_lost_in_mid_run_the_next_fire_runs_within_one_fire() -> None:
    async def story() -> None:
        cluster = Cluster()
        every = CronTrigger(cron="*/2 * * * * *")
        policy = RetryPolicy(max_retry=0, max_lost=0)
        task = python_task(triggers=(every,), overlap="forbid", retry=policy)
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        await cluster.until(lambda: value_of(len(worker.assigned) == 1))
        await worker.disconnect()
        await cluster.restart()
        lost_us = cluster.clock.boot_us()
        heir = ScriptedWorker(cluster.network, cluster.clock, lambda item: b"1", tasks=["t"])
        heir.worker_id = "worker-2"
        await heir.connect(ADDRESS)
        heir.beat(HEARTBEAT_US)
        first = (await cluster.instances())[0]
        await cluster.in_state(first.id, State.FAILED)
        declared_us = cluster.clock.boot_us()
        assert declared_us - lost_us <= PATIENCE_US
        await cluster.until(lambda: value_of(len(heir.assigned) == 1))
        assert cluster.clock.boot_us() - declared_us <= 2 * SECOND
        between = [row for row in await cluster.instances() if row.state is State.SKIPPED]
        assert between, "fires while the attempt might still have been running are skipped, visibly"
        await heir.disconnect()
        await cluster.stop()

    run_virtual(story())
