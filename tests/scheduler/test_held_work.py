"""Work that is held stays known to its owner, whatever happens while a round looks for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from support.cluster import Cluster, python_task, value_of, worker_of

from ostinato.core.instants import SECOND
from ostinato.core.states import Hold, State
from ostinato.store.batches import FoundWork, HeldQuery
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import VirtualClock, run_virtual
from ostinato.wire.messages import Assignment


class _InterruptedStore(MemoryStore):
    """Something happens during the next look for work of a kind, before its answer arrives."""

    def __init__(self) -> None:
        super().__init__(VirtualClock())
        self.during_correction: Callable[[], Awaitable[object]] | None = None
        self.during_held: Callable[[], Awaitable[object]] | None = None

    async def find_work(
        self, partitions: Sequence[int], *, now_us: int, limit: int, held: Sequence[HeldQuery] = ()
    ) -> FoundWork:
        found = await super().find_work(partitions, now_us=now_us, limit=limit, held=held)
        happens = None
        if limit == 0:
            happens, self.during_correction = self.during_correction, None
        elif found.instances and held:
            happens, self.during_held = self.during_held, None
        if happens is not None:
            await happens()
        return found


def _succeeds(_: Assignment) -> bytes:
    return b"1"


def test_held_work_of_a_partition_that_is_warmed_up_during_a_round_is_not_forgotten() -> None:
    """The round has not asked for it there, so that it found nothing says nothing."""

    async def story() -> None:
        store = _InterruptedStore()
        cluster = Cluster(store=store)
        task, other = python_task("t"), python_task("other")
        await cluster.start(task, other)
        identity, before = await cluster.submit(task), await cluster.submit(other)
        for each in (identity, before):
            await cluster.until(lambda each=each: _is_held(cluster, each, Hold.NO_WORKER))
        partition = (await cluster.instance(identity)).partition
        assert partition != (await cluster.instance(before)).partition
        ownership = cluster.node.parts.ownership
        warmed_up: list[bool] = []

        async def warm_up() -> None:
            warmed_up.append(partition not in ownership.memory.epochs)
            await cluster.until(lambda: value_of(partition in ownership.memory.epochs))

        store.during_correction = warm_up
        # As after a commit of which nobody knows whether it was written.
        ownership.doubt(ownership.proofs({partition}))
        worker = await worker_of(cluster, _succeeds, tasks=["t", "other"])
        await cluster.in_state(before, State.SUCCESS)
        assert warmed_up == [True]
        await cluster.in_state(identity, State.SUCCESS)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_held_work_whose_task_is_paused_during_a_round_runs_when_it_is_resumed() -> None:
    """The round itself holds it anew, all that it has found of the task."""

    async def story() -> None:
        store = _InterruptedStore()
        cluster = Cluster(store=store)
        task = python_task("t")
        await cluster.start(task)
        identity = await cluster.submit(task)
        await cluster.until(lambda: _is_held(cluster, identity, Hold.NO_WORKER))
        store.during_held = lambda: cluster.ask("pause", task="t")
        worker = await worker_of(cluster, _succeeds)
        await cluster.until(lambda: _is_held(cluster, identity, Hold.PAUSED))
        assert await cluster.ask("resume", task="t") == "OK"
        await cluster.in_state(identity, State.SUCCESS)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


async def _is_held(cluster: Cluster, identity: str, cause: Hold) -> bool:
    return (await cluster.instance(identity)).hold is cause


def test_held_work_that_a_clock_put_back_makes_due_later_runs_when_it_is_due_again() -> None:
    """A small step is believed at once; what was held before it is not due for a while, and not gone."""

    async def story() -> None:
        store = _SteppingStore()
        cluster = Cluster(store=store)
        task = python_task("t")
        await cluster.start(task)
        await cluster.sleep(2 * SECOND)
        identity = await cluster.submit(task)
        await cluster.until(lambda: _is_held(cluster, identity, Hold.NO_WORKER))
        due_us = (await cluster.instance(identity)).due_us
        store.skew_us = -4 * SECOND
        await cluster.sleep(2 * SECOND)
        worker = await worker_of(cluster, _succeeds)
        await cluster.sleep(SECOND)
        assert (await cluster.instance(identity)).state is State.PENDING
        row = await cluster.in_state(identity, State.SUCCESS)
        assert row.assigned_us is not None
        assert due_us <= row.assigned_us <= due_us + 6 * SECOND
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


class _SteppingStore(MemoryStore):
    """The clock of the database's machine is set by its operator."""

    def __init__(self) -> None:
        super().__init__(VirtualClock())
        self.skew_us = 0

    async def now_us(self) -> int:
        return await super().now_us() + self.skew_us
