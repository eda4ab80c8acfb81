"""A real node with a scripted worker over the in-memory store, on virtual time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.cluster import ADDRESS, Cluster, python_task, value_of, worker_of
from support.scripted_worker import HEARTBEAT_US, ScriptedWorker

from ostinato.core.failure.failure import safe_failure
from ostinato.core.instants import MINUTE, SECOND
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.schedule.trigger import CronTrigger, IntervalTrigger
from ostinato.core.states import Hold, State
from ostinato.scheduler.config import NodeConfig
from ostinato.testing.virtual_clock import START_US, run_virtual

FAST = RetryPolicy(backoff="exponential", interval_us=5 * SECOND, max_retry=3)
#: For stories of days: the node's own pulse is slow, so that they take no time.
SLOW = NodeConfig(
    worker_lease_us=600 * SECOND,
    ownership_lease_us=600 * SECOND,
    renewal_us=120 * SECOND,
    safety_poll_us=120 * SECOND,
    backlog_us=120 * SECOND,
)
REFUSED = safe_failure("ECONNREFUSED", "connection refused")


def test_a_submission_runs_and_its_result_is_stored() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: b'{"n": 1}')
        identity = await cluster.submit(task, payload=b'{"a": 1}')
        done = await cluster.in_state(identity, State.SUCCESS)
        assert (done.attempt, done.result) == (1, b'{"n": 1}')
        assert worker.assigned[0].payload == b'{"a": 1}'
        await cluster.until(lambda: value_of(worker.acknowledged == [done.attempt_id]))
        assert await cluster.store.history(identity) == []
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_retries_wait_exactly_what_the_policy_says_and_the_history_says_why() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task(retry=FAST)
        await cluster.start(task)
        starts: list[int] = []

        def script(item: object) -> object:
            starts.append(cluster.clock.wall_us())
            return REFUSED

        worker = await worker_of(cluster, script)
        identity = await cluster.submit(task)
        failed = await cluster.in_state(identity, State.FAILED)
        waits = [(later - earlier) // SECOND for earlier, later in pairwise(starts)]
        assert waits == [5, 10, 20]
        assert failed.attempt == 4
        history = await cluster.store.history(identity)
        assert [row.kind for row in history] == ["retry", "retry", "retry", "gave_up"]
        assert "retry 1 of 3" in history[0].sentence
        assert failed.failure is not None
        assert failed.failure.code == "ECONNREFUSED"
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_work_without_a_worker_waits_visibly_and_starts_when_one_comes() -> None:
    """C095."""

    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        identity = await cluster.submit(task)

        async def held() -> bool:
            return (await cluster.instance(identity)).hold is Hold.NO_WORKER

        await cluster.until(held)
        assert "no worker is connected" in (await cluster.instance(identity)).reason
        await cluster.sleep(60 * MINUTE)
        assert (await cluster.instance(identity)).state is State.PENDING
        worker = await worker_of(cluster, lambda item: b"1")
        done = await cluster.in_state(identity, State.SUCCESS)
        assert done.hold is None
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_work_that_cannot_run_does_not_hold_up_work_that_can() -> None:
    async def story() -> None:
        cluster = Cluster()
        stuck, free = python_task("stuck"), python_task("t")
        await cluster.start(stuck, free)
        for _ in range(3000):
            await cluster.submit(stuck)
        worker = await worker_of(cluster, lambda item: b"1")
        identity = await cluster.submit(free)
        began_us = cluster.clock.boot_us()
        await cluster.in_state(identity, State.SUCCESS)
        assert cluster.clock.boot_us() - began_us < SECOND
        held = [row.hold for row in await cluster.instances(task="stuck")]
        assert held.count(Hold.NO_WORKER) == 3000
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_cron_fires_on_the_minute_and_every_fire_has_one_instance() -> None:
    async def story() -> None:
        cluster = Cluster()
        task = python_task(triggers=(CronTrigger(cron="* * * * *"),))
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: b"1")
        await cluster.sleep(10 * MINUTE + SECOND)
        rows = await cluster.instances()
        assert [row.fire_us for row in rows] == [START_US + n * MINUTE for n in range(1, 11)]
        assert {row.state for row in rows} == {State.SUCCESS}
        assert all(row.assigned_us is not None and row.assigned_us >= row.due_us for row in rows)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_c037_an_interval_keeps_its_grid_through_restarts() -> None:
    async def story() -> None:
        cluster = Cluster(config=SLOW)
        task = python_task(triggers=(IntervalTrigger(every_us=6 * 60 * MINUTE),), overlap="allow")
        await cluster.start(task)
        for _ in range(18):
            await cluster.sleep(4 * 60 * MINUTE)
            await cluster.restart()
        await cluster.sleep(SECOND)
        fires = [row.fire_us for row in await cluster.instances()]
        assert fires == [START_US + n * 360 * MINUTE for n in range(1, 13)]
        await cluster.stop()

    run_virtual(story())


def test_c035_a_disabled_task_is_never_dispatched_again() -> None:
    async def story() -> None:
        cluster = Cluster(config=SLOW)
        task = python_task(triggers=(IntervalTrigger(every_us=30 * SECOND),), overlap="queue", queue_bound=10)
        await cluster.start(task)
        await cluster.sleep(360 * MINUTE)
        assert await cluster.ask("disable", task="t") == "OK"
        worker = await worker_of(cluster, lambda item: b"1")
        await cluster.sleep(5 * MINUTE)
        assert worker.assigned == []
        states = [row.state for row in await cluster.instances()]
        assert states.count(State.CANCELLED) == 11
        assert set(states) == {State.CANCELLED, State.SKIPPED}
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_c047_queue_runs_every_fire_in_order_and_never_two_at_once() -> None:
    async def story() -> None:
        cluster = Cluster()
        task = python_task(triggers=(IntervalTrigger(every_us=10 * SECOND),), overlap="queue")
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        await cluster.sleep(55 * SECOND)
        assert len(worker.assigned) == 1
        for count in range(1, 6):
            item = worker.assigned[-1]
            await worker.finish(item, b"1")
            if count < 5:
                await cluster.until(lambda count=count: value_of(len(worker.assigned) > count))
        fires = [item.fire_us for item in worker.assigned]
        assert fires == sorted(f for f in fires if f is not None)
        assert len(fires) >= 5
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_shards_of_one_fire_run_beside_each_other_and_those_of_the_next_after_them() -> None:
    async def story() -> None:
        cluster = Cluster()
        task = python_task(triggers=(IntervalTrigger(every_us=10 * SECOND),), overlap="queue", shards=3)
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        await cluster.sleep(35 * SECOND)
        first = list(worker.assigned)
        assert [(item.shard, item.shard_total) for item in sorted(first, key=lambda item: item.shard)] == [
            (0, 3),
            (1, 3),
            (2, 3),
        ]
        assert len({item.fire_us for item in first}) == 1
        await worker.finish(first[0], b"1")
        await worker.finish(first[1], b"1")
        await cluster.sleep(5 * SECOND)
        assert len(worker.assigned) == 3
        await worker.finish(first[2], b"1")
        await cluster.until(lambda: value_of(len(worker.assigned) == 6))
        second = worker.assigned[3:]
        assert {item.shard for item in second} == {0, 1, 2}
        assert {item.fire_us for item in second} == {first[0].fire_us + 10 * SECOND}
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_c043_forbid_goes_on_after_a_long_run_and_after_a_loss() -> None:
    async def story() -> None:
        cluster = Cluster()
        task = python_task(triggers=(IntervalTrigger(every_us=60 * SECOND),))
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        await cluster.sleep(150 * SECOND)
        assert [row.state for row in await cluster.instances()] == [State.RUNNING, State.SKIPPED]
        await worker.finish(worker.assigned[0], b"1")
        await cluster.sleep(60 * SECOND)
        assert len(worker.assigned) == 2
        await worker.disconnect()
        second = ScriptedWorker(cluster.network, cluster.clock, lambda item: b"1", tasks=["t"])
        second.worker_id = "worker-2"
        await second.connect(ADDRESS)
        second.beat(HEARTBEAT_US)
        await cluster.sleep(90 * SECOND)
        assert (await cluster.instances())[-1].state is State.SUCCESS
        await second.disconnect()
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize(
    ("overlap", "states"),
    [
        ("forbid", [State.RUNNING, State.SKIPPED, State.SKIPPED, State.SKIPPED, State.SKIPPED]),
        ("queue", [State.RUNNING, State.PENDING, State.PENDING, State.SKIPPED, State.SKIPPED]),
        ("replace", [State.RUNNING, State.CANCELLED, State.CANCELLED, State.CANCELLED, State.PENDING]),
    ],
)
def test_submissions_that_come_at_once_obey_the_overlap_rule_one_after_the_other(
    overlap: str, states: list[State]
) -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task(overlap=overlap, queue_bound=2)
        await cluster.start(task)
        now_us = cluster.clock.wall_us()
        ids = [await cluster.submit(task, due_us=now_us + n, created_us=now_us + n) for n in range(5)]
        worker = await worker_of(cluster, lambda item: None)
        await cluster.sleep(SECOND)
        assert [(await cluster.instance(identity)).state for identity in ids] == states
        assert len(worker.assigned) == 1
        if overlap == "replace":
            assert [wish.instance_id for wish in worker.cancelled] == [ids[0]]
            await worker.finish(worker.assigned[0], safe_failure("CANCELLED", "cancelled"))
            await cluster.in_state(ids[4], State.RUNNING)
            assert (await cluster.instance(ids[0])).state is State.CANCELLED
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_what_waits_in_a_queue_waits_for_no_younger_one_that_is_due_later() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task(overlap="queue")
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        first = await cluster.submit(task)
        await cluster.in_state(first, State.RUNNING)
        second = await cluster.submit(task)
        await cluster.sleep(SECOND)
        later = await cluster.submit(task, due_us=cluster.clock.wall_us() + 30 * SECOND)
        await worker.finish(worker.assigned[0], b"1")
        await cluster.in_state(first, State.SUCCESS)
        await cluster.sleep(SECOND)
        assert (await cluster.instance(second)).state is State.RUNNING
        await cluster.sleep(30 * SECOND)
        assert (await cluster.instance(later)).hold is Hold.OVERLAP
        await worker.finish(worker.assigned[1], b"1")
        await cluster.in_state(later, State.RUNNING)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_what_has_started_stands_before_an_older_one_that_was_seen_late() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task(overlap="queue")
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        first = await cluster.submit(task)
        await cluster.in_state(first, State.RUNNING)
        # Its submission began before that of the first, and was committed after it.
        older = await cluster.submit(task, created_us=cluster.clock.wall_us() - SECOND)
        await cluster.sleep(SECOND)
        assert (await cluster.instance(older)).hold is Hold.OVERLAP
        await worker.finish(worker.assigned[0], b"1")
        await cluster.in_state(older, State.RUNNING)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_cancel_ends_what_waits_at_once_and_what_runs_when_its_attempt_has() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None, slots=1)
        running = await cluster.submit(task)
        await cluster.in_state(running, State.RUNNING)
        waiting = await cluster.submit(task)
        assert await cluster.ask("cancel", instance_id=waiting) == "OK"
        assert (await cluster.instance(waiting)).state is State.CANCELLED
        assert await cluster.ask("cancel", instance_id=running) == "OK"
        assert (await cluster.instance(running)).state is State.RUNNING
        await cluster.until(lambda: value_of(bool(worker.cancelled)))
        await worker.finish(worker.assigned[0], safe_failure("CANCELLED", "cancelled"))
        await cluster.in_state(running, State.CANCELLED)
        assert await cluster.ask("cancel", instance_id=running) == "OK"
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_replay_is_a_new_generation_with_fresh_counters() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task(retry=RetryPolicy(max_retry=0))
        await cluster.start(task)
        answers: list[object] = [REFUSED, b"1"]
        worker = await worker_of(cluster, lambda item: answers[item.generation - 1])
        identity = await cluster.submit(task)
        await cluster.in_state(identity, State.FAILED)
        assert await cluster.ask("replay", instance_id=identity) == "OK"
        done = await cluster.in_state(identity, State.SUCCESS)
        assert (done.generation, done.attempt, done.counters.failures) == (2, 2, 0)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_paused_task_holds_its_work_and_a_resume_does_not_fire_the_past() -> None:
    async def story() -> None:
        cluster = Cluster()
        task = python_task(triggers=(CronTrigger(cron="* * * * *"),))
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: b"1")
        assert await cluster.ask("pause", task="t") == "OK"
        identity = await cluster.submit(task)
        await cluster.sleep(30 * MINUTE)
        held = await cluster.instance(identity)
        assert (held.hold, held.reason) == (Hold.PAUSED, "task default/t is paused")
        assert len(await cluster.instances()) == 1
        assert await cluster.ask("resume", task="t") == "OK"
        await cluster.in_state(identity, State.SUCCESS)
        await cluster.sleep(3 * MINUTE)
        fires = [row.fire_us for row in await cluster.instances() if row.fire_us is not None]
        assert len(fires) == 3
        assert min(fires) > START_US + 30 * MINUTE
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_retry_that_cannot_start_within_its_window_fails_with_what_held_it() -> None:
    async def story() -> None:
        policy = RetryPolicy(backoff="fixed", interval_us=SECOND, window_us=60 * SECOND)
        cluster, task = Cluster(), python_task(retry=policy)
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: REFUSED)
        identity = await cluster.submit(task)
        await cluster.in_state(identity, State.RETRY_WAITING)
        await worker.disconnect()
        failed = await cluster.in_state(identity, State.FAILED)
        assert "retry window" in failed.reason
        assert "no worker is connected" in failed.reason
        await cluster.stop()

    run_virtual(story())
