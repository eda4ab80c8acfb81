"""A worker whose every message a test decides, on a real stream: the node side under test is the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ostinato.clock import Clock
from ostinato.core.definition import TaskRef
from ostinato.core.failure.failure import Failure
from ostinato.core.instants import SECOND
from ostinato.core.model import Outcome
from ostinato.errors import UnavailableError
from ostinato.wire.inprocess import InProcessNetwork
from ostinato.wire.messages import (
    PROTOCOL_VERSION,
    Accepted,
    Assignment,
    Assignments,
    Cancel,
    Heartbeat,
    Hello,
    NodeMessage,
    Outcomes,
    OutcomesAcknowledged,
    RunningReport,
    Welcome,
)
from ostinato.wire.protocol import WorkerStream

#: What becomes of an assignment: JSON of a result, a failure, or None to leave it running.
Script = Callable[[Assignment], bytes | Failure | None]


class ScriptedWorker:
    """Accepts what it is given and answers as its script says; keeps what it has seen."""

    def __init__(
        self, network: InProcessNetwork, clock: Clock, script: Script, *, tasks: list[str], slots: int = 10
    ) -> None:
        self._network = network
        self._clock = clock
        self._script = script
        self.tasks = tasks
        self.slots = slots
        self.worker_id = "worker-1"
        self.labels: dict[str, str] = {}
        self.granted = slots
        self.assigned: list[Assignment] = []
        self.cancelled: list[Cancel] = []
        self.acknowledged: list[str] = []
        self.running: dict[str, Assignment] = {}
        self.messages: list[NodeMessage] = []
        self.ended_workers: list[str] = []
        self._stream: WorkerStream | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def connect(self, address: str, *, declarations: list[bytes] | None = None) -> None:
        """Open a stream and say what this worker has; the grants of a stream start from its free slots."""
        self.granted = self.slots - len(self.running)
        self._stream = await self._network.worker_transport().connect(address)
        await self._stream.send(
            [
                Hello(
                    protocol=PROTOCOL_VERSION,
                    worker_id=self.worker_id,
                    worker_name="scripted",
                    labels=self.labels,
                    capacity={"async": self.slots, "process": self.slots},
                    granted={"async": self.granted, "process": self.granted},
                    tasks=[TaskRef("default", name) for name in self.tasks],
                    executors=["python", "shell", "http"],
                    running=[
                        RunningReport(item.instance_id, item.attempt, item.attempt_id)
                        for item in self.running.values()
                    ],
                    declarations=declarations or [],
                    ended_workers=self.ended_workers,
                )
            ]
        )
        self._tasks = [asyncio.create_task(self._receive(self._stream))]

    def beat(self, interval_us: int) -> None:
        """Send heartbeats until the stream ends."""
        assert self._stream is not None
        self._tasks.append(asyncio.create_task(self._beat(self._stream, interval_us)))

    async def finish(self, item: Assignment, answer: bytes | Failure) -> None:
        """Report the end of an attempt."""
        self.running.pop(item.attempt_id, None)
        self.granted += 1
        now_us = self._clock.wall_us()
        outcome = Outcome(
            instance_id=item.instance_id,
            attempt=item.attempt,
            attempt_id=item.attempt_id,
            started_us=now_us,
            finished_us=now_us,
            result=answer if isinstance(answer, bytes) else None,
            failure=answer if isinstance(answer, Failure) else None,
        )
        await self.report([outcome])

    async def report(self, outcomes: list[Outcome]) -> None:
        """Send outcomes as they stand."""
        assert self._stream is not None
        granted = {"async": self.granted, "process": self.granted}
        await self._stream.send([Outcomes(outcomes, granted)])

    async def disconnect(self) -> None:
        """Cut the stream."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._stream is not None:
            await self._stream.close()

    async def _receive(self, stream: WorkerStream) -> None:
        while True:
            try:
                batch = await stream.receive()
            except UnavailableError:
                return
            self.messages.extend(batch)
            for message in batch:
                if isinstance(message, Assignments):
                    await self._accept(stream, message.items)
                elif isinstance(message, Cancel):
                    self.cancelled.append(message)
                elif isinstance(message, OutcomesAcknowledged):
                    self.acknowledged.extend(message.attempt_ids)

    async def _accept(self, stream: WorkerStream, items: list[Assignment]) -> None:
        self.assigned.extend(items)
        await stream.send([Accepted([item.attempt_id for item in items])])
        for item in items:
            self.running[item.attempt_id] = item
            answer = self._script(item)
            if answer is not None:
                await self.finish(item, answer)

    async def _beat(self, stream: WorkerStream, interval_us: int) -> None:
        sequence = 0
        while True:
            sequence += 1
            granted = {"async": self.granted, "process": self.granted}
            try:
                await stream.send([Heartbeat(sequence, self._clock.boot_us(), granted)])
            except UnavailableError:
                return
            await self._clock.sleep_until_us(self._clock.boot_us() + interval_us)

    @property
    def welcome(self) -> Welcome | None:
        """The node's answer to the newest hello."""
        found = [message for message in self.messages if isinstance(message, Welcome)]
        return found[-1] if found else None


HEARTBEAT_US = SECOND
