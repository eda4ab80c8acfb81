"""A task that is deleted or disabled while it works: nothing hangs, nothing runs again; on virtual time."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from support.cluster import ADDRESS, Cluster, python_task, value_of, worker_of
from support.scripted_worker import HEARTBEAT_US, ScriptedWorker

from ostinato.core.definition import TaskDefinition
from ostinato.core.failure.failure import safe_failure
from ostinato.core.ids import new_id, partition_of
from ostinato.core.instants import HOUR, MINUTE, SECOND
from ostinato.core.model import Instance, Outcome
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.schedule.trigger import IntervalTrigger
from ostinato.core.states import TERMINAL_STATES, Hold, State
from ostinato.scheduler.config import NodeConfig
from ostinato.store.batches import Submission
from ostinato.testing.virtual_clock import run_virtual

FAST = RetryPolicy(backoff="exponential", interval_us=5 * SECOND, max_retry=3)
REFUSED = safe_failure("ECONNREFUSED", "connection refused")
SMALL = NodeConfig(worker_lease_us=6 * SECOND, batch_count=3)
ENDINGS = ("success", "failure", "loss", "handed back")


async def end(cluster: Cluster, worker: ScriptedWorker, how: str) -> None:
    """End the one attempt that the worker has."""
    (item,) = worker.running.values()
    if how == "success":
        await worker.finish(item, b"1")
    elif how == "failure":
        await worker.finish(item, REFUSED)
    elif how == "loss":
        await worker.disconnect()
    else:
        worker.running.clear()
        unstarted = Outcome(
            instance_id=item.instance_id,
            attempt=item.attempt,
            attempt_id=item.attempt_id,
            started_us=None,
            finished_us=cluster.clock.wall_us(),
            unstarted_reason="the worker drains",
        )
        await worker.report([unstarted])


async def submit_late(cluster: Cluster, task: TaskDefinition, *, after_us: int = 0) -> str:
    """As one that looked the task up before it was deleted and inserts after."""
    now_us = cluster.clock.wall_us()
    instance = Instance(
        id=new_id(now_us, cluster.rng),
        namespace=task.namespace,
        task=task.name,
        task_version=1,
        partition=partition_of(task.namespace, task.name, partition_count=cluster.store.partition_count),
        state=State.PENDING,
        priority=5,
        due_us=now_us + after_us,
        created_us=now_us,
    )
    await cluster.store.submit([Submission(instance=instance)])
    return instance.id


@pytest.mark.parametrize("verb", ["disable", "delete"])
def test_c035_what_waits_is_cancelled_behind_more_running_ones_than_a_batch_takes(verb: str) -> None:
    async def story() -> None:
        cluster, task = Cluster(config=SMALL), python_task(retry=FAST)
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None, slots=8)
        ids = [await cluster.submit(task) for _ in range(20)]
        await cluster.until(lambda: value_of(len(worker.running) == 8))
        later = [await cluster.submit(task, due_us=cluster.clock.wall_us() + HOUR) for _ in range(4)]
        assert await cluster.ask(verb, task="t") == "OK"
        states = Counter([(await cluster.instance(identity)).state for identity in ids + later])
        assert states == {State.RUNNING: 8, State.CANCELLED: 16}
        assert (await cluster.store.get_tasks([task.ref]) == {}) is (verb == "delete")
        row = await cluster.instance(later[0])
        assert f"task default/t was {verb}d by test" in row.reason
        for item in list(worker.running.values()):
            await worker.finish(item, b"1")
        for item in worker.assigned:
            await cluster.in_state(item.instance_id, State.SUCCESS)
        assert len(worker.assigned) == 8
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("verb", ["disable", "delete"])
def test_what_runs_when_its_task_goes_ends_as_it_ends_and_is_never_tried_again(
    verb: str, how: str, restarts: bool
) -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task(retry=FAST)
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(task)
        await cluster.in_state(identity, State.RUNNING)
        assert await cluster.ask(verb, task="t") == "OK"
        if restarts:
            await worker.disconnect()
            await cluster.restart()
            await worker.connect(ADDRESS)
            worker.beat(HEARTBEAT_US)
        await end(cluster, worker, how)
        wanted = State.SUCCESS if how == "success" else State.CANCELLED
        ended = await cluster.in_state(identity, wanted)
        if how != "success":
            cause = "was deleted" if verb == "delete" else "is disabled"
            assert f"cancelled: task default/t {cause}; the attempt ended with" in ended.reason
            assert [row.kind for row in await cluster.store.history(identity)] == ["cancelled"]
        if verb == "disable":
            assert await cluster.ask("enable", task="t") == "OK"
        other = await worker_of(cluster, lambda item: b"1")
        await cluster.sleep(10 * MINUTE)
        assert (await cluster.instance(identity)).attempt == 1
        assert other.assigned == []
        await worker.disconnect()
        await other.disconnect()
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize("has_worker", [False, True])
def test_a_submission_that_comes_too_late_is_cancelled_when_it_is_due_and_says_why(has_worker: bool) -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        if has_worker:
            worker = await worker_of(cluster, lambda item: b"1")
        assert await cluster.ask("delete", task="t") == "OK"
        now, later = await submit_late(cluster, task), await submit_late(cluster, task, after_us=HOUR)
        for identity in (now, later):
            row = await cluster.in_state(identity, State.CANCELLED) if identity == now else None
            if row is None:
                await cluster.sleep(HOUR)
                row = await cluster.in_state(identity, State.CANCELLED)
            assert row.reason == "task default/t was deleted"
            assert [line.kind for line in await cluster.store.history(identity)] == ["cancelled"]
        if has_worker:
            assert worker.assigned == []
            await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_what_comes_too_late_behind_busy_workers_is_cancelled_without_one() -> None:
    async def story() -> None:
        cluster, task, other = Cluster(), python_task(), python_task("other")
        await cluster.start(task, other)
        worker = await worker_of(cluster, lambda item: None, tasks=["t", "other"], slots=1)
        busy = await cluster.submit(other)
        await cluster.in_state(busy, State.RUNNING)
        assert await cluster.ask("delete", task="t") == "OK"
        late = await submit_late(cluster, task)
        await cluster.sleep(MINUTE)
        (item,) = worker.running.values()
        await worker.finish(item, b"1")
        await cluster.in_state(late, State.CANCELLED)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_held_rows_of_a_deleted_task_do_not_hang_and_are_asked_for_no_longer() -> None:
    """As after a crash between the deletion and what came too late: the rows are found held."""

    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        assert await cluster.ask("delete", task="t") == "OK"
        await cluster.node.stop()
        ids = [await submit_late(cluster, task) for _ in range(3)]
        for identity, cause in zip(ids, (Hold.BUSY, Hold.NO_WORKER, Hold.PAUSED), strict=True):
            cluster.store._tables.put(_held(await cluster.instance(identity), cause))  # type: ignore[attr-defined]  # the memory store's tables
        await cluster.restart()
        for identity in ids:
            await cluster.in_state(identity, State.CANCELLED)
        assert cluster.node.parts.held.candidates() == []
        await cluster.stop()

    run_virtual(story())


def _held(instance: Instance, cause: Hold) -> Instance:
    instance.hold = cause
    instance.reason = "it waited"
    return instance


@pytest.mark.parametrize("overlap", ["queue", "replace", "forbid"])
def test_fires_that_wait_for_each_other_go_with_their_task(overlap: str) -> None:
    async def story() -> None:
        cluster = Cluster()
        task = python_task(triggers=(IntervalTrigger(every_us=10 * SECOND),), overlap=overlap)
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        await cluster.sleep(35 * SECOND)
        assert await cluster.ask("delete", task="t") == "OK"
        count = len(await cluster.instances())
        states = Counter(row.state for row in await cluster.instances())
        assert states[State.RUNNING] == 1
        assert states[State.PENDING] == 0
        (item,) = worker.running.values()
        await worker.finish(item, REFUSED)
        await cluster.sleep(HOUR)
        rows = await cluster.instances()
        assert len(rows) == count
        assert {row.state for row in rows} <= {State.CANCELLED, State.SKIPPED}
        assert len(worker.assigned) == 1
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_an_attempt_of_a_deleted_task_can_be_cancelled() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task(retry=FAST)
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(task)
        await cluster.in_state(identity, State.RUNNING)
        assert await cluster.ask("delete", task="t") == "OK"
        assert await cluster.ask("cancel", instance_id=identity) == "OK"
        await cluster.until(lambda: value_of(len(worker.cancelled) == 1))
        (item,) = worker.running.values()
        await worker.finish(item, REFUSED)
        ended = await cluster.in_state(identity, State.CANCELLED)
        assert "asked for by test" in ended.reason
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_what_is_asked_of_a_task_that_is_gone_is_answered_so() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        identity = await cluster.submit(task)
        assert await cluster.ask("delete", task="t") == "OK"
        for verb in ("delete", "pause", "resume", "disable", "enable"):
            assert await cluster.ask(verb, task="t") == "TASK_NOT_FOUND"
        for body in ({}, {"latest": True}):
            assert await cluster.ask("replay", instance_id=identity, body=body) == "TASK_NOT_FOUND"
        await cluster.stop()

    run_virtual(story())


def test_applied_again_it_goes_on_with_the_next_version_and_the_old_attempts_end_as_theirs_says() -> None:
    async def story() -> None:
        cluster, old = Cluster(), python_task(retry=FAST)
        new = python_task(
            retry=RetryPolicy(max_retry=0), triggers=(IntervalTrigger(every_us=MINUTE),), overlap="allow"
        )
        await cluster.start(old)
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(old)
        await cluster.in_state(identity, State.RUNNING)
        waiting = await cluster.submit(old, due_us=cluster.clock.wall_us() + HOUR)
        assert await cluster.ask("delete", task="t") == "OK"
        (receipt,) = await cluster.store.apply([new], now_us=cluster.clock.wall_us())
        assert (receipt.version, receipt.outcome) == (2, "created")
        (item,) = worker.running.values()
        await worker.finish(item, REFUSED)
        retried = await cluster.in_state(identity, State.RETRY_WAITING)
        assert "retry 1 of 3" in retried.reason
        await cluster.sleep(2 * MINUTE + SECOND)
        versions = Counter((item.version, item.attempt) for item in worker.assigned)
        assert versions == {(1, 1): 1, (1, 2): 1, (2, 1): 2}
        assert await cluster.ask("replay", instance_id=waiting) == "OK"
        await cluster.in_state(waiting, State.RUNNING)
        row = (await cluster.store.get_tasks([new.ref]))[new.ref]
        assert not row.disabled
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_deleted_and_made_again_within_a_second_every_instant_still_fires_once() -> None:
    async def story() -> None:
        cluster = Cluster()
        task = python_task(triggers=(IntervalTrigger(every_us=10 * SECOND),), overlap="allow")
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: b"1")
        await cluster.sleep(30 * SECOND)
        for _ in range(3):
            assert await cluster.ask("delete", task="t") == "OK"
            await cluster.store.apply([task], now_us=cluster.clock.wall_us())
        began_us = cluster.clock.wall_us()
        await cluster.sleep(30 * SECOND)
        fires = [row.fire_us for row in await cluster.instances()]
        assert len(fires) == len(set(fires))
        assert len([fire for fire in fires if fire is not None and fire > began_us]) in (2, 3)
        assert len(fires) in (5, 6)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_around_deletions_nothing_hangs_and_nothing_begins_after_one(seed: int) -> None:
    async def story() -> None:
        chance = Random(seed)
        cluster = Cluster(seed=seed, config=NodeConfig(worker_lease_us=6 * SECOND, batch_count=4))
        overlap = chance.choice(["allow", "forbid", "queue", "replace", None])
        task = python_task(
            retry=FAST, triggers=(IntervalTrigger(every_us=7 * SECOND),), overlap=overlap, queue_bound=5
        )
        await cluster.start(task)
        worker = await worker_of(
            cluster, lambda item: chance.choice([b"1", REFUSED, None, None]), slots=chance.randint(1, 4)
        )
        for _ in range(12):
            await _something(cluster, worker, task, chance)
            await cluster.sleep(chance.randint(0, 5 * SECOND))
        if await cluster.store.get_tasks([task.ref]):
            assert await cluster.ask("delete", task="t") == "OK"
        begun = len(worker.assigned)
        await submit_late(cluster, task)
        await cluster.sleep(MINUTE)
        for item in list(worker.running.values()):
            await worker.finish(item, chance.choice([b"1", REFUSED]))
        await cluster.sleep(MINUTE)
        rows = await cluster.instances()
        assert [row for row in rows if row.state not in TERMINAL_STATES] == []
        assert all(row.reason for row in rows if row.state is State.CANCELLED)
        assert len(worker.assigned) == begun
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


async def _something(cluster: Cluster, worker: ScriptedWorker, task: TaskDefinition, chance: Random) -> None:
    exists = bool(await cluster.store.get_tasks([task.ref]))
    match chance.choice(["submit", "submit", "delete", "apply", "finish", "late", "disable", "restart"]):
        case "submit" if exists:
            await cluster.submit(task, due_us=cluster.clock.wall_us() + chance.choice([0, 0, 9 * SECOND]))
        case "delete":
            assert await cluster.ask("delete", task="t") == ("OK" if exists else "TASK_NOT_FOUND")
        case "apply":
            await cluster.store.apply([task], now_us=cluster.clock.wall_us())
        case "finish" if worker.running:
            item = chance.choice(list(worker.running.values()))
            await worker.finish(item, chance.choice([b"1", REFUSED]))
        case "late":
            await submit_late(cluster, task, after_us=chance.choice([0, 3 * SECOND]))
        case "disable" if exists:
            assert (
                await cluster.ask(chance.choice(["disable", "enable", "pause", "resume"]), task="t") == "OK"
            )
        case "restart":
            await worker.disconnect()
            await cluster.restart()
            await worker.connect(ADDRESS)
            worker.beat(HEARTBEAT_US)
        case _:
            pass
