"""A worker with a stream to every node, which keeps leases as the protocol asks; its tasks are a script.

It stops a strict attempt a margin before its partition's lease ends, refuses what comes too late, repeats
outcomes to all nodes until one of them acknowledges, and remembers who ran what when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from ostinato.clock import Clock
from ostinato.core.definition import TaskRef
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.model import Outcome
from ostinato.errors import OstinatoError
from ostinato.wire.inprocess import InProcessNetwork
from ostinato.wire.messages import (
    PROTOCOL_VERSION,
    Accepted,
    Assignment,
    Assignments,
    Cancel,
    Heartbeat,
    HeartbeatAcknowledged,
    Hello,
    NodeMessage,
    Outcomes,
    OutcomesAcknowledged,
    RunningReport,
    Welcome,
)
from ostinato.wire.protocol import WorkerStream

Body = Callable[[Assignment], Awaitable[bytes | Failure]]
HEARTBEAT_US = SECOND
#: Before its lease ends an attempt is stopped.
MARGIN_US = SECOND
RECONNECT_US = 300 * MILLISECOND


class Execution(msgspec.Struct):
    """One attempt as it really ran."""

    instance_id: str
    attempt: int
    attempt_id: str
    began_us: int
    ended_us: int | None = None


class _Link:
    """One stream to one node."""

    def __init__(self, stream: WorkerStream, *, granted: int, opened_us: int) -> None:
        self.stream = stream
        self.granted = granted
        #: When each heartbeat was sent; the greeting counts as the first.
        self.sent_us = [opened_us]


class FleetWorker:
    """Connects to each address by itself, again and again, until stopped or killed."""

    def __init__(
        self,
        name: str,
        network: InProcessNetwork,
        clock: Clock,
        *,
        body: Body,
        tasks: list[str],
        slots: int = 20,
    ) -> None:
        self.worker_id = name
        self._network = network
        self._clock = clock
        self._body = body
        self._names = tasks
        self._slots = slots
        self._lease_us = 0
        self._links: dict[str, _Link] = {}
        self._lease_ends_us: dict[int, int] = {}
        #: What it has, by attempt id, each with the address that assigned it.
        self._has: dict[str, tuple[Assignment, str]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._unacknowledged: dict[str, Outcome] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self.executions: list[Execution] = []
        self.cancelled: list[str] = []
        self.refused_count = 0

    @property
    def holding(self) -> set[str]:
        """Ids of the attempts whose end nobody has acknowledged."""
        return set(self._has)

    def dial(self, address: str) -> None:
        """Keep a stream to the node there; nothing if it does already."""
        if address in self._keepers:
            return
        self._keepers[address] = asyncio.create_task(self._keep(address))
        if not self._tasks:
            self._tasks.append(asyncio.create_task(self._guard()))

    def cut(self, address: str) -> None:
        """Have no stream to the node there any more."""
        self._keepers.pop(address).cancel()

    def toggle(self, address: str) -> None:
        """Cut the stream, or open it again."""
        if address in self._keepers:
            self.cut(address)
        else:
            self.dial(address)

    async def kill(self) -> None:
        """The machine is gone: everything ends at this moment."""
        tasks = [*self._tasks, *self._keepers.values(), *self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        self._keepers.clear()
        for link in self._links.values():
            await link.stream.close()

    # ── streams ──────────────────────────────────────────────────────────────────────────────────────

    async def _keep(self, address: str) -> None:
        transport = self._network.worker_transport()
        while True:
            with suppress(OstinatoError):
                stream = await transport.connect(address)
                await self._serve(address, stream)
            await self._sleep(RECONNECT_US)

    async def _serve(self, address: str, stream: WorkerStream) -> None:
        mine = sum(origin == address for _, origin in self._has.values())
        link = _Link(stream, granted=self._slots - mine, opened_us=self._clock.boot_us())
        self._links[address] = link
        beating = asyncio.create_task(self._beat(link))
        try:
            await stream.send([self._hello(link)])
            if self._unacknowledged:
                await stream.send([Outcomes(list(self._unacknowledged.values()), self._grants(link))])
            while True:
                for message in await stream.receive():
                    await self._take(address, link, message)
        finally:
            beating.cancel()
            if self._links.get(address) is link:
                del self._links[address]
            await stream.close()

    def _hello(self, link: _Link) -> Hello:
        return Hello(
            protocol=PROTOCOL_VERSION,
            worker_id=self.worker_id,
            worker_name=self.worker_id,
            capacity={"async": 3 * self._slots},
            granted=self._grants(link),
            tasks=[TaskRef("default", name) for name in self._names],
            executors=["python"],
            running=[
                RunningReport(item.instance_id, item.attempt, item.attempt_id)
                for item, _ in self._has.values()
            ],
        )

    @staticmethod
    def _grants(link: _Link) -> dict[str, int]:
        return {"async": link.granted}

    async def _beat(self, link: _Link) -> None:
        while True:
            sequence = len(link.sent_us)
            link.sent_us.append(self._clock.boot_us())
            with suppress(OstinatoError):
                await link.stream.send([Heartbeat(sequence, link.sent_us[-1], self._grants(link))])
                if self._unacknowledged:
                    items = list(self._unacknowledged.values())
                    await link.stream.send([Outcomes(items, self._grants(link))])
            await self._sleep(HEARTBEAT_US)

    async def _take(self, address: str, link: _Link, message: NodeMessage) -> None:
        if isinstance(message, Welcome):
            self._lease_us = message.worker_lease_us
        elif isinstance(message, HeartbeatAcknowledged):
            for partition in message.partitions:
                self._extend(partition, link.sent_us[message.sequence])
        elif isinstance(message, Assignments):
            for item in message.items:
                await self._accept(address, link, item, link.sent_us[message.heartbeat_sequence])
        elif isinstance(message, Cancel):
            self.cancelled.append(message.attempt_id)
            self._stop(message.attempt_id, "cancelled")
        elif isinstance(message, OutcomesAcknowledged):
            for attempt_id in message.attempt_ids:
                if self._unacknowledged.pop(attempt_id, None) is not None:
                    self._free(attempt_id)

    def _free(self, attempt_id: str) -> None:
        _, origin = self._has.pop(attempt_id)
        link = self._links.get(origin)
        if link is not None:
            link.granted += 1

    # ── leases and attempts ──────────────────────────────────────────────────────────────────────────

    def _extend(self, partition: int, sent_us: int) -> None:
        end_us = sent_us + self._lease_us
        self._lease_ends_us[partition] = max(end_us, self._lease_ends_us.get(partition, 0))

    def _is_over(self, partition: int) -> bool:
        return self._clock.boot_us() >= self._lease_ends_us.get(partition, 0) - MARGIN_US

    async def _accept(self, address: str, link: _Link, item: Assignment, sent_us: int) -> None:
        await link.stream.send([Accepted([item.attempt_id])])
        if item.attempt_id in self._has:
            return
        self._has[item.attempt_id] = (item, address)
        if self._clock.boot_us() >= sent_us + self._lease_us - MARGIN_US:
            self.refused_count += 1
            await self._report(item, unstarted_reason="its lease was over when it arrived")
            return
        self._extend(item.partition, sent_us)
        self._running[item.attempt_id] = asyncio.create_task(self._run(item))

    async def _run(self, item: Assignment) -> None:
        now_us = self._clock.boot_us()
        execution = Execution(item.instance_id, item.attempt, item.attempt_id, now_us)
        self.executions.append(execution)
        try:
            answer = await self._body(item)
        finally:
            execution.ended_us = self._clock.boot_us()
            self._running.pop(item.attempt_id, None)
        await self._report(item, answer)

    def _stop(self, attempt_id: str, why: str) -> None:
        task = self._running.get(attempt_id)
        if task is None:
            return
        task.cancel()
        item, _ = self._has[attempt_id]
        code = "CANCELLED" if why == "cancelled" else "LEASE_EXPIRED"
        self._tasks.append(asyncio.create_task(self._report(item, safe_failure(code, why))))

    async def _guard(self) -> None:
        """Stop what has no lease any more."""
        while True:
            for attempt_id in list(self._running):
                if self._is_over(self._has[attempt_id][0].partition):
                    self._stop(attempt_id, "its lease has ended")
            await self._sleep(100 * MILLISECOND)

    async def _report(
        self, item: Assignment, answer: bytes | Failure = b"", *, unstarted_reason: str = ""
    ) -> None:
        now_us = self._clock.wall_us()
        outcome = Outcome(
            instance_id=item.instance_id,
            attempt=item.attempt,
            attempt_id=item.attempt_id,
            started_us=None if unstarted_reason else now_us,
            finished_us=now_us,
            result=answer if isinstance(answer, bytes) and not unstarted_reason else None,
            failure=answer if isinstance(answer, Failure) else None,
            unstarted_reason=unstarted_reason,
        )
        self._unacknowledged[item.attempt_id] = outcome
        for link in list(self._links.values()):
            with suppress(OstinatoError):
                await link.stream.send([Outcomes([outcome], self._grants(link))])

    async def _sleep(self, duration_us: int) -> None:
        await self._clock.sleep_until_us(self._clock.boot_us() + duration_us)
