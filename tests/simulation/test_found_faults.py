"""Faults of the product that the simulator has found, each as a plain story of its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.simulated import SimulatedCluster, executions, short

from ostinato.clock import Clock
from ostinato.core.definition import TaskRef
from ostinato.core.instants import HOUR, MILLISECOND, SECOND
from ostinato.core.model import Instance
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.states import State
from ostinato.scheduler.shared_time import SharedTime
from ostinato.simulation.database import DatabaseServer
from ostinato.simulation.executions import work_for
from ostinato.simulation.process import Process
from ostinato.simulation.worker_host import WorkerHost
from ostinato.store.batches import CommitBatch, CommitReport, FoundWork, HeldQuery
from ostinato.store.memory import MemoryStore
from ostinato.store.protocol import Store
from ostinato.testing.virtual_clock import VirtualClock, run_virtual


def test_what_an_overlap_rule_has_freed_gets_a_slot_that_another_node_was_promised() -> None:
    """Two nodes, one slot: it goes to either in turn, and whoever needs it must say so (seed 16)."""

    async def story(cluster: SimulatedCluster) -> None:
        cluster.task("queued", short, overlap="queue")
        await cluster.open()
        worker = WorkerHost(
            cluster.machine("single"),
            network=cluster.network,
            history=cluster.history,
            functions=cluster._functions,
            scheduler=",".join(node.address for node in cluster.nodes),
            capacity={"process": 1, "async": 1},
        )
        worker.start()
        for _ in range(4):
            await cluster.submit("queued")
        await cluster.all_ended(within_us=60 * SECOND)
        assert [row.state for row in await cluster.instances()] == [State.SUCCESS] * 4

    SimulatedCluster(1, workers=0).run(story)


def test_what_waits_behind_a_replacement_that_was_decided_in_the_same_round_is_not_forgotten() -> None:
    """Held rows that a round leaves to the next one are still held rows of the task (seed 8)."""

    async def story(cluster: SimulatedCluster) -> None:
        cluster.task("replaced", short, overlap="replace")
        await cluster.open()
        ref = TaskRef("default", "replaced")
        await cluster.client.set_flag(ref, verb="pause")
        for _ in range(4):
            await cluster.submit("replaced")
            await cluster.sleep(SECOND)
        await cluster.client.set_flag(ref, verb="resume")
        await cluster.all_ended(within_us=60 * SECOND)
        assert [row.state for row in await cluster.instances()][-1] is State.SUCCESS

    SimulatedCluster(1, nodes=1, workers=1).run(story)


class _SlowSearch(MemoryStore):
    """Looking for work takes a moment, looking for what has expired two seconds."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._slow = clock

    async def find_work(
        self, partitions: Sequence[int], *, now_us: int, limit: int, held: Sequence[HeldQuery] = ()
    ) -> FoundWork:
        found = await super().find_work(partitions, now_us=now_us, limit=limit, held=held)
        await self._slow.sleep_until_us(self._slow.boot_us() + 300 * MILLISECOND)
        return found

    async def find_expired(self, partitions: Sequence[int], *, now_us: int, limit: int) -> list[Instance]:
        found = await super().find_expired(partitions, now_us=now_us, limit=limit)
        await self._slow.sleep_until_us(self._slow.boot_us() + 2 * SECOND)
        return found


async def _fails() -> None:
    raise ConnectionResetError


def test_no_retry_starts_after_its_window_however_long_the_search_for_work_takes() -> None:
    """I3: the retry falls due shortly before the end of its window (seed 28)."""

    async def story(cluster: SimulatedCluster) -> None:
        retry = RetryPolicy(backoff="fixed", interval_us=9_800 * MILLISECOND, window_us=10 * SECOND)
        cluster.task("late", _fails, retry=retry)
        await cluster.open()
        await cluster.submit("late")
        await cluster.all_ended(within_us=60 * SECOND)
        (row,) = await cluster.instances()
        assert row.attempt == 1
        assert row.failure is not None
        assert row.failure.code == "WINDOW_PASSED"

    cluster = SimulatedCluster(1, nodes=1, workers=1)
    cluster.store = _SlowSearch(cluster.loop.true_clock)
    cluster.client.restart()
    cluster.run(story)


class _DatabaseCluster(SimulatedCluster):
    """Over the simulated database, which can be broken."""

    _server: DatabaseServer | None = None

    @property
    def server(self) -> DatabaseServer:
        if self._server is None:
            self._server = DatabaseServer(
                self.loop, self.history, rng=self.loop.random_for("database"), partition_count=4
            )
            self.store = self._server.memory
        return self._server

    def store_for(self, process: Process, clock: Clock) -> Store:
        return self.server.store_for(process, clock)


def test_an_assignment_whose_commit_nobody_heard_of_is_known_as_soon_as_the_database_answers() -> None:
    """I9: it was running in the database and unknown to its owner, for two minutes (seed 264)."""

    async def story(cluster: SimulatedCluster) -> None:
        assert isinstance(cluster, _DatabaseCluster)
        cluster.task("unheard", short)
        await cluster.open()
        await cluster.sleep(2 * SECOND)
        server = cluster.server
        server.break_connections("n1", there_share=0.0, back_share=1.0, commits_only=True)
        await cluster.submit("unheard")
        await cluster.sleep(15 * SECOND)
        (row,) = await cluster.instances()
        assert row.state is State.RUNNING
        server.keep_connections("n1")
        # 2·OL + WL + 2 s, and the attempt that follows.
        await cluster.all_ended(within_us=15 * SECOND)

    _DatabaseCluster(1, nodes=1, workers=1).run(story)


class _SlowAssignments(MemoryStore):
    """The answer to the commit of an assignment takes two seconds."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._slow = clock

    async def commit(self, batch: CommitBatch) -> CommitReport:
        report = await super().commit(batch)
        if batch.assigns:
            await self._slow.sleep_until_us(self._slow.boot_us() + 2 * SECOND)
        return report


async def _long() -> None:
    await work_for(HOUR)


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "process"])
def test_what_is_cancelled_before_its_worker_has_been_given_it_ends_as_soon_as_the_worker_has(
    is_async: bool,
) -> None:
    """The signal came before the assignment, and was never given again (seed 6902)."""

    async def story(cluster: SimulatedCluster) -> None:
        cluster.task("long", _long, is_async=is_async, timeout_us=2 * HOUR)
        await cluster.open()
        await cluster.sleep(2 * SECOND)
        identity = await cluster.submit("long")
        await cluster.sleep(SECOND)
        (row,) = await cluster.instances()
        assert row.state is State.RUNNING
        assert executions(cluster.events) == []
        assert await cluster.client.cancel(identity) == "OK"
        await cluster.all_ended(within_us=5 * SECOND)
        (row,) = await cluster.instances()
        assert row.state is State.CANCELLED

    cluster = SimulatedCluster(1, nodes=1, workers=1)
    cluster.store = _SlowAssignments(cluster.loop.true_clock)
    cluster.client.restart()
    cluster.run(story)


class _SlowStore(MemoryStore):
    """The database's time takes a while to be asked for, and a while to arrive."""

    there_us = back_us = 0

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self._slow = clock

    async def now_us(self) -> int:
        await self._slow.sleep_until_us(self._slow.boot_us() + self.there_us)
        found = await super().now_us()
        await self._slow.sleep_until_us(self._slow.boot_us() + self.back_us)
        return found


def test_an_answer_that_is_slow_on_one_way_makes_the_shared_time_neither_early_nor_late() -> None:
    """I4: half of the way was once added to the time (seed 1)."""

    async def story() -> None:
        clock = VirtualClock()
        store = _SlowStore(clock)
        time = SharedTime(store, clock)
        await time.sample()
        for store.there_us, store.back_us in ((4 * SECOND, 0), (0, 4 * SECOND), (0, 0)):
            await time.sample()
            assert time.now_us() == clock.wall_us()

    run_virtual(story())


def test_the_first_sample_of_the_shared_time_is_never_ahead() -> None:
    async def story() -> None:
        clock = VirtualClock()
        store = _SlowStore(clock)
        store.there_us = 2 * SECOND
        time = SharedTime(store, clock)
        await time.sample()
        assert time.now_us() <= clock.wall_us()

    run_virtual(story())
