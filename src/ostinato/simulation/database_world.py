"""What the simulated database asks of the world: a loop's timers, and a process's name, machine and death."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol


class Timer(Protocol):
    """A call that is not due yet."""

    def cancel(self) -> None: ...


class DatabaseLoop(Protocol):
    """What the database asks of the loop, as ``SimulatedLoop`` has it."""

    #: Any: of whatever it will be told.
    def create_future(self) -> asyncio.Future[Any]: ...

    def call_at_us(
        self, at_us: int, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Timer:
        """Call at a true time."""
        ...


class DatabaseClient(Protocol):
    """What the database knows of a process."""

    @property
    def name(self) -> str: ...

    @property
    def machine(self) -> str:
        """Where it runs: the way to the database is the machine's."""
        ...

    def on_crash(self, callback: Callable[[], None]) -> None: ...
