"""Work for a slot that is free is found soon, however much work for slots that are not stands before it."""

from __future__ import annotations

from collections.abc import Sequence

from support.cluster import Cluster, python_task, value_of, worker_of

from ostinato.clock import Clock
from ostinato.core.definition import PythonSpec
from ostinato.core.instants import SECOND
from ostinato.core.states import Hold, State
from ostinato.store.batches import FoundWork, HeldQuery
from ostinato.store.memory import MemoryStore
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

    async def find_work(
        self, partitions: Sequence[int], *, now_us: int, limit: int, held: Sequence[HeldQuery] = ()
    ) -> FoundWork:
        self.read_count += limit > 0
        found = await super().find_work(partitions, now_us=now_us, limit=limit, held=held)
        self.row_count += len(found.instances)
        return found


def _runs_on(_: Assignment) -> None:
    """Nothing ends."""


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
        for _ in range(BACKLOG_COUNT):
            await cluster.submit(many)
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
        await cluster.start(*tasks)
        worker = await worker_of(cluster, _runs_on, tasks=[task.name for task in tasks], slots=SLOT_COUNT)
        for number in range(SLOT_COUNT + TASK_COUNT * HELD_COUNT):
            await cluster.submit(tasks[number % TASK_COUNT])
        await cluster.until(lambda: value_of(len(worker.assigned) == SLOT_COUNT))
        await cluster.sleep(5 * SECOND)
        rows = await cluster.instances(states=(State.PENDING,))
        assert sum(row.hold is Hold.BUSY for row in rows) > 4 * SLOT_COUNT
        store.row_count = 0
        for item in list(worker.running.values()):
            await worker.finish(item, b"1")
        await cluster.until(lambda: value_of(len(worker.assigned) == 2 * SLOT_COUNT))
        assert store.row_count <= 4 * SLOT_COUNT
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())
