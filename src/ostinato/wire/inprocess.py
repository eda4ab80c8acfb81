"""Transport between a node and workers of one process: no sockets, no threads, no real time.

Messages pass by reference, since they are never changed once sent. The order of everything depends on the
event loop alone, so a loop with a virtual clock replays a run exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic, TypeVar

from ostinato.errors import ConflictError, InternalError, UnavailableError
from ostinato.wire.bounded_queue import BoundedQueue, QueueClosedError
from ostinato.wire.messages import NodeMessage, WorkerMessage
from ostinato.wire.protocol import NodeTransport, StreamHandler, WorkerStream, WorkerTransport
from ostinato.wire.streams import CLOSED_HERE, connection_closed, run_handler

#: Messages that wait in one direction of a stream before its sender waits.
QUEUE_MESSAGE_COUNT_MAX = 256

Sent = TypeVar("Sent")
Received = TypeVar("Received")


class InProcessNetwork:
    """The addresses of one process; transports of different networks do not see each other."""

    def __init__(self) -> None:
        self._listening: dict[str, _NodeTransport] = {}
        self._stream_count = 0

    def node_transport(self, address: str) -> NodeTransport:
        """A node's transport that will listen at `address`, any text."""
        return _NodeTransport(self, address)

    def worker_transport(self) -> WorkerTransport:
        """A worker's transport that reaches every listening address."""
        return _WorkerTransport(self)

    def _listen(self, transport: _NodeTransport) -> None:
        if transport.address in self._listening:
            raise ConflictError(
                "PORT_IN_USE",
                f"another node already listens on {transport.address}",
                subject=transport.address,
                hint="stop it, or choose another address",
            )
        self._listening[transport.address] = transport

    def _forget(self, transport: _NodeTransport) -> None:
        if self._listening.get(transport.address) is transport:
            del self._listening[transport.address]

    def _dial(self, address: str) -> _Stream[WorkerMessage, NodeMessage]:
        node = self._listening.get(address)
        if node is None:
            raise UnavailableError(
                "SCHEDULER_UNREACHABLE",
                f"no scheduler answers at {address}",
                subject=address,
                hint="check that the scheduler runs and that the address is its own",
            )
        self._stream_count += 1
        return node.accept(f"in-process:{self._stream_count}")


class _Stream(Generic[Sent, Received]):
    """One end of a stream."""

    def __init__(
        self, peer: str, *, outgoing: BoundedQueue[list[Sent]], incoming: BoundedQueue[list[Received]]
    ) -> None:
        self._peer = peer
        self._outgoing = outgoing
        self._incoming = incoming
        self._closed_here = False

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def closed_here(self) -> bool:
        return self._closed_here

    async def send(self, messages: Sequence[Sent]) -> None:
        if not messages:
            return
        try:
            await self._outgoing.put(list(messages), weight=len(messages))
        except QueueClosedError:
            raise self._ended() from None

    async def receive(self) -> list[Received]:
        try:
            batches = await self._incoming.take()
        except QueueClosedError:
            raise self._ended() from None
        return batches[0] if len(batches) == 1 else [message for batch in batches for message in batch]

    async def close(self) -> None:
        if self._closed_here:
            return
        self._closed_here = True
        self._outgoing.close()
        self._incoming.discard()

    def _ended(self) -> UnavailableError:
        reason = CLOSED_HERE if self._closed_here else "the other side closed it"
        return connection_closed(reason, peer=self._peer)


class _NodeTransport:
    def __init__(self, network: InProcessNetwork, address: str) -> None:
        self.address = address
        self._network = network
        self._handler: StreamHandler | None = None
        self._streams: set[_Stream[NodeMessage, WorkerMessage]] = set()
        self._handlers: set[asyncio.Task[None]] = set()

    async def start(self, handler: StreamHandler) -> str:
        self._network._listen(self)
        self._handler = handler
        return self.address

    async def stop(self) -> None:
        self._network._forget(self)
        self._handler = None
        for stream in list(self._streams):
            await stream.close()
        while self._handlers:
            await asyncio.wait(self._handlers)

    def accept(self, peer: str) -> _Stream[WorkerMessage, NodeMessage]:
        """A new stream: its handler is started, the worker's end returned."""
        if self._handler is None:
            raise InternalError("INTERNAL", "a stream was dialled before the transport was started")
        to_node: BoundedQueue[list[WorkerMessage]] = BoundedQueue(QUEUE_MESSAGE_COUNT_MAX)
        to_worker: BoundedQueue[list[NodeMessage]] = BoundedQueue(QUEUE_MESSAGE_COUNT_MAX)
        node_end = _Stream[NodeMessage, WorkerMessage](peer, outgoing=to_worker, incoming=to_node)
        task = asyncio.get_running_loop().create_task(run_handler(self._handler, node_end))
        self._streams.add(node_end)
        self._handlers.add(task)

        def forget(ended: asyncio.Task[None]) -> None:
            self._streams.discard(node_end)
            self._handlers.discard(ended)

        task.add_done_callback(forget)
        return _Stream[WorkerMessage, NodeMessage](self.address, outgoing=to_node, incoming=to_worker)


class _WorkerTransport:
    def __init__(self, network: InProcessNetwork) -> None:
        self._network = network
        self._streams: list[_Stream[WorkerMessage, NodeMessage]] = []

    async def connect(self, address: str) -> WorkerStream:
        stream = self._network._dial(address)
        self._streams = [known for known in self._streams if not known.closed_here]
        self._streams.append(stream)
        return stream

    async def close(self) -> None:
        for stream in self._streams:
            await stream.close()
        self._streams.clear()
