"""Retries of a task start no faster than its budget says, wait visibly for it, and hold up nobody else."""

from __future__ import annotations

import os
from collections import Counter

import msgspec
from support.budgets import Starts, failing
from support.cluster import ADDRESS, HEARTBEAT_US, Cluster, python_task, value_of, worker_of
from support.scripted_worker import ScriptedWorker

from ostinato.control.explain import story
from ostinato.core.definition import TaskDefinition
from ostinato.core.failure.failure import Failure
from ostinato.core.ids import new_id
from ostinato.core.instants import HOUR, MILLISECOND, MINUTE, SECOND, format_instant
from ostinato.core.model import Instance
from ostinato.core.retry.policy import RetryBudget, RetryPolicy
from ostinato.core.schedule.trigger import IntervalTrigger
from ostinato.core.states import Hold, State
from ostinato.store.batches import Submission
from ostinato.testing.virtual_clock import run_virtual
from ostinato.wire.messages import Assignment

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"
#: Of C065, and how many retries a second its floor lets start.
COUNT = 10_000 if FULL else 1_000
FLOOR_COUNT = COUNT // 100
SECOND_FLOOR = RetryBudget(0.1, 1, SECOND)
#: Nothing but the floor, one every two seconds.
SLOW = RetryBudget(0.0, 30, MINUTE)
USED_UP = "the retry budget of task default/t is used up (0% of first attempts, at least 30/m)"


def _task(budget: RetryBudget, **policy: object) -> TaskDefinition:
    retry = RetryPolicy(backoff="fixed", interval_us=SECOND, max_retry=20, budget=budget)
    return python_task(retry=msgspec.structs.replace(retry, **policy))


async def _submit(cluster: Cluster, task: TaskDefinition, *, count: int) -> list[str]:
    """All at once."""
    now_us = cluster.clock.wall_us()
    row = (await cluster.store.get_tasks([task.ref]))[task.ref]
    rows = [
        Instance(
            id=new_id(now_us, cluster.rng),
            namespace=task.namespace,
            task=task.name,
            task_version=row.version,
            partition=row.partition,
            state=State.PENDING,
            priority=task.priority,
            due_us=now_us,
            created_us=now_us,
        )
        for _ in range(count)
    ]
    await cluster.store.submit([Submission(instance=each) for each in rows])
    return [each.id for each in rows]


async def _is_held(cluster: Cluster, identity: str, *, hold: Hold) -> bool:
    return (await cluster.instance(identity)).hold is hold


def _starts(cluster: Cluster) -> Starts:
    return Starts(cluster.clock.boot_us)


def test_c065_after_an_outage_retries_start_no_faster_than_the_budget_and_fires_of_others_stay_in_time() -> (
    None
):
    """10,000 (in short 1,000) fail in the same second; 50 workers; what they need is back after a minute."""

    async def story_() -> None:
        cluster = Cluster()
        budget = RetryBudget(0.1, FLOOR_COUNT, SECOND)
        task = _task(budget, backoff="exponential", interval_us=5 * SECOND, jitter="full", max_retry=40)
        cron = python_task("cron", triggers=(IntervalTrigger(every_us=SECOND),))
        await cluster.start(task, cron)
        starts, begin_us = _starts(cluster), cluster.clock.boot_us()
        back_us = begin_us + MINUTE
        lateness: list[int] = []

        def answer(item: Assignment) -> bytes | Failure:
            if item.ref.name == "cron":
                lateness.append(cluster.clock.wall_us() - (item.fire_us or 0))
                return b"1"
            return failing(item) if cluster.clock.boot_us() < back_us else b"1"

        workers = []
        for number in range(50):
            script = starts.script(answer, task="t")
            worker = ScriptedWorker(cluster.network, cluster.clock, script, tasks=["t", "cron"])
            worker.worker_id = f"worker-{number}"
            await worker.connect(ADDRESS)
            worker.beat(HEARTBEAT_US)
            workers.append(worker)
        identities = await _submit(cluster, task, count=COUNT)
        await cluster.until(lambda: value_of(len(starts.firsts) == COUNT), within_us=SECOND)
        await cluster.sleep(75 * SECOND - (cluster.clock.boot_us() - begin_us))
        starts.check(budget, begin_us=begin_us)
        # What there is of a budget is used: the share of the first second, and the floor.
        most = COUNT // 10 + FLOOR_COUNT * 75
        assert 0.9 * most <= len(starts.retries) <= most + 1
        rows = await cluster.store.get_instances(identities)
        states = Counter((row.state, row.hold) for row in rows.values())
        assert states[State.SUCCESS, None] >= FLOOR_COUNT * 14
        waiting = {(State.RETRY_WAITING, Hold.BUDGET), (State.RETRY_WAITING, None)}
        assert states.keys() <= {(State.SUCCESS, None), (State.RUNNING, None)} | waiting
        assert len(lateness) >= 74
        assert max(lateness) <= SECOND
        for worker in workers:
            await worker.disconnect()
        await cluster.stop()

    run_virtual(story_())


def test_retries_without_a_token_wait_in_order_with_the_reason_and_start_one_by_one() -> None:
    async def story_() -> None:
        cluster, task = Cluster(), _task(SLOW)
        await cluster.start(task)
        starts = _starts(cluster)
        worker = await worker_of(cluster, starts.script(failing))
        identities = await _submit(cluster, task, count=4)
        await cluster.until(lambda: _is_held(cluster, identities[3], hold=Hold.BUDGET))
        row = await cluster.instance(identities[3])
        assert (row.state, row.reason, row.counters.failures) == (State.RETRY_WAITING, USED_UP, 1)
        await cluster.until(lambda: value_of(len(starts.retries) == 8))
        # Whoever has waited longest is next, so that they take turns.
        assert set(starts.retried[:4]) == set(identities)
        assert starts.retried[4:] == starts.retried[:4]
        waits = [later - earlier for earlier, later in zip(starts.retries, starts.retries[1:], strict=False)]
        assert all(2 * SECOND <= wait_us <= 2 * SECOND + 50 * MILLISECOND for wait_us in waits)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story_())


def test_a_share_of_first_attempts_is_what_may_be_retried() -> None:
    """20 starts a second that all fail, 10 % of them: two retries a second, and one by the floor."""

    async def story_() -> None:
        cluster, task = Cluster(), _task(SECOND_FLOOR)
        await cluster.start(task)
        starts, begin_us = _starts(cluster), cluster.clock.boot_us()
        worker = await worker_of(cluster, starts.script(failing))
        for _ in range(60 * 4):
            await _submit(cluster, task, count=5)
            await cluster.sleep(SECOND // 4)
        assert len(starts.firsts) == 1_200, "what is new is not held up by what waits"
        starts.check(SECOND_FLOOR, begin_us=begin_us)
        assert 160 <= len(starts.retries) <= 181
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story_())


def test_a_task_without_a_budget_retries_as_it_falls_due_beside_one_that_waits() -> None:
    async def story_() -> None:
        cluster, task = Cluster(), _task(SLOW)
        free = python_task("free", retry=RetryPolicy(backoff="fixed", interval_us=SECOND, max_retry=20))
        await cluster.start(task, free)
        counts: dict[str, int] = {}

        def answer(item: Assignment) -> Failure:
            counts[item.ref.name] = counts.get(item.ref.name, 0) + 1
            return failing(item)

        worker = await worker_of(cluster, answer, tasks=["t", "free"])
        await _submit(cluster, task, count=200)
        await _submit(cluster, free, count=5)
        await cluster.sleep(10 * SECOND + SECOND // 2)
        assert counts == {"t": 200 + 5, "free": 5 * 11}
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story_())


def test_the_story_of_a_waiting_retry_says_by_when_it_may_start() -> None:
    async def story_() -> None:
        cluster, task = Cluster(), _task(SLOW)
        await cluster.start(task)
        worker = await worker_of(cluster, failing)
        identities = await _submit(cluster, task, count=3)
        for identity in identities:
            await cluster.until(lambda identity=identity: _is_held(cluster, identity, hold=Hold.BUDGET))
        now_us = await cluster.store.now_us()
        waits = sorted([(await story(cluster.store, identity)).waits for identity in identities])
        by = [format_instant(now_us + 2 * SECOND * place) for place in (1, 2, 3)]
        assert waits == [
            f"{USED_UP}; 1 retry stands before it; by 30/m it may start at {by[1]} at the latest",
            f"{USED_UP}; 2 retries stand before it; by 30/m it may start at {by[2]} at the latest",
            f"{USED_UP}; it is the next; by 30/m it may start at {by[0]} at the latest",
        ]
        told = await story(cluster.store, identities[0])
        assert told.next == f"attempt 2 starts as soon as it can; it waits: {told.waits}"
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story_())


def test_a_retry_whose_token_comes_after_its_window_fails_and_says_what_held_it() -> None:
    async def story_() -> None:
        cluster, task = Cluster(), _task(RetryBudget(0.0, 1, MINUTE), window_us=20 * SECOND)
        await cluster.start(task)
        worker = await worker_of(cluster, failing)
        (identity,) = await _submit(cluster, task, count=1)
        row = await cluster.in_state(identity, State.FAILED)
        assert (row.attempt, row.counters.failures) == (1, 1)
        assert row.failure is not None
        assert row.failure.code == "WINDOW_PASSED"
        assert "retry window ended" in row.reason
        assert "it waited because the retry budget of task default/t is used up" in row.reason
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story_())


def test_a_pause_is_told_and_saves_up_no_more_than_ten_seconds() -> None:
    async def story_() -> None:
        cluster, task = Cluster(), _task(RetryBudget(0.0, 1, SECOND))
        await cluster.start(task)
        starts, begin_us = _starts(cluster), cluster.clock.boot_us()
        worker = await worker_of(cluster, starts.script(failing), slots=50)
        identities = await _submit(cluster, task, count=40)
        for identity in identities:
            await cluster.until(lambda identity=identity: _is_held(cluster, identity, hold=Hold.BUDGET))
        assert await cluster.ask("pause", task="t") == "OK"
        for identity in identities:
            await cluster.until(
                lambda identity=identity: _is_held(cluster, identity, hold=Hold.PAUSED), within_us=SECOND
            )
        before = len(starts.retries)
        await cluster.sleep(HOUR)
        assert len(starts.retries) == before
        assert await cluster.ask("resume", task="t") == "OK"
        await cluster.sleep(SECOND // 2)
        assert len(starts.retries) == before + 10
        await cluster.sleep(20 * SECOND)
        assert before + 29 <= len(starts.retries) <= before + 31
        starts.check(RetryBudget(0.0, 1, SECOND), begin_us=begin_us)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story_())


def test_what_waits_for_a_token_and_has_no_worker_any_more_says_so_and_goes_on_with_the_next() -> None:
    async def story_() -> None:
        cluster, task = Cluster(), _task(SLOW)
        await cluster.start(task)
        worker = await worker_of(cluster, failing)
        identities = await _submit(cluster, task, count=2)
        await cluster.until(lambda: _is_held(cluster, identities[1], hold=Hold.BUDGET))
        await worker.disconnect()
        await cluster.until(lambda: _is_held(cluster, identities[1], hold=Hold.NO_WORKER), within_us=SECOND)
        other = await worker_of(cluster, lambda _: b"1")
        for identity in identities:
            await cluster.in_state(identity, State.SUCCESS)
        assert len(other.assigned) == 2
        await other.disconnect()
        await cluster.stop()

    run_virtual(story_())


def test_a_budget_is_read_live_and_what_waits_for_it_starts_once_it_is_taken_away() -> None:
    async def story_() -> None:
        cluster, task = Cluster(), _task(RetryBudget(0.0, 1, HOUR))
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: b"1" if item.retry_count else failing(item))
        identities = await _submit(cluster, task, count=30)
        for identity in identities:
            await cluster.until(lambda identity=identity: _is_held(cluster, identity, hold=Hold.BUDGET))
        edited_us = cluster.clock.boot_us()
        without = msgspec.structs.replace(task, retry=RetryPolicy(max_retry=20))
        await cluster.store.apply([without], now_us=cluster.clock.wall_us())
        for identity in identities:
            row = await cluster.in_state(identity, State.SUCCESS)
            assert row.task_version == 1
        assert cluster.clock.boot_us() < edited_us + 10 * SECOND
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story_())


def test_disabling_a_task_cancels_what_waits_for_a_token() -> None:
    async def story_() -> None:
        cluster, task = Cluster(), _task(RetryBudget(0.0, 1, HOUR))
        await cluster.start(task)
        worker = await worker_of(cluster, failing)
        identities = await _submit(cluster, task, count=30)
        for identity in identities:
            await cluster.until(lambda identity=identity: _is_held(cluster, identity, hold=Hold.BUDGET))
        assert await cluster.ask("disable", task="t") == "OK"
        for identity in identities:
            assert (await cluster.in_state(identity, State.CANCELLED)).attempt == 1
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story_())


def test_an_attempt_after_a_loss_alone_neither_takes_a_token_nor_puts_one_in() -> None:
    """A lost worker is not the task's doing; but once the task has failed, each further start is a retry."""

    async def story_() -> None:
        cluster, task = Cluster(), _task(RetryBudget(1.0, 0))
        await cluster.start(task)
        first = await worker_of(cluster, lambda _: None)
        (identity,) = await _submit(cluster, task, count=1)
        await cluster.in_state(identity, State.RUNNING)
        bucket = cluster.node.parts.budgets.bucket(task)
        assert bucket is not None
        await cluster.until(lambda: value_of(bucket.count(cluster.clock.boot_us()) == 1))
        await first.disconnect()
        second = ScriptedWorker(cluster.network, cluster.clock, lambda _: None, tasks=["t"])
        second.worker_id = "worker-2"
        await second.connect(ADDRESS)
        second.beat(HEARTBEAT_US)
        await cluster.until(lambda: value_of(len(second.assigned) == 1))
        row = await cluster.instance(identity)
        assert (row.counters.lost, row.counters.failures) == (1, 0)
        assert bucket.count(cluster.clock.boot_us()) == 1
        await second.finish(second.assigned[0], failing(second.assigned[0]))
        await cluster.until(lambda: value_of(len(second.assigned) == 2))
        assert bucket.count(cluster.clock.boot_us()) == 0
        await second.disconnect()
        await cluster.stop()

    run_virtual(story_())
