"""Work for a slot that is free is found soon, however much work for slots that are not stands before it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.cluster import ADDRESS, Cluster, python_task, value_of, worker_of
from support.scripted_worker import HEARTBEAT_US, ScriptedWorker

from ostinato.clock import Clock
from ostinato.core.changes import CommitBatch, CommitReport
from ostinato.core.definition import PythonSpec, TaskDefinition
from ostinato.core.instants import HOUR, SECOND
from ostinato.core.states import Hold, State
from ostinato.scheduler.work_behind import TASKS_PER_LOOK
from ostinato.store.batches import FoundWork, HeldQuery
from ostinato.store.memory import MemoryStore
from ostinato.store.rules import TOLD_COUNT
from ostinato.testing.virtual_clock import VirtualClock, run_virtual
from ostinato.wire.messages import Assignment

BACKLOG_COUNT = 6_000
#: One for each thousand rows, and a few until so many are read at once.
READ_COUNT_MAX = 12
TASK_COUNT = 30
HELD_COUNT = 200
SLOT_COUNT = 600


class _CountingStore(MemoryStore):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.read_count = 0
        self.row_count = 0
        self.hold_count = 0

    async def commit(self, batch: CommitBatch) -> CommitReport:
        self.hold_count += len(batch.holds)
        return await super().commit(batch)

    async def find_work(
        self, partitions: Sequence[int], *, now_us: int, limit: int, held: Sequence[HeldQuery] = ()
    ) -> FoundWork:
        self.read_count += limit > 0
        found = await super().find_work(partitions, now_us=now_us, limit=limit, held=held)
        self.row_count += len(found.instances)
        return found


def _runs_on(_: Assignment) -> None:
    """Nothing ends."""


async def _backlog(cluster: Cluster, *definitions: TaskDefinition, count: int) -> list[str]:
    """Instances of the tasks in turn, all due before what is submitted next."""
    due_us = cluster.clock.wall_us() - SECOND
    return [
        await cluster.submit(definitions[number % len(definitions)], due_us=due_us + number)
        for number in range(count)
    ]


def test_a_free_slot_does_not_wait_for_a_walk_through_the_backlog_of_another_pool() -> None:
    async def story() -> None:
        store = _CountingStore(VirtualClock())
        cluster = Cluster(store=store)
        many, other = python_task("many"), python_task("other", executor=PythonSpec("tasks:other"))
        await cluster.start(many, other)
        worker = await worker_of(cluster, _runs_on, tasks=["many", "other"])
        for _ in range(10):
            await cluster.submit(many)
        await cluster.until(lambda: value_of(len(worker.assigned) == 10))
        await cluster.node.dispatch.stop()
        await _backlog(cluster, many, count=BACKLOG_COUNT)
        last = await cluster.submit(other)
        store.read_count = 0
        cluster.node.dispatch.start()
        await cluster.in_state(last, State.RUNNING)
        assert store.read_count <= READ_COUNT_MAX
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_what_is_read_of_a_backlog_grows_with_what_is_started_and_not_with_the_tasks_that_wait() -> None:
    async def story() -> None:
        store = _CountingStore(VirtualClock())
        cluster = Cluster(store=store)
        tasks = [python_task(f"t{number}") for number in range(TASK_COUNT)]
        other = python_task("other", executor=PythonSpec("tasks:other"))
        await cluster.start(*tasks, other)
        names = [task.name for task in [*tasks, other]]
        worker = await worker_of(cluster, _runs_on, tasks=names, slots=SLOT_COUNT)
        for number in range(SLOT_COUNT):
            await cluster.submit(tasks[number % TASK_COUNT])
        await cluster.until(lambda: value_of(len(worker.assigned) == SLOT_COUNT))
        filling = list(worker.running.values())
        await cluster.node.dispatch.stop()
        await _backlog(cluster, *tasks, count=TASK_COUNT * HELD_COUNT)
        last = await cluster.submit(other)
        cluster.node.dispatch.start()
        # All that stands before it is held.
        await cluster.in_state(last, State.RUNNING)
        rows = await cluster.instances(states=(State.PENDING,))
        assert sum(row.hold is Hold.BUSY for row in rows) > 4 * SLOT_COUNT
        store.row_count = 0
        for item in filling:
            await worker.finish(item, b"1")
        await cluster.until(lambda: value_of(len(worker.assigned) == 2 * SLOT_COUNT + 1))
        assert store.row_count <= 4 * SLOT_COUNT
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_backlog_beside_an_idle_slot_of_another_pool_is_worked_off_without_a_hold() -> None:
    async def story() -> None:
        store = _CountingStore(VirtualClock())
        cluster = Cluster(store=store)
        many, other = python_task("many"), python_task("other", executor=PythonSpec("tasks:other"))
        await cluster.start(many, other)
        await cluster.node.dispatch.stop()
        identities = await _backlog(cluster, many, count=1_000)
        # Before the first look: one that finds no worker at all holds what it has read.
        worker = await worker_of(cluster, lambda _: b"1", tasks=["many", "other"])
        cluster.node.dispatch.start()
        await cluster.in_state(identities[-1], State.SUCCESS)
        assert [item.instance_id for item in worker.assigned] == identities
        assert store.hold_count == 0
        # Not much more is read than is placed.
        assert store.row_count <= 2.5 * len(identities)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_backlog_whose_workers_stay_busy_is_neither_held_nor_read_again_and_again() -> None:
    async def story() -> None:
        store = _CountingStore(VirtualClock())
        cluster = Cluster(store=store)
        many, other = python_task("many"), python_task("other", executor=PythonSpec("tasks:other"))
        await cluster.start(many, other)
        worker = await worker_of(cluster, _runs_on, tasks=["many", "other"])
        await _backlog(cluster, many, count=1_000)
        await cluster.until(lambda: value_of(len(worker.assigned) == 10))
        await cluster.sleep(SECOND)
        store.read_count = 0
        await cluster.sleep(10 * SECOND)
        # Each heartbeat has it look once, and nothing else does.
        assert store.read_count <= 10 * SECOND // HEARTBEAT_US + 5
        assert store.hold_count == 0
        before_us = cluster.clock.wall_us()
        late = await cluster.submit(other)
        row = await cluster.in_state(late, State.RUNNING)
        assert row.assigned_us is not None
        assert row.assigned_us - before_us <= SECOND
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize("depth", [1, 100, 3_000])
def test_work_for_an_idle_slot_starts_within_a_second_however_deep_it_stands(depth: int) -> None:
    """Again and again: each finds its slot free, and a backlog before it."""

    async def story() -> None:
        cluster = Cluster()
        many, other = python_task("many"), python_task("other", executor=PythonSpec("tasks:other"))
        await cluster.start(many, other)
        worker = await worker_of(cluster, _runs_on, tasks=["many", "other"])
        for _ in range(10):
            await cluster.submit(many)
        await cluster.until(lambda: value_of(len(worker.assigned) == 10))
        for _ in range(3):
            await _backlog(cluster, many, count=depth)
            asked_us = cluster.clock.wall_us()
            last = await cluster.submit(other)
            row = await cluster.in_state(last, State.RUNNING)
            assert row.assigned_us is not None
            assert row.assigned_us - asked_us <= SECOND
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_work_for_an_idle_worker_with_other_labels_of_the_same_pool_starts_behind_a_backlog() -> None:
    async def story() -> None:
        store = _CountingStore(VirtualClock())
        cluster = Cluster(store=store)
        here, there = python_task("t", labels={"site": "a"}), python_task("u", labels={"site": "b"})
        await cluster.start(here, there)
        workers = []
        for site in ("a", "b"):
            worker = ScriptedWorker(cluster.network, cluster.clock, _runs_on, tasks=["t", "u"])
            worker.worker_id, worker.labels = f"worker-{site}", {"site": site}
            await worker.connect(ADDRESS)
            worker.beat(HEARTBEAT_US)
            workers.append(worker)
        await _backlog(cluster, here, count=2_000)
        await cluster.until(lambda: value_of(len(workers[0].assigned) == 10))
        await cluster.sleep(SECOND)
        assert store.hold_count == 0
        asked_us = cluster.clock.wall_us()
        identities = [await cluster.submit(there) for _ in range(3)]
        for identity in identities:
            row = await cluster.in_state(identity, State.RUNNING)
            assert row.worker_id == "worker-b"
            assert row.assigned_us is not None
            assert row.assigned_us - asked_us <= SECOND
        for worker in workers:
            await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_work_for_an_idle_slot_is_found_among_more_tasks_than_are_asked_for_at_once() -> None:
    async def story() -> None:
        cluster = Cluster()
        many = [python_task(f"m{number:03}") for number in range(2 * TASKS_PER_LOOK + 50)]
        others = [python_task(name, executor=PythonSpec(f"tasks:{name}")) for name in ("a", "m2", "z")]
        await cluster.start(*many, *others)
        names = [task.name for task in [*many, *others]]
        worker = await worker_of(cluster, _runs_on, tasks=names)
        await _backlog(cluster, *many, count=3 * len(many))
        await cluster.until(lambda: value_of(len(worker.assigned) == 10))
        for other in others:
            asked_us = cluster.clock.wall_us()
            last = await cluster.submit(other)
            row = await cluster.in_state(last, State.RUNNING)
            assert row.assigned_us is not None
            assert row.assigned_us - asked_us <= SECOND
            # What comes stands behind a backlog again.
            await _backlog(cluster, *many, count=len(many))
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_work_that_might_wait_and_does_not_has_a_backlog_held_once_and_nothing_looked_at_for_ever() -> None:
    """Of a task that has so many instances that are due later, the store does not tell."""

    async def story() -> None:
        store = _CountingStore(VirtualClock())
        cluster = Cluster(store=store)
        many, other = python_task("many"), python_task("other", executor=PythonSpec("tasks:other"))
        await cluster.start(many, other)
        worker = await worker_of(cluster, _runs_on, tasks=["many", "other"])
        later_us = cluster.clock.wall_us() + HOUR
        for number in range(TOLD_COUNT + 1):
            await cluster.submit(other, due_us=later_us + number)
        await _backlog(cluster, many, count=1_000)
        await cluster.until(lambda: value_of(len(worker.assigned) == 10))
        await cluster.sleep(5 * SECOND)
        assert store.hold_count <= 1_000
        store.read_count = store.hold_count = 0
        await cluster.sleep(10 * SECOND)
        # Each heartbeat has it look twice, at what is near and then at all that is left.
        assert store.read_count <= 2 * 10 * SECOND // HEARTBEAT_US + 5
        assert store.hold_count == 0
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())
