"""Workers that do not read what the node sends: they cost little, and hold up nobody else; virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from support.cluster import Cluster, python_task, worker_of

from ostinato.core.instants import SECOND
from ostinato.core.states import State
from ostinato.scheduler.sessions import Mailbox, WorkerSession
from ostinato.testing.virtual_clock import VirtualClock, run_virtual
from ostinato.wire.messages import (
    PROTOCOL_VERSION,
    HeartbeatAcknowledged,
    Hello,
    NodeMessage,
    OutcomesAcknowledged,
    WorkerMessage,
)


class DeafStream:
    """A stream at whose other end nobody reads: what is sent waits for ever, closing takes its second."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.peer = "deaf"

    async def send(self, messages: Sequence[NodeMessage]) -> None:
        await asyncio.Event().wait()

    async def receive(self) -> list[WorkerMessage]:
        await asyncio.Event().wait()
        return []

    async def close(self) -> None:
        await self._clock.sleep_until_us(self._clock.boot_us() + SECOND)


def test_acknowledgements_that_nobody_reads_do_not_gather() -> None:
    async def story() -> None:
        mailbox = Mailbox(DeafStream(VirtualClock()), name="deaf")
        for number in range(20_000):
            mailbox.post([HeartbeatAcknowledged(number, number, list(range(64)))])
            if number % 5_000 == 0:
                mailbox.post([OutcomesAcknowledged([str(number)])])
        waiting = mailbox._waiting
        assert len(waiting) <= 1_010
        assert isinstance(waiting[-1], HeartbeatAcknowledged)
        assert waiting[-1].sequence == 19_999
        kept = [item.attempt_ids[0] for item in waiting if isinstance(item, OutcomesAcknowledged)]
        assert kept == ["0", "5000", "10000", "15000"]
        await mailbox.stop()

    run_virtual(story())


def test_i9_hung_readers_do_not_delay_that_a_loss_is_declared() -> None:
    """Each takes a second to be closed; forty of them still take one."""

    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        sessions = cluster.node.parts.sessions
        for number in range(40):
            hello = Hello(protocol=PROTOCOL_VERSION, worker_id=f"deaf-{number}", worker_name="deaf")
            sessions.add(WorkerSession(hello, DeafStream(cluster.clock), boot_us=cluster.clock.boot_us()))
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(task)
        await cluster.in_state(identity, State.RUNNING)
        await worker.disconnect()
        began_us = cluster.clock.boot_us()
        row = await cluster.in_state(identity, State.RETRY_WAITING)
        assert row.counters.lost == 1
        assert cluster.clock.boot_us() - began_us <= 6 * SECOND + 2 * SECOND
        for session in list(sessions.by_id.values()):
            sessions.remove(session)
            await session.close()
        await cluster.stop()

    run_virtual(story())
