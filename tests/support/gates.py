"""Ways to stop one node of a process: frozen, killed, or cut off from its database.

A node reaches everything outside through its clock, its store and its transport, so it stands still when none
of these lets it pass. What was on its way to the database when it froze arrives there all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from ostinato.clock import Clock
from ostinato.errors import UnavailableError
from ostinato.store.protocol import Store
from ostinato.wire.messages import NodeMessage, WorkerMessage
from ostinato.wire.protocol import NodeStream, NodeTransport, StreamHandler


class Gate:
    """Open, closed for a while, or broken for good: then its node is dead, and nobody passes any more."""

    def __init__(self, travel: Callable[[], Awaitable[None]] | None = None) -> None:
        """`travel` is the way to the database or a worker, each time anew; None: it takes no time."""
        self.travel = travel if travel is not None else _at_once
        self.travel_to_worker = self.travel
        self._open = asyncio.Event()
        self._open.set()
        #: The database does not answer this node.
        self.is_cut_off = False
        #: How far the wall clock of this node's machine is ahead.
        self.skew_us = 0
        self._is_broken = False

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def break_down(self) -> None:
        """Whoever waits is turned away, and so is whoever comes."""
        self._is_broken = True
        self._open.set()

    async def passed(self) -> None:
        """Wait until it is open. Raises ``CONNECTION_CLOSED`` where it has been broken down."""
        while not self._open.is_set():
            await self._open.wait()
        if self._is_broken:
            raise UnavailableError("CONNECTION_CLOSED", "this node is dead")


async def _at_once() -> None:
    """No time at all."""


class GatedClock:
    """Goes on while its node is frozen; whoever sleeps wakes when the node does."""

    def __init__(self, clock: Clock, gate: Gate) -> None:
        self._clock = clock
        self._gate = gate

    def wall_us(self) -> int:
        return self._clock.wall_us() + self._gate.skew_us

    def boot_us(self) -> int:
        return self._clock.boot_us()

    async def sleep_until_us(self, boot_us: int) -> None:
        await self._clock.sleep_until_us(boot_us)
        await self._gate.passed()


class _GatedStore:
    """Every call of a store, through the gate on its way there and back."""

    def __init__(self, store: Store, gate: Gate) -> None:
        self._store = store
        self._gate = gate

    def __getattr__(self, name: str) -> object:
        found = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(found):
            return found
        call = cast(Callable[..., Awaitable[Any]], found)

        async def gated(*args: object, **named: object) -> object:
            await self._gate.passed()
            if self._gate.is_cut_off:
                raise UnavailableError("DATABASE_UNAVAILABLE", f"the database does not answer ({name})")
            await self._gate.travel()
            answer = await call(*args, **named)
            await self._gate.travel()
            await self._gate.passed()
            return answer

        return gated


def gated_store(store: Store, gate: Gate) -> Store:
    """`store` as one node reaches it."""
    return cast(Store, _GatedStore(store, gate))


class _GatedStream:
    def __init__(self, stream: NodeStream, gate: Gate) -> None:
        self._stream = stream
        self._gate = gate

    @property
    def peer(self) -> str:
        return self._stream.peer

    async def send(self, messages: Sequence[NodeMessage]) -> None:
        await self._gate.passed()
        await self._gate.travel_to_worker()
        await self._stream.send(messages)

    async def receive(self) -> list[WorkerMessage]:
        received = await self._stream.receive()
        await self._gate.passed()
        return received

    async def close(self) -> None:
        await self._stream.close()


class GatedTransport:
    """Streams of one node; the other ends see nothing of a freeze but silence."""

    def __init__(self, transport: NodeTransport, gate: Gate) -> None:
        self._transport = transport
        self._gate = gate

    async def start(self, handler: StreamHandler) -> str:
        async def gated(stream: NodeStream) -> None:
            await handler(_GatedStream(stream, self._gate))

        return await self._transport.start(gated)

    async def stop(self) -> None:
        await self._transport.stop()
