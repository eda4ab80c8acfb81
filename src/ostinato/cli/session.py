"""A command's session with the database: opened, used by one coroutine, closed, whatever happens."""

from __future__ import annotations

import asyncio
import getpass
import os
from collections.abc import Awaitable, Callable
from random import Random, SystemRandom
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ostinato.clock import Clock, SystemClock
from ostinato.control.requests import Asker
from ostinato.core.definition import TaskRef
from ostinato.core.url_text import shown_url
from ostinato.errors import UnavailableError
from ostinato.settings import Settings, naming_sources, sqlite_path
from ostinato.store.from_url import open_store_from_url
from ostinato.store.protocol import Store

if TYPE_CHECKING:
    from ostinato.control.pressure import PressureGate

_V = TypeVar("_V")
#: Namespaces that a remark names.
_NAMESPACES_MAX = 20


class Session(msgspec.Struct, frozen=True):
    """What a command works with."""

    settings: Settings
    store: Store
    clock: Clock
    rng: Random

    @property
    def asker(self) -> Asker:
        return Asker(clock=self.clock, rng=self.rng, by=user_name())

    @property
    def pressure(self) -> PressureGate | None:
        """What holds submissions back, where the settings name a limit."""
        # Not at the top: most commands submit nothing.
        from ostinato.control.pressure import PressureGate

        limits = self.settings.pressure
        return PressureGate(self.store, limits, clock=self.clock) if limits.is_set else None

    def ref(self, name: str) -> TaskRef:
        return TaskRef(self.settings.namespace, name)


def in_session(
    settings: Settings, use: Callable[[Session], Awaitable[_V]], *, makes_database: bool = False
) -> _V:
    """Run `use` with an open store. A question never makes a database; what `makes_database` does."""
    return asyncio.run(_in_session(settings, use, makes_database=makes_database))


async def _in_session(
    settings: Settings, use: Callable[[Session], Awaitable[_V]], *, makes_database: bool
) -> _V:
    clock = SystemClock()
    if not makes_database:
        _require_database(settings)
    with naming_sources(settings):
        store = open_store_from_url(settings.database, clock=clock)
    try:
        with naming_sources(settings):
            await store.open()
        # Damage may be met by the first statement that comes across it.
        with naming_sources(settings, only="database"):
            return await use(Session(settings, store, clock, SystemRandom()))
    finally:
        await store.close()


def _require_database(settings: Settings) -> None:
    """Opening an SQLite database would make one, and a mistyped path look like an empty Ostinato."""
    path = sqlite_path(settings.database)
    if path is not None and not os.path.exists(path):
        raise UnavailableError(
            "DATABASE_UNAVAILABLE",
            f"there is no database {path}",
            subject=shown_url(settings.database),
            field=settings.source("database"),
            hint="name the one of your scheduler, or start one with ostinato dev",
        )


async def known_namespaces(session: Session) -> list[str]:
    """A remark, or none, for whoever found nothing in a namespace: which ones have tasks."""
    names = await session.store.namespaces(limit=_NAMESPACES_MAX + 1)
    if session.settings.namespace in names:
        return []
    if not names:
        return ["no namespace has tasks yet"]
    more = ", ..." if len(names) > _NAMESPACES_MAX else ""
    listed = ", ".join(names[:_NAMESPACES_MAX]) + more
    return [f"namespace {session.settings.namespace} has no tasks; those that have: {listed}"]


def user_name() -> str:
    """Name of who asks, for the history; empty where the system has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""
