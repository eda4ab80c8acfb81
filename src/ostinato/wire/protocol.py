"""The ``Transport`` protocol: bidirectional streams of message batches between workers and nodes.

A stream delivers in order and at most once while it lives, and says when it has ended; what was under way
then may or may not have arrived. Both sides resume on a new stream by repeating what is unacknowledged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from ostinato.wire.messages import NodeMessage, WorkerMessage


class WorkerStream(Protocol):
    """The worker's end of a stream."""

    async def send(self, messages: Sequence[WorkerMessage]) -> None:
        """Hand over a batch, waiting while the stream is congested. Raises ``CONNECTION_CLOSED``."""
        ...

    async def receive(self) -> list[NodeMessage]:
        """The next batch, at least one message. Raises ``CONNECTION_CLOSED`` once the stream has ended."""
        ...

    async def close(self) -> None:
        """End the stream; idempotent. Pending calls on both ends raise ``CONNECTION_CLOSED``."""
        ...


class NodeStream(Protocol):
    """The node's end of a stream."""

    @property
    def peer(self) -> str:
        """Address of the worker, for people."""
        ...

    async def send(self, messages: Sequence[NodeMessage]) -> None:
        """As ``WorkerStream.send``."""
        ...

    async def receive(self) -> list[WorkerMessage]:
        """As ``WorkerStream.receive``."""
        ...

    async def close(self) -> None:
        """As ``WorkerStream.close``."""
        ...


#: Called for each new stream; the stream is closed when it returns.
StreamHandler = Callable[[NodeStream], Awaitable[None]]


class NodeTransport(Protocol):
    """Where a node accepts streams."""

    async def start(self, handler: StreamHandler) -> str:
        """Listen; returns the address that workers reach. Raises ``PORT_IN_USE``."""
        ...

    async def stop(self) -> None:
        """Accept no more, close every stream, wait for the handlers; idempotent."""
        ...


class WorkerTransport(Protocol):
    """How a worker opens streams."""

    async def connect(self, address: str) -> WorkerStream:
        """Open a stream. Raises ``SCHEDULER_UNREACHABLE``."""
        ...

    async def close(self) -> None:
        """Give back what connections share; idempotent."""
        ...
