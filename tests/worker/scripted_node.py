"""A node that does exactly what a test says, and a worker on a virtual clock that talks to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TypeVar

from ostinato.core.definition import PythonSpec, TaskRef
from ostinato.core.instants import SECOND
from ostinato.core.model import Outcome
from ostinato.testing.inline_executor import InlineExecutor
from ostinato.testing.virtual_clock import VirtualClock
from ostinato.wire.inprocess import InProcessNetwork
from ostinato.wire.ledgers import CreditLedger
from ostinato.wire.messages import (
    PROTOCOL_VERSION,
    Assignment,
    Assignments,
    Heartbeat,
    HeartbeatAcknowledged,
    Hello,
    NodeMessage,
    Outcomes,
    OutcomesAcknowledged,
    Specs,
    TaskSpec,
    Welcome,
    WorkerMessage,
)
from ostinato.wire.protocol import NodeStream
from ostinato.worker.config import WorkerConfig
from ostinato.worker.executors.protocol import Executor
from ostinato.worker.supervisor import Supervisor

ADDRESS = "node-1"
WORKER_LEASE_US = 60 * SECOND
HEARTBEAT_US = 5 * SECOND

Message = TypeVar("Message", bound=WorkerMessage)


class ScriptedNode:
    """Welcomes streams and remembers what they say; acknowledges what it is told to."""

    def __init__(
        self, network: InProcessNetwork, *, address: str = ADDRESS, node_id: str = "scripted"
    ) -> None:
        self._network = network
        self.address = address
        self.node_id = node_id
        self._transport = network.node_transport(address)
        self.heard: list[WorkerMessage] = []
        self.batch_sizes: list[int] = []
        self.stream: NodeStream | None = None
        self.stream_count = 0
        self.acknowledges_outcomes = True
        self.acknowledges_heartbeats = True
        #: What an acknowledgement says that this node owns.
        self.owned = [0]
        self.epochs: list[int] = []
        #: Addresses that a welcome and later acknowledgements name.
        self.nodes: list[str] = []
        self.demand: dict[str, int] = {}
        self.asks_report = False
        self.ledger = CreditLedger()
        #: Whether it owns the partition of an outcome.
        self.records: Callable[[Outcome], bool] = lambda _: True
        self.newest_heartbeat = 0
        self.answer: Callable[[Hello], NodeMessage] = lambda _: Welcome(
            protocol=PROTOCOL_VERSION,
            node_id=self.node_id,
            worker_lease_us=WORKER_LEASE_US,
            heartbeat_us=HEARTBEAT_US,
            nodes=self.nodes,
        )
        self._changed = asyncio.Event()

    async def start(self) -> None:
        await self._transport.start(self._handle)

    async def kill(self) -> None:
        """Every stream breaks and nobody listens."""
        await self._transport.stop()
        self.stream = None

    async def restart(self) -> None:
        self._transport = self._network.node_transport(self.address)
        await self.start()

    async def send(self, *messages: NodeMessage) -> None:
        assert self.stream is not None
        await self.stream.send(list(messages))

    async def assign(self, *assignments: Assignment, heartbeat: int | None = None) -> None:
        await self.send(
            Assignments(self.newest_heartbeat if heartbeat is None else heartbeat, list(assignments))
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def connected(self, count: int = 1) -> None:
        """Wait until that many streams have been welcomed."""
        await self.until(lambda: self.stream_count >= count and self.stream is not None)

    def all(self, kind: type[Message]) -> list[Message]:
        """Messages of one kind, in order of arrival."""
        return [message for message in self.heard if isinstance(message, kind)]

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for message in self.all(Outcomes) for outcome in message.items]

    async def outcome_of(self, attempt_id: str) -> Outcome:
        """Wait for the outcome of an attempt."""
        await self.until(lambda: any(outcome.attempt_id == attempt_id for outcome in self.outcomes))
        return next(outcome for outcome in self.outcomes if outcome.attempt_id == attempt_id)

    async def _handle(self, stream: NodeStream) -> None:
        first, *rest = await stream.receive()
        assert isinstance(first, Hello)
        self._hear(first)
        answer = self.answer(first)
        await stream.send([answer])
        if not isinstance(answer, Welcome):
            return
        self.stream, self.newest_heartbeat = stream, 0
        self.ledger = CreditLedger(first.granted)
        self.stream_count += 1
        self._changed.set()
        messages: Sequence[WorkerMessage] = rest
        while True:
            for message in messages:
                self._hear(message)
                await self._answer(stream, message)
            messages = await stream.receive()

    async def _answer(self, stream: NodeStream, message: WorkerMessage) -> None:
        if isinstance(message, Heartbeat):
            self.newest_heartbeat = message.sequence
            self.ledger.update(message.granted)
            self.ledger.want(message.wanted)
            self.ledger.return_wanted()
            if self.acknowledges_heartbeats:
                await stream.send([self._acknowledgement(message)])
        elif isinstance(message, Outcomes):
            self.ledger.update(message.granted)
            if self.acknowledges_outcomes:
                answer = OutcomesAcknowledged([])
                for item in message.items:
                    (answer.attempt_ids if self.records(item) else answer.unowned).append(item.attempt_id)
                await stream.send([answer])

    def _acknowledgement(self, message: Heartbeat) -> HeartbeatAcknowledged:
        return HeartbeatAcknowledged(
            sequence=message.sequence,
            sent_boot_us=message.sent_boot_us,
            partitions=self.owned,
            nodes=self.nodes,
            returned=self.ledger.returned,
            demand=self.demand,
            asks_report=self.asks_report,
            epochs=self.epochs,
        )

    def _hear(self, message: WorkerMessage) -> None:
        self.heard.append(message)
        self._changed.set()


class Cluster:
    """A scripted node and one worker."""

    def __init__(
        self, functions: Mapping[str, Callable[..., object]], *, capacity: Mapping[str, int]
    ) -> None:
        self.clock = VirtualClock()
        self.network = InProcessNetwork()
        self.node = ScriptedNode(self.network)
        named = {TaskRef("default", name): function for name, function in functions.items()}
        self.executor: Executor = InlineExecutor(named, clock=self.clock)
        self.config = WorkerConfig(
            worker_name="worker-1",
            scheduler=ADDRESS,
            capacity=dict(capacity),
            data_dir=Path("unused"),
        )
        self.worker = self.new_worker()

    def new_worker(self) -> Supervisor:
        return Supervisor(
            self.config,
            clock=self.clock,
            transport=self.network.worker_transport(),
            executors=[self.executor],
            rng=Random(1),
        )

    async def pass_time(self, duration_us: int) -> None:
        await self.clock.sleep_until_us(self.clock.boot_us() + duration_us)


@asynccontextmanager
async def cluster(
    functions: Mapping[str, Callable[..., object]], *, capacity: Mapping[str, int] | None = None
) -> AsyncIterator[Cluster]:
    """A worker that is connected to a scripted node; what runs at the end is killed."""
    made = Cluster(functions, capacity={"process": 2, "async": 100} if capacity is None else capacity)
    await made.node.start()
    running = asyncio.create_task(made.worker.run())
    try:
        await made.node.connected()
        yield made
    finally:
        running.cancel()
        await asyncio.wait([running])
        await made.node.kill()
    if not running.cancelled():
        running.result()


def spec(
    name: str,
    *,
    timeout_us: int | None = None,
    grace_us: int = 10 * SECOND,
    heartbeat_timeout_us: int | None = None,
    is_async: bool = True,
    exclusive: str = "strict",
) -> TaskSpec:
    return TaskSpec(
        ref=TaskRef("default", name),
        version=1,
        executor=PythonSpec(call=f"tests:{name}", is_async=is_async),
        timeout_us=timeout_us,
        grace_us=grace_us,
        heartbeat_timeout_us=heartbeat_timeout_us,
        exclusive=exclusive,
    )


def specs(*items: TaskSpec) -> Specs:
    return Specs(list(items))


def assignment(name: str, attempt_id: str, payload: bytes = b"{}", *, partition: int = 0) -> Assignment:
    return Assignment(
        instance_id=f"instance-of-{attempt_id}",
        ref=TaskRef("default", name),
        version=1,
        generation=1,
        attempt=1,
        attempt_id=attempt_id,
        retry_count=0,
        payload=payload,
        due_us=0,
        partition=partition,
    )
