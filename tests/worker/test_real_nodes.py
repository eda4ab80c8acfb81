"""Real workers and real nodes, several of each, in one process on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from ostinato.scheduler.warm_up import warm_up
from support.cluster import Cluster, Recorder, python_task, worker_of

from ostinato.core.definition import TaskDefinition
from ostinato.core.instants import SECOND
from ostinato.core.states import State
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import WorkerConnected, WorkerDisconnected
from ostinato.scheduler.config import NodeConfig
from ostinato.scheduler.node import SchedulerNode
from ostinato.testing.inline_executor import InlineExecutor
from ostinato.testing.virtual_clock import run_virtual
from ostinato.worker.config import WorkerConfig
from ostinato.worker.supervisor import Supervisor

CONFIG = NodeConfig(worker_lease_us=60 * SECOND)
TASK, MORE = (python_task(name, overlap="allow") for name in ("wait", "more"))


class Nodes(Cluster):
    """A cluster whose nodes a story adds, kills and lets take over; `Cluster.node` is the first."""

    def __init__(self) -> None:
        super().__init__(config=CONFIG)
        self.gate = asyncio.Event()
        self.started_count = 0

    def add(self, address: str) -> SchedulerNode:
        """One more node over the shared store, not started."""
        return SchedulerNode(
            CONFIG,
            store=self.store,
            transport=self.network.node_transport(address),
            clock=self.clock,
            rng=self.rng,
            hooks=Hooks([Recorder()]),
        )

    async def crash(self, node: SchedulerNode) -> None:
        """The node is gone without a word; its row stays."""
        await node._transport.stop()
        for loop in node._loops:
            await loop.stop()
        node._is_running = False

    async def take_over(self, node: SchedulerNode, dead: SchedulerNode) -> None:
        """`node` finds the other one dead, and owns what that has owned."""
        rows = {row.id: row.renewals for row in await self.store.nodes()}
        proofs = await self.store.take_partitions(
            node.node_id,
            range(self.store.partition_count),
            dead_nodes={dead.node_id: rows[dead.node_id]},
        )
        assert proofs
        node.parts.ownership.memory.epochs.update({proof.partition: proof.epoch for proof in proofs})
        await warm_up(node.parts)
        node.dispatch.wake()
        node.health.wake()

    async def hand_over(self, task: TaskDefinition, old: SchedulerNode, new: SchedulerNode) -> None:
        """The partition of a task moves to another node."""
        partition = (await self.store.get_tasks([task.ref]))[task.ref].partition
        old.parts.ownership.memory.lose([partition])
        await self.store.release_partitions(old.node_id, [partition])
        (proof,) = await self.store.take_partitions(new.node_id, [partition])
        new.parts.ownership.memory.epochs[partition] = proof.epoch
        await warm_up(new.parts)

    async def wait(self) -> str:
        """What the task does."""
        self.started_count += 1
        await self.gate.wait()
        return "done"

    @asynccontextmanager
    async def worker(self, *addresses: str, slots: int = 6) -> AsyncIterator[Supervisor]:
        """A real worker with an executor in this process."""
        supervisor = Supervisor(
            WorkerConfig(
                worker_name="worker-1",
                scheduler=",".join(addresses),
                capacity={"async": slots},
                data_dir=Path("unused"),
            ),
            clock=self.clock,
            transport=self.network.worker_transport(),
            executors=[InlineExecutor({task.ref: self.wait for task in (TASK, MORE)}, clock=self.clock)],
            rng=Random(2),
        )
        supervisor.known_tasks.tasks.extend([TASK.ref, MORE.ref])
        running = asyncio.create_task(supervisor.run())
        try:
            yield supervisor
        finally:
            running.cancel()
            await asyncio.wait([running])


def sessions(node: SchedulerNode) -> int:
    return len(node.parts.sessions.by_id)


def running(node: SchedulerNode) -> int:
    return len(node.parts.ownership.memory.running)


def play(story: Callable[[Nodes], object]) -> None:
    async def whole() -> None:
        made = Nodes()
        await made.start(TASK, MORE)
        await story(made)  # type: ignore[misc]  # a coroutine
        await made.stop()

    run_virtual(whole())


def test_one_node_with_all_the_work_has_all_the_worker_within_a_heartbeat_or_two() -> None:
    async def story(made: Nodes) -> None:
        other = made.add("other")
        await other.start()
        await made.hand_over(TASK, made.node, other)
        async with made.worker("node", "other") as worker:
            await made.until(lambda: _true(sessions(made.node) == sessions(other) == 1))
            await made.sleep(2 * CONFIG.heartbeat_us)
            began_us = made.clock.boot_us()
            identities = [await made.submit(TASK) for _ in range(10)]
            await made.until(lambda: _true(worker.running_count == 6))
            assert made.clock.boot_us() - began_us <= 2 * CONFIG.heartbeat_us
            assert (running(made.node), running(other)) == (0, 6)
            # The other one has its turn as soon as slots are free.
            later = [await made.submit(MORE) for _ in range(2)]
            await made.sleep(2 * CONFIG.heartbeat_us)
            made.gate.set()
            for identity in identities + later:
                row = await made.in_state(identity, State.SUCCESS)
                assert row.attempt == 1
        await other.stop()

    play(story)


def test_i2_a_node_dies_and_its_attempts_are_adopted_where_the_worker_is_connected_already() -> None:
    async def story(made: Nodes) -> None:
        other = made.add("other")
        await other.start()
        async with made.worker("node", "other") as worker:
            await made.until(lambda: _true(sessions(made.node) == sessions(other) == 1))
            identities = [await made.submit(TASK) for _ in range(3)]
            await made.until(lambda: _true(worker.running_count == 3))
            await made.sleep(2 * CONFIG.heartbeat_us)
            await made.crash(made.node)
            await made.take_over(other, made.node)
            await made.sleep(3 * CONFIG.worker_lease_us)
            assert (worker.running_count, made.started_count) == (3, 3)
            made.gate.set()
            for identity in identities:
                row = await made.in_state(identity, State.SUCCESS)
                assert (row.attempt, row.counters.lost) == (1, 0)
        made.node = other

    play(story)


def test_i1_i9_an_assignment_that_died_with_its_node_is_lost_as_soon_as_the_worker_has_reported() -> None:
    async def story(made: Nodes) -> None:
        other = made.add("other")
        await other.start()
        async with made.worker("node", "other") as worker:
            await made.until(lambda: _true(sessions(made.node) == sessions(other) == 1))
            await made.sleep(2 * CONFIG.heartbeat_us)
            # It is on record, and stays in the buffers of a node that is about to die.
            await made.node.parts.sessions.by_id[worker.worker_id]._mailbox.stop()
            identity = await made.submit(TASK)
            await made.in_state(identity, State.RUNNING)
            await made.crash(made.node)
            began_us = made.clock.boot_us()
            await made.take_over(other, made.node)
            await made.until(lambda: _true(made.started_count == 1))
            assert made.clock.boot_us() - began_us <= 3 * CONFIG.heartbeat_us
            made.gate.set()
            row = await made.in_state(identity, State.SUCCESS)
            assert (row.attempt, row.counters.lost) == (2, 1)
        made.node = other

    play(story)


def test_i9_what_no_worker_reports_is_lost_after_ownership_and_worker_lease_and_not_before() -> None:
    async def story(made: Nodes) -> None:
        other = made.add("other")
        await other.start()
        worker = await worker_of(made, lambda item: None, tasks=["wait"])
        identity = await made.submit(TASK)
        await made.in_state(identity, State.RUNNING)
        await worker.disconnect()
        await made.crash(made.node)
        began_us = made.clock.boot_us()
        await made.take_over(other, made.node)
        await made.in_state(identity, State.RETRY_WAITING)
        took_us = made.clock.boot_us() - began_us
        patience_us = CONFIG.ownership_lease_us + CONFIG.worker_lease_us
        assert patience_us <= took_us <= patience_us + SECOND
        made.node = other

    play(story)


def test_a_node_by_two_addresses_is_one_session_that_stays() -> None:
    async def story(made: Nodes) -> None:
        alias = made.network.node_transport("alias")
        await alias.start(made.node._streams.handle)
        async with made.worker("alias", "node") as worker:
            await made.until(lambda: _true(sessions(made.node) == 1))
            identity = await made.submit(TASK)
            await made.until(lambda: _true(worker.running_count == 1))
            await made.sleep(3 * CONFIG.worker_lease_us)
            seen = [
                record
                for record in made.recorder.records
                if isinstance(record, WorkerConnected | WorkerDisconnected)
            ]
            assert [type(record) for record in seen] == [WorkerConnected]
            made.gate.set()
            row = await made.in_state(identity, State.SUCCESS)
            assert (row.attempt, made.started_count) == (1, 1)
        await alias.stop()

    play(story)


def test_an_outcome_is_recorded_by_the_owner_of_its_partition_and_by_nobody_else() -> None:
    """While the owner is away the other node is asked, records nothing and acknowledges nothing."""

    async def story(made: Nodes) -> None:
        other = made.add("other")
        await other.start()
        async with made.worker("node", "other") as worker:
            await made.until(lambda: _true(sessions(made.node) == sessions(other) == 1))
            identity = await made.submit(TASK)
            await made.until(lambda: _true(worker.running_count == 1))
            await made.sleep(2 * CONFIG.heartbeat_us)
            await made.crash(made.node)
            made.gate.set()
            await made.sleep(2 * CONFIG.heartbeat_us)
            assert worker.running_count == 0
            assert not worker._outbox.all_acknowledged.is_set()
            assert (await made.instance(identity)).state is State.RUNNING
            await made.take_over(other, made.node)
            row = await made.in_state(identity, State.SUCCESS)
            assert (row.attempt, row.result) == (1, b'"done"')
            await made.until(lambda: _true(worker._outbox.all_acknowledged.is_set()))
        made.node = other

    play(story)


async def _true(condition: bool) -> bool:
    return condition
