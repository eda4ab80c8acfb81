"""A command's session with the database: opened, used by one coroutine, closed, whatever happens."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random, SystemRandom
from typing import TypeVar

import msgspec

from ostinato.clock import Clock, SystemClock
from ostinato.control.requests import Asker
from ostinato.core.definition import TaskRef
from ostinato.errors import UnavailableError
from ostinato.settings import Settings
from ostinato.store.from_url import open_store_from_url
from ostinato.store.protocol import Store

_V = TypeVar("_V")


class Session(msgspec.Struct, frozen=True):
    """What a command works with."""

    settings: Settings
    store: Store
    clock: Clock
    rng: Random

    @property
    def asker(self) -> Asker:
        return Asker(clock=self.clock, rng=self.rng, by=user_name())

    def ref(self, name: str) -> TaskRef:
        return TaskRef(self.settings.namespace, name)


def in_session(settings: Settings, use: Callable[[Session], Awaitable[_V]]) -> _V:
    """Run `use` with an open store. The database must exist: a question never makes one."""
    return asyncio.run(_in_session(settings, use))


async def _in_session(settings: Settings, use: Callable[[Session], Awaitable[_V]]) -> _V:
    clock = SystemClock()
    _require_database(settings.database)
    store = open_store_from_url(settings.database, clock=clock)
    try:
        await store.open()
        return await use(Session(settings, store, clock, SystemRandom()))
    finally:
        await store.close()


def _require_database(url: str) -> None:
    """Opening an SQLite database would make one, and a mistyped path look like an empty Ostinato."""
    path = url.removeprefix("sqlite:///").partition("?")[0]
    if url.startswith("sqlite:///") and not Path(path).exists():
        raise UnavailableError(
            "DATABASE_UNAVAILABLE",
            f"there is no database {path}",
            subject=url,
            field="--database",
            hint="name the one of your scheduler, or start one with ostinato dev",
        )


def user_name() -> str:
    """Name of who asks, for the history; empty where the system has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""
