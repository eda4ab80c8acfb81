"""Several nodes over real sockets: the death of one, and the guardian's word to all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from ostinato.clock import SystemClock
from ostinato.core.definition import TaskRef
from ostinato.core.instants import MILLISECOND, MINUTE, SECOND
from ostinato.core.model import Outcome
from ostinato.sdk.context import current_context
from ostinato.testing.inline_executor import InlineExecutor
from ostinato.wire.grpc_client import GrpcWorkerTransport
from ostinato.wire.grpc_server import GrpcNodeTransport
from ostinato.wire.messages import (
    PROTOCOL_VERSION,
    Accepted,
    GuardianHello,
    Hello,
    NodeMessage,
    Outcomes,
    OutcomesAcknowledged,
    TreeEnded,
    TreeEndedRecorded,
    Welcome,
)
from ostinato.wire.protocol import NodeStream, NodeTransport
from ostinato.worker.child import ChildProcess
from ostinato.worker.config import WorkerConfig
from ostinato.worker.guardian import Guardian
from ostinato.worker.guardian_messages import Report, ReportTarget
from ostinato.worker.guardian_report import deliver
from ostinato.worker.process_tree import MARKER_VARIABLE
from ostinato.worker.spool_file import SpoolFile
from ostinato.worker.supervisor import Supervisor
from tests.worker.scripted_node import ScriptedNode, assignment, spec, specs
from tests.worker.spool_stories import outcome

HEARTBEAT_US = 100 * MILLISECOND
LEASE_US = 6 * SECOND


class Sockets:
    """Where scripted nodes listen; stands for the network of one process."""

    def node_transport(self, address: str) -> NodeTransport:
        return GrpcNodeTransport(address)


class SocketNode(ScriptedNode):
    """Listens at a port of its own, with heartbeats as often as a test can wait for."""

    def __init__(self, number: int) -> None:
        super().__init__(Sockets(), address="127.0.0.1:0", node_id=f"id-{number}")  # type: ignore[arg-type]  # all that it needs
        self.own(number)
        self.answer = self._welcome

    def own(self, *partitions: int, epoch: int = 1) -> None:
        self.owned, self.epochs = list(partitions), [epoch] * len(partitions)

    async def beats(self, *, count: int = 1) -> None:
        """So many more heartbeats have come."""
        newest = self.newest_heartbeat
        await self.until(lambda: self.newest_heartbeat >= newest + count)

    async def has_credit(self) -> None:
        await self.until(lambda: self.ledger.available("async") > 0)

    async def is_accepted(self) -> None:
        await self.until(lambda: bool(self.all(Accepted)))

    def _welcome(self, _: Hello) -> NodeMessage:
        return Welcome(
            protocol=PROTOCOL_VERSION,
            node_id=self.node_id,
            worker_lease_us=LEASE_US,
            heartbeat_us=HEARTBEAT_US,
            nodes=self.nodes,
        )


@asynccontextmanager
async def listening(count: int) -> AsyncIterator[list[SocketNode]]:
    nodes = [SocketNode(number) for number in range(count)]
    for node in nodes:
        node.address = await node._transport.start(node._handle)
    for node in nodes:
        node.nodes = [other.address for other in nodes]
    try:
        yield nodes
    finally:
        for node in nodes:
            await node.kill()


async def test_one_of_three_nodes_dies_and_outcomes_reach_the_new_owner() -> None:
    gates = {name: asyncio.Event() for name in "abc"}

    async def wait() -> str:
        await gates[current_context().attempt_id].wait()
        return "done"

    clock = SystemClock()
    async with asyncio.timeout(60), listening(3) as nodes:
        first, second, third = nodes
        worker = Supervisor(
            WorkerConfig(
                worker_name="worker-1",
                scheduler=second.address,
                capacity={"async": 9},
                data_dir=Path("unused"),
            ),
            clock=clock,
            transport=GrpcWorkerTransport(),
            executors=[InlineExecutor({TaskRef("default", "wait"): wait}, clock=clock)],
            rng=Random(1),
        )
        running = asyncio.create_task(worker.run())
        try:
            for node in nodes:
                await node.beats()
            for number, (node, name) in enumerate(zip(nodes, "abc", strict=True)):
                await node.has_credit()
                await node.send(specs(spec("wait")))
                await node.assign(assignment("wait", name, partition=number))
                await node.is_accepted()
            await first.kill()
            gates["b"].set()
            assert (await second.outcome_of("b")).result == b'"done"'
            second.own(0, 1, epoch=2)
            # The worker has heard of it by then. What has no owner goes to all, and the third takes it too.
            await second.beats(count=3)
            gates["a"].set()
            assert (await second.outcome_of("a")).result == b'"done"'
            gates["c"].set()
            assert (await third.outcome_of("c")).result == b'"done"'
            assert worker.running_count == 0
        finally:
            running.cancel()
            await asyncio.wait([running])


# ── guardians ─────────────────────────────────────────────────────────────────────────────────────────────


class ReportTaker:
    """A node that records guardians' reports, and outcomes of some attempts."""

    def __init__(self, mine: Sequence[str] = ()) -> None:
        self.transport = GrpcNodeTransport("127.0.0.1:0")
        self.mine = frozenset(mine)
        self.reports: list[TreeEnded] = []
        self.outcomes: list[Outcome] = []
        self.has_report = asyncio.Event()

    async def handle(self, stream: NodeStream) -> None:
        while True:
            for message in await stream.receive():
                if isinstance(message, Outcomes):
                    self.outcomes += [item for item in message.items if item.attempt_id in self.mine]
                    ids = [item.attempt_id for item in message.items]
                    mine = [name for name in ids if name in self.mine]
                    others = [name for name in ids if name not in self.mine]
                    await stream.send([OutcomesAcknowledged(mine, others)])
                elif isinstance(message, TreeEnded):
                    self.reports.append(message)
                    self.has_report.set()
                    await stream.send([TreeEndedRecorded()])
                else:
                    assert isinstance(message, GuardianHello)


@asynccontextmanager
async def takers(*mine: Sequence[str]) -> AsyncIterator[tuple[list[ReportTaker], list[str]]]:
    async with AsyncExitStack() as stack:
        made = [ReportTaker(ids) for ids in mine]
        addresses = []
        for taker in made:
            addresses.append(await taker.transport.start(taker.handle))
            stack.push_async_callback(taker.transport.stop)
        yield made, addresses


async def test_a_report_is_told_to_every_node_and_each_outcome_recorded_by_its_owner(tmp_path: Path) -> None:
    """One that cannot be reached is given up after some tries, since others have heard it."""
    path = tmp_path / "worker-1.db"
    spool = SpoolFile(path)
    spool.add([outcome("a"), outcome("b")])
    spool.close()
    async with asyncio.timeout(60), takers(["b"], ["a"]) as (made, addresses):
        target = ReportTarget(
            "worker-1", "w", ["127.0.0.1:1", *addresses, "127.0.0.1:1"], spool_path=str(path)
        )
        transport = GrpcWorkerTransport()
        try:
            await deliver(
                Report(target, "killed", None, limit_us=30 * SECOND),
                transport=transport,
                clock=SystemClock(),
                rng=Random(1),
            )
        finally:
            await transport.close()
        assert [len(taker.reports) >= 1 for taker in made] == [True, True]
        assert [[item.attempt_id for item in taker.outcomes] for taker in made] == [["b"], ["a"]]
    assert not path.exists()


@asynccontextmanager
async def frozen_with_two_leases(
    address: str, clock: SystemClock
) -> AsyncIterator[tuple[Guardian, ChildProcess, int]]:
    """A guardian whose supervisor moves no lease: two processes, each of which another node's lease covers.

    Gives the second process and the end of its lease, once the first has been killed.
    """
    guardian = Guardian(clock=clock, report=ReportTarget("worker-1", "w", [address]))
    await guardian.start()
    try:
        now_us = clock.boot_us()
        ends_us = [now_us + 2 * SECOND, now_us + 4 * SECOND]
        guardian.lease(7, worker_lease_us=LEASE_US, last_end_us=ends_us[1])
        first, second = [
            await guardian.spawn(
                ["/bin/sleep", "600"],
                env={MARKER_VARIABLE: str(end_us), "PATH": "/usr/bin:/bin"},
                marker=str(end_us),
                stdout=2,
                stderr=2,
                lease_ends_us=end_us,
            )
            for end_us in ends_us
        ]
        assert await first.exited < 0
        yield guardian, second, ends_us[1]
    finally:
        await guardian.close()


async def test_i1_a_guardian_reports_ended_leases_once_the_last_of_all_nodes_is_over() -> None:
    """Its report frees what was assigned under any heartbeat up to one, whichever node's lease covers it."""
    clock = SystemClock()
    async with (
        asyncio.timeout(60),
        takers([]) as ((taker,), (address,)),
        frozen_with_two_leases(address, clock) as (_, _, last_end_us),
    ):
        await taker.has_report.wait()
        # The kill comes up to a second before the end, and the report after the kill.
        assert clock.boot_us() >= last_end_us - SECOND
        assert [report.heartbeat_sequence for report in taker.reports] == [7]


async def test_a_supervisor_that_moves_a_lease_again_tells_by_itself_what_has_ended() -> None:
    clock = SystemClock()
    async with (
        asyncio.timeout(60),
        takers([]) as ((taker,), (address,)),
        frozen_with_two_leases(address, clock) as (guardian, second, last_end_us),
    ):
        guardian.lease(8, worker_lease_us=LEASE_US, last_end_us=last_end_us + MINUTE)
        guardian.mark(second.pid, last_end_us + MINUTE)
        wait_us = last_end_us + 2 * SECOND - clock.boot_us()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(taker.has_report.wait(), wait_us / SECOND)
        assert not second.exited.done()
