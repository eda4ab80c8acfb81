"""What a node assigns while its worker begins to drain is on its way when the worker would like to end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from support.cluster import ADDRESS, Cluster, python_task, value_of

from ostinato.core.definition import TaskDefinition
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.states import State
from ostinato.store.batches import CommitBatch, CommitReport
from ostinato.store.memory import MemoryStore
from ostinato.testing.inline_executor import InlineExecutor
from ostinato.testing.virtual_clock import VirtualClock, run_virtual
from ostinato.wire.messages import NodeMessage, WorkerMessage
from ostinato.wire.protocol import WorkerStream, WorkerTransport
from ostinato.worker.config import WorkerConfig
from ostinato.worker.supervisor import Supervisor

DRAIN_US = 10 * SECOND


class SlowStore(MemoryStore):
    """Takes `commit_us` to commit what moves an instance to a worker."""

    commit_us = 0

    async def commit(self, batch: CommitBatch) -> CommitReport:
        report = await super().commit(batch)
        if batch.assigns:
            await self._clock.sleep_until_us(self._clock.boot_us() + self.commit_us)
        return report


class _LateStream:
    """What the node says arrives some time after it was sent, in order."""

    def __init__(self, stream: WorkerStream, transport: LateTransport) -> None:
        self._stream = stream
        self._transport = transport

    @property
    def peer(self) -> str:
        return self._stream.peer

    async def send(self, messages: Sequence[WorkerMessage]) -> None:
        await self._stream.send(messages)

    async def receive(self) -> list[NodeMessage]:
        messages = await self._stream.receive()
        await self._transport.travel()
        return messages

    async def close(self) -> None:
        await self._stream.close()


class LateTransport:
    """A transport whose nodes are `delay_us` away, or do not answer at all once `is_silent` is set."""

    def __init__(self, transport: WorkerTransport, clock: VirtualClock, *, delay_us: int) -> None:
        self._transport = transport
        self._clock = clock
        self._delay_us = delay_us
        self.is_silent = False

    async def connect(self, address: str) -> WorkerStream:
        return _LateStream(await self._transport.connect(address), self)

    async def close(self) -> None:
        await self._transport.close()

    async def travel(self) -> None:
        if self.is_silent:
            await asyncio.Event().wait()
        await self._clock.sleep_until_us(self._clock.boot_us() + self._delay_us)


class _Story:
    """A real node and a real worker that is far away from it."""

    def __init__(self, *, delay_us: int, commit_us: int) -> None:
        self.store = SlowStore(VirtualClock())
        self.cluster = Cluster(store=self.store)
        self.store._clock = self.clock = self.cluster.clock
        self.store.commit_us = commit_us
        self.task: TaskDefinition = python_task()
        network = self.cluster.network.worker_transport()
        self.transport = LateTransport(network, self.clock, delay_us=delay_us)

    async def begin(self) -> tuple[Supervisor, asyncio.Task[None]]:
        await self.cluster.start(self.task)

        async def runs() -> str:
            return "ran"

        worker = Supervisor(
            WorkerConfig(
                worker_name="worker-1",
                scheduler=ADDRESS,
                capacity={"async": 2},
                data_dir=Path("unused"),
                drain_timeout_us=DRAIN_US,
            ),
            clock=self.clock,
            transport=self.transport,
            executors=[InlineExecutor({self.task.ref: runs}, clock=self.clock)],
            rng=Random(1),
        )
        running = asyncio.create_task(worker.run())
        await self.cluster.until(lambda: value_of(worker.is_connected.is_set()))
        return worker, running


@pytest.mark.parametrize("delay_us", [0, 30 * MILLISECOND, 2 * SECOND])
@pytest.mark.parametrize("commit_us", [0, 50 * MILLISECOND, SECOND])
@pytest.mark.parametrize("before_us", [0, 10 * MILLISECOND, 40 * MILLISECOND, 1500 * MILLISECOND])
def test_i9_what_is_assigned_while_a_worker_begins_to_drain_is_handed_back_uncounted_before_it_ends(
    delay_us: int, commit_us: int, before_us: int
) -> None:
    async def play() -> None:
        story = _Story(delay_us=delay_us, commit_us=commit_us)
        cluster = story.cluster
        worker, running = await story.begin()
        identity = await cluster.submit(story.task)
        if before_us:
            await cluster.sleep(before_us)
        worker.drain("SIGTERM")
        began_us = story.clock.boot_us()
        await running
        assert story.clock.boot_us() - began_us < DRAIN_US
        await cluster.sleep(100 * MILLISECOND)
        row = await cluster.instance(identity)
        assert row.state is not State.RUNNING
        assert (row.counters.failures, row.counters.lost) == (0, 0)
        await cluster.node.stop()

    run_virtual(play())


def test_a_node_that_does_not_answer_holds_a_drain_up_to_its_limit_and_a_stop_not_so_long() -> None:
    async def play(*, stops: bool) -> int:
        story = _Story(delay_us=0, commit_us=0)
        worker, running = await story.begin()
        story.transport.is_silent = True
        began_us = story.clock.boot_us()
        worker.drain("SIGTERM")
        await story.cluster.sleep(2 * SECOND)
        assert not running.done()
        if stops:
            worker.stop("SIGINT")
        await running
        took_us = story.clock.boot_us() - began_us
        await story.cluster.node.stop()
        return took_us

    async def both() -> None:
        assert await play(stops=False) <= DRAIN_US
        assert await play(stops=True) <= 4 * SECOND

    run_virtual(both())
