"""Real workers and real nodes, several of each, in one process on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from support.cluster import python_task
from support.fleet import Fleet, FleetNode
from support.scripted_worker import ScriptedWorker

from ostinato.core.definition import TaskDefinition
from ostinato.core.ids import partition_of
from ostinato.core.instants import SECOND
from ostinato.core.states import State
from ostinato.observe.records import WorkerConnected, WorkerDisconnected
from ostinato.scheduler.config import NodeConfig
from ostinato.testing.inline_executor import InlineExecutor
from ostinato.testing.virtual_clock import run_virtual
from ostinato.worker.config import WorkerConfig
from ostinato.worker.supervisor import Supervisor

CONFIG = NodeConfig(worker_lease_us=60 * SECOND)


def _task_of(half: range, *, word: str) -> TaskDefinition:
    """A task whose partition lies in `half`: the first node by id has the lower ones, the other the rest."""
    names = (f"{word}{number}" for number in range(1000))
    name = next(name for name in names if partition_of("default", name, partition_count=64) in half)
    return python_task(name, overlap="allow")


TASK, MORE = _task_of(range(32), word="wait"), _task_of(range(32, 64), word="more")


class Nodes(Fleet):
    """Two nodes: `first` owns the partition of TASK, `other` that of MORE."""

    def __init__(self) -> None:
        super().__init__(config=CONFIG)
        self.work_gate = asyncio.Event()
        self.started_count = 0

    async def begin(self) -> None:
        await self.open("node other", TASK, MORE)
        self.first = await self._owner_of(TASK)
        self.other = await self._owner_of(MORE)
        assert self.first is not self.other

    async def _owner_of(self, task: TaskDefinition) -> FleetNode:
        return self.owner((await self.store.get_tasks([task.ref]))[task.ref].partition)

    async def crash(self, member: FleetNode) -> None:
        """The node is gone without a word; its row stays until another finds it dead."""
        await self.end(member.address, how="kill")

    async def wait(self) -> str:
        """What the tasks do."""
        self.started_count += 1
        await self.work_gate.wait()
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

    @asynccontextmanager
    async def connected_worker(self) -> AsyncIterator[Supervisor]:
        """A worker with a stream to both nodes, some heartbeats later."""
        async with self.worker("node", "other") as worker:
            await self.until(lambda: _true(sessions(self.first) == sessions(self.other) == 1))
            await self.sleep(2 * CONFIG.heartbeat_us)
            yield worker

    async def running_on(self, worker: Supervisor, count: int) -> None:
        await self.until(lambda: _true(worker.running_count == count))


def sessions(member: FleetNode) -> int:
    return len(member.node.parts.sessions.by_id)


def running(member: FleetNode) -> int:
    return len(member.node.parts.ownership.memory.running)


def play(story: Callable[[Nodes], Awaitable[None]]) -> None:
    async def whole() -> None:
        made = Nodes()
        await made.begin()
        await story(made)
        await made.close()

    run_virtual(whole())


def test_one_node_with_all_the_work_has_all_the_worker_within_a_heartbeat_or_two() -> None:
    async def story(made: Nodes) -> None:
        async with made.connected_worker() as worker:
            began_us = made.clock.boot_us()
            identities = [await made.submit(MORE) for _ in range(10)]
            await made.running_on(worker, 6)
            assert made.clock.boot_us() - began_us <= 2 * CONFIG.heartbeat_us
            assert (running(made.first), running(made.other)) == (0, 6)
            # The other one has its turn as soon as slots are free.
            later = [await made.submit(TASK) for _ in range(2)]
            await made.sleep(2 * CONFIG.heartbeat_us)
            made.work_gate.set()
            for identity in identities + later:
                row = await made.in_state(identity, State.SUCCESS)
                assert row.attempt == 1

    play(story)


def test_i2_a_node_dies_and_its_attempts_are_adopted_where_the_worker_is_connected_already() -> None:
    async def story(made: Nodes) -> None:
        async with made.connected_worker() as worker:
            identities = [await made.submit(TASK) for _ in range(3)]
            await made.running_on(worker, 3)
            await made.sleep(2 * CONFIG.heartbeat_us)
            await made.crash(made.first)
            await made.sleep(3 * CONFIG.worker_lease_us)
            assert (worker.running_count, made.started_count) == (3, 3)
            assert running(made.other) == 3
            made.work_gate.set()
            for identity in identities:
                row = await made.in_state(identity, State.SUCCESS)
                assert (row.attempt, row.counters.lost) == (1, 0)

    play(story)


def test_i1_i9_an_assignment_that_died_with_its_node_is_lost_as_soon_as_the_worker_has_reported() -> None:
    async def story(made: Nodes) -> None:
        async with made.connected_worker() as worker:
            # It is on record, and stays in the buffers of a node that is about to die.
            await made.first.node.parts.sessions.by_id[worker.worker_id]._mailbox.stop()
            identity = await made.submit(TASK)
            await made.in_state(identity, State.RUNNING)
            await made.crash(made.first)
            began_us = made.clock.boot_us()
            await made.until(lambda: _true(made.started_count == 1))
            dead_us = CONFIG.ownership_lease_us + CONFIG.ownership_margin_us + 2 * CONFIG.look_us
            assert made.clock.boot_us() - began_us <= dead_us + 3 * CONFIG.heartbeat_us
            made.work_gate.set()
            row = await made.in_state(identity, State.SUCCESS)
            assert (row.attempt, row.counters.lost) == (2, 1)

    play(story)


def test_i9_what_no_worker_reports_is_lost_after_ownership_and_worker_lease_and_not_before() -> None:
    async def story(made: Nodes) -> None:
        worker = ScriptedWorker(made.network, made.clock, lambda item: None, tasks=[TASK.name])
        await worker.connect(made.first.address)
        worker.beat(CONFIG.heartbeat_us)
        identity = await made.submit(TASK)
        await made.in_state(identity, State.RUNNING)
        await worker.disconnect()
        await made.crash(made.first)
        crashed_us = made.clock.boot_us()
        await made.until(lambda: _true(running(made.other) == 1))
        taken_us = made.clock.boot_us()
        await made.in_state(identity, State.RETRY_WAITING)
        patience_us = CONFIG.ownership_lease_us + CONFIG.worker_lease_us
        assert patience_us <= made.clock.boot_us() - taken_us + CONFIG.look_us
        # I9, and what it takes to find the node dead.
        assert made.clock.boot_us() - crashed_us <= patience_us + CONFIG.ownership_lease_us + 2 * SECOND

    play(story)


def test_a_node_by_two_addresses_is_one_session_that_stays() -> None:
    async def story(made: Nodes) -> None:
        alias = made.network.node_transport("alias")
        await alias.start(made.first.node._streams.handle)
        async with made.worker("alias", made.first.address) as worker:
            await made.until(lambda: _true(sessions(made.first) == 1))
            identity = await made.submit(TASK)
            await made.running_on(worker, 1)
            await made.sleep(3 * CONFIG.worker_lease_us)
            seen = [
                record
                for record in made.first.recorder.records
                if isinstance(record, WorkerConnected | WorkerDisconnected)
            ]
            assert [type(record) for record in seen] == [WorkerConnected]
            made.work_gate.set()
            row = await made.in_state(identity, State.SUCCESS)
            assert (row.attempt, made.started_count) == (1, 1)
        await alias.stop()

    play(story)


def test_an_outcome_is_recorded_by_the_owner_of_its_partition_and_by_nobody_else() -> None:
    """While the owner is away the other node is asked, records nothing and acknowledges nothing."""

    async def story(made: Nodes) -> None:
        async with made.connected_worker() as worker:
            identity = await made.submit(TASK)
            await made.running_on(worker, 1)
            await made.sleep(2 * CONFIG.heartbeat_us)
            made.first.freeze()
            made.work_gate.set()
            await made.sleep(CONFIG.ownership_lease_us // 2)
            assert worker.running_count == 0
            assert not worker._outbox.all_acknowledged.is_set()
            assert (await made.instance(identity)).state is State.RUNNING
            row = await made.in_state(identity, State.SUCCESS)
            assert (row.attempt, row.result) == (1, b'"done"')
            await made.until(lambda: _true(worker._outbox.all_acknowledged.is_set()))
            made.first.thaw()

    play(story)


async def _true(condition: bool) -> bool:
    return condition
