"""A simulated database on virtual time, without the rest of the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import Any, TypeVar

from ostinato.simulation.database import DatabaseServer
from ostinato.simulation.database_store import SimulatedStore
from ostinato.simulation.history import Event, History
from ostinato.testing.virtual_clock import VirtualClock, VirtualTimeLoop

Kind = TypeVar("Kind", bound=Event)


class Client:
    """What the database knows of a process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.machine = name
        self._on_crash: list[Callable[[], None]] = []

    def on_crash(self, callback: Callable[[], None]) -> None:
        self._on_crash.append(callback)

    def crash(self) -> None:
        """The database is told; what the process was at goes on, which the test does not look at."""
        for callback in self._on_crash:
            callback()


class TimedLoop:
    """A loop of asyncio as the database asks for it, by the loop's own time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_us(self) -> int:
        return round(self._loop.time() * 1e6)

    def create_future(self) -> asyncio.Future[Any]:
        return self._loop.create_future()

    def call_at_us(
        self, at_us: int, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._loop.call_at(at_us / 1e6, callback, *args, context=context)


class DatabaseStage:
    """A server, its history and its clock, inside ``run_virtual``."""

    def __init__(self, seed: int = 1, *, has_session_locks: bool = True) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        self.loop = loop
        self.events: list[Event] = []
        self.rng = Random(seed)
        history = History(lambda: loop.elapsed_us)
        history.listen(self.events.append)
        self.server = DatabaseServer(
            TimedLoop(loop), history, rng=self.rng, has_session_locks=has_session_locks
        )
        self.clock = VirtualClock()
        self.clients: dict[str, Client] = {}

    def store(self, name: str) -> SimulatedStore:
        self.clients[name] = Client(name)
        return self.server.store_for(self.clients[name], self.clock)

    async def pass_us(self, us: int) -> None:
        await self.clock.sleep_until_us(self.clock.boot_us() + us)

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Events of one kind so far."""
        return [event for event in self.events if isinstance(event, kind)]
