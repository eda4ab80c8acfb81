"""A started node and a worker's transport, for the contract suite of transports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import pytest

from ostinato.errors import UnavailableError
from ostinato.wire.messages import Drain, Draining
from ostinato.wire.protocol import NodeStream, NodeTransport, WorkerStream, WorkerTransport

#: Nothing in the suite takes long; what does hangs.
DEADLINE_SECONDS = 20.0

Message = TypeVar("Message")
Message_co = TypeVar("Message_co", covariant=True)


class Links(Protocol):
    """One kind of transport, as the suite makes it."""

    def node_transport(self, address: str | None = None) -> NodeTransport:
        """Listening on `address` once started; None takes any that is free."""
        ...

    def worker_transport(self) -> WorkerTransport:
        """Reaches every node transport of these links."""
        ...

    def dead_address(self) -> str:
        """An address where nobody listens."""
        ...


class Receiving(Protocol[Message_co]):
    """Either end of a stream."""

    async def receive(self) -> Sequence[Message_co]:
        """The next batch."""
        ...


class Harness:
    """A node that hands its streams to the test, and a worker's transport."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self.node = links.node_transport()
        self.worker = links.worker_transport()
        self.address = ""
        self._arrived: asyncio.Queue[NodeStream] = asyncio.Queue()
        self._finished = asyncio.Event()

    async def start(self) -> None:
        self.address = await self.node.start(self.handle)

    async def handle(self, stream: NodeStream) -> None:
        """Leave the stream to the test until that has ended."""
        self._arrived.put_nowait(stream)
        await self._finished.wait()

    async def stream(self) -> tuple[WorkerStream, NodeStream]:
        """Both ends of a new stream."""
        worker_end = await self.worker.connect(self.address)
        return worker_end, await self.arrived()

    async def arrived(self) -> NodeStream:
        """The node's end of the next stream that somebody opens."""
        return await self._arrived.get()

    async def stop_node(self) -> None:
        self._finished.set()
        await self.node.stop()

    async def stop(self) -> None:
        await self.worker.close()
        await self.stop_node()


@asynccontextmanager
async def harness(links: Links) -> AsyncIterator[Harness]:
    """Everything started, a deadline over the test, and proof that no task is left behind."""
    before = asyncio.all_tasks()
    made = Harness(links)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await made.start()
        try:
            yield made
        finally:
            await made.stop()
    # A fixture is left in another task than it was entered in.
    expected = before | {asyncio.current_task()}
    await settled(lambda: asyncio.all_tasks() <= expected)
    assert asyncio.all_tasks() - expected == set(), "tasks were left behind"


async def settled(condition: Callable[[], bool]) -> None:
    """Give what is on its way up to a thousand turns of the loop."""
    loop = asyncio.get_running_loop()
    for _ in range(1_000):
        if condition():
            return
        turn: asyncio.Future[None] = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


async def collect(stream: Receiving[Message], count: int) -> list[Message]:
    """The next messages, at least `count`."""
    received: list[Message] = []
    while len(received) < count:
        received += await stream.receive()
    return received


async def assert_worker_closed(end: WorkerStream) -> None:
    """Every call on the worker's end says that the stream has ended, again and again."""
    for _ in range(2):
        await assert_raises_closed(_receive_to_the_end(end))
        await assert_raises_closed(end.send([Draining("late")]))


async def assert_node_closed(end: NodeStream) -> None:
    """As `assert_worker_closed`, for the node's end."""
    for _ in range(2):
        await assert_raises_closed(_receive_to_the_end(end))
        await assert_raises_closed(end.send([Drain("late")]))


async def assert_raises_closed(call: Awaitable[object]) -> None:
    """`call` ends with ``CONNECTION_CLOSED``."""
    with pytest.raises(UnavailableError) as caught:
        await call
    assert caught.value.code == "CONNECTION_CLOSED"


async def _receive_to_the_end(end: WorkerStream | NodeStream) -> None:
    while True:
        assert await end.receive()
