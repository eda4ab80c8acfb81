"""One stream of the simulated network: two ends, and a way in each direction."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from ostinato.simulation.process import Process
from ostinato.wire.messages import NodeMessage, WorkerMessage
from ostinato.wire.streams import CLOSED_HERE, connection_closed

if TYPE_CHECKING:
    from ostinato.simulation.network import Network

Sent = TypeVar("Sent")
Received = TypeVar("Received")

#: Messages that are on their way or wait at the other end before the sender waits.
WINDOW_MESSAGE_COUNT = 256
CLOSED_THERE = "the other side closed it"
NO_SIGN_OF_LIFE = "the other side gave no sign of life"


class _Receiver(Protocol[Received]):
    """The end that a way leads to."""

    def arrived(self, batch: list[Received]) -> None: ...

    def ended(self, reason: str) -> None: ...


class _Way(Generic[Sent]):
    """One direction: batches on their way, in order, and the one that says that no more will come."""

    def __init__(self, network: Network, *, sender: Process, receiver: Process) -> None:
        self._network = network
        self._link = network.link(sender.machine, receiver.machine)
        self._last_us = 0
        #: On their way; None says that the sender has closed.
        self._batches: deque[list[Sent] | None] = deque()
        #: Of those, what is to arrive at its time, and what waits for the link to carry again.
        self._held_count = 0
        #: Nothing that is sent from now on arrives.
        self._is_cut = False
        self.end: _Receiver[Sent] | None = None
        #: Told when there is room again.
        self.on_room: Callable[[], None] = _nobody
        #: Messages sent and not received yet.
        self.weight = 0

    def push(self, batch: list[Sent] | None) -> None:
        """Send one batch, or the end."""
        if batch is not None:
            self.weight += len(batch)
        if self._is_cut:
            return
        self._batches.append(batch)
        loop, link = self._network.loop, self._link
        at_us = loop.true_us + link.delay.draw(self._network.rng)
        self._last_us = at_us = max(at_us, self._last_us)
        loop.call_at_us(at_us, self._arrive, context=loop.world.context)

    def _arrive(self) -> None:
        if self._link.silent_since_us is not None or self._held_count:
            # One that waits makes those behind it wait, too.
            self._held_count += 1
            self._link.held.append(self._released)
            return
        self._deliver()

    def _released(self) -> None:
        self._held_count -= 1
        self._deliver()

    def _deliver(self) -> None:
        if not self._batches:
            return  # it was lost
        batch = self._batches.popleft()
        assert self.end is not None, "set before anything is sent"
        if batch is None:
            self.end.ended(CLOSED_THERE)
        else:
            self.end.arrived(batch)

    def taken(self, count: int) -> None:
        """So many messages were received."""
        self.weight -= count
        self.on_room()

    def cut(self, rng: Random) -> None:
        """Lose a part of what is on its way, and all that is sent from now on."""
        self._is_cut = True
        kept_count = int(rng.random() * (len(self._batches) + 1))
        while len(self._batches) > kept_count:
            self._batches.pop()


class _End(Generic[Sent, Received]):
    """One end, of one process. What it is told of (arrivals, the end) it sees in a turn of that process."""

    def __init__(
        self, stream: Stream, process: Process, *, peer: str, outgoing: _Way[Sent], incoming: _Way[Received]
    ) -> None:
        self._stream = stream
        self._process = process
        self._peer = peer
        self._outgoing = outgoing
        self._incoming = incoming
        self._inbox: deque[list[Received]] = deque()
        self._waiters: list[asyncio.Future[None]] = []
        self.is_closed_here = False
        #: Why nothing more comes or goes; empty while it lives.
        self._reason = ""
        process.on_crash(self._died)

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def is_over(self) -> bool:
        return self._reason != ""

    async def send(self, messages: Sequence[Sent]) -> None:
        if not messages:
            return
        while not self._reason and self._outgoing.weight >= WINDOW_MESSAGE_COUNT:
            await self._something()
        if self._reason:
            raise connection_closed(self._reason, peer=self._peer)
        self._outgoing.push(list(messages))

    async def receive(self) -> list[Received]:
        while not self._inbox:
            if self._reason:
                raise connection_closed(self._reason, peer=self._peer)
            await self._something()
        taken = [message for batch in self._inbox for message in batch]
        self._inbox.clear()
        self._incoming.taken(len(taken))
        return taken

    async def close(self) -> None:
        self.shut(CLOSED_HERE)

    def shut(self, reason: str) -> None:
        """Close from this side: what was sent still arrives, what has come is dropped. Idempotent."""
        if self.is_closed_here:
            return
        self.is_closed_here = True
        self._inbox.clear()
        if not self._reason:
            self._outgoing.push(None)
            self.ended(reason)

    def vanish(self) -> None:
        """Its process is gone before it has heard of the stream."""
        self._died()

    async def _something(self) -> None:
        """Return when anything has changed for this end."""
        waiter = self._process.loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def wake(self) -> None:
        """Whoever waits looks again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # ── what the network tells ────────────────────────────────────────────────────────────────────────

    def arrived(self, batch: list[Received]) -> None:
        """A batch is here; one for an end that knows of its end is dropped."""
        if not self._reason:
            self._inbox.append(batch)
            self.wake()

    def ended(self, reason: str) -> None:
        """Nothing more comes or goes; what is here can still be received. Idempotent."""
        if self._reason:
            return
        self._reason = reason
        self._process.forget(self._died)
        self._stream.ended()
        self.wake()

    def end(self, reason: str, *, in_us: int) -> None:
        """It notices after `in_us` that the stream is broken."""
        loop = self._process.loop
        if in_us <= 0:
            self.ended(reason)
        else:
            loop.call_at_us(loop.true_us + in_us, self.ended, reason, context=loop.world.context)

    def _died(self) -> None:
        """Its process has died: the machine's kernel closes the connection, if there is still a machine."""
        if not self._reason:
            self._outgoing.push(None)
            self.ended("its process has died")


NodeEnd: TypeAlias = _End[NodeMessage, WorkerMessage]
WorkerEnd: TypeAlias = _End[WorkerMessage, NodeMessage]


class Stream:
    """Both ends and both ways of one stream."""

    def __init__(
        self, network: Network, number: int, *, worker: Process, node: Process, address: str
    ) -> None:
        self.number = number
        self.machines = (worker.machine, node.machine)
        self._processes = (worker, node)
        self._network = network
        self._up: _Way[WorkerMessage] = _Way(network, sender=worker, receiver=node)
        self._down: _Way[NodeMessage] = _Way(network, sender=node, receiver=worker)
        self.worker: WorkerEnd = _End(self, worker, peer=address, outgoing=self._up, incoming=self._down)
        self.node: NodeEnd = _End(
            self, node, peer=f"{worker.name}:{number}", outgoing=self._down, incoming=self._up
        )
        self._up.end, self._up.on_room = self.node, self.worker.wake
        self._down.end, self._down.on_room = self.worker, self.node.wake

    def is_between(self, machine: str, other: str) -> bool:
        """Whether it runs between two machines, in whichever direction it was opened."""
        return self.machines in ((machine, other), (other, machine))

    def is_of(self, process: Process) -> bool:
        """Whether one of its ends is that process's."""
        return process in self._processes

    def cut(self, rng: Random) -> None:
        """Nothing that is sent from now on arrives, and a part of what is on its way does not either."""
        self._up.cut(rng)
        self._down.cut(rng)

    def lose(self, machine: str, *, within_us: int, rng: Random) -> None:
        """One machine is gone without a word; the other notices within the keepalive."""
        self.cut(rng)
        in_us = within_us * 2 // 3 + int(rng.random() * within_us) // 3
        if self.machines[0] != machine:
            self.worker.end(NO_SIGN_OF_LIFE, in_us=in_us)
        if self.machines[1] != machine:
            self.node.end(NO_SIGN_OF_LIFE, in_us=in_us)

    def ended(self) -> None:
        """An end knows."""
        if self.worker.is_over and self.node.is_over:
            self._network.drop(self)


def _nobody() -> None:
    """Told of room before the stream is whole."""
