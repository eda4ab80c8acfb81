"""Turns a database URL into a store; an adapter is imported only when a URL asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from ostinato.clock import Clock
from ostinato.errors import UserError
from ostinato.store.protocol import Store
from ostinato.store.server.url import ServerUrl, is_server_url, read_server_url

if TYPE_CHECKING:
    from ostinato.store.server.administration import FaultReader

_SQLITE = "sqlite:///"
_HINT = "write sqlite:///relative.db, postgresql://user:password@host/database or the same with mysql"
#: What installs the driver for a family of servers.
_EXTRAS = {"postgresql": "postgres", "mysql": "mysql"}
#: Packages of these extras. Another module that is missing is no missing driver.
_DRIVERS = {"asyncpg", "asyncmy", "greenlet"}
#: What no path of a URL may hold: the first ends every path, the second would begin parameters.
_NO_PATH = ("\0", "?")


def open_store_from_url(url: str, *, clock: Clock, partition_count: int = 64) -> Store:
    """Store of `url`, not yet opened: three slashes before a relative path, four before an absolute one.

    `partition_count` is for a database that opening makes, which no server's is. Raises ``INVALID_SETTING``
    for a URL that names no database, and where the driver for a server is not installed.
    """
    if is_server_url(url):
        return _open_server_store(read_server_url(url), clock=clock)
    if url == "memory:":
        from ostinato.store.memory import MemoryStore

        return MemoryStore(clock, partition_count)
    from ostinato.store.sqlite.store import SqliteStore

    return SqliteStore(sqlite_path_of(url), clock=clock, partition_count=partition_count)


def sqlite_path_of(url: str) -> str:
    """Path of the file that `url` names. Raises ``INVALID_SETTING`` for any other URL."""
    path = url.removeprefix(_SQLITE)
    if url.startswith(_SQLITE) and path and path != ":memory:" and _is_path(path):
        return path
    raise _refusal(url)


def fault_reader(url: ServerUrl) -> FaultReader:
    """How errors of the driver are understood. Raises ``INVALID_SETTING`` where it is not installed."""
    with _needing_driver(url):
        if url.family == "postgresql":
            from ostinato.store.postgres.faults import fault_of

            return fault_of
        from ostinato.store.mysql.faults import fault

        return fault


def _open_server_store(url: ServerUrl, *, clock: Clock) -> Store:
    with _needing_driver(url):
        if url.family == "postgresql":
            from ostinato.store.postgres.store import PostgresStore

            return PostgresStore(url, clock=clock)
        from ostinato.store.mysql.store import MysqlStore

        return MysqlStore(url, clock=clock)


@contextmanager
def _needing_driver(url: ServerUrl) -> Iterator[None]:
    try:
        # SQLAlchemy itself misses it only when it is about to connect.
        import_module("greenlet")
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _DRIVERS:
            raise
        raise UserError(
            "INVALID_SETTING",
            f"the driver for {url.family} databases is not installed",
            subject=url.shown,
            field="database",
            hint=f"pip install 'ostinato[{_EXTRAS[url.family]}]'",
        ) from error


def _is_path(path: str) -> bool:
    """Whether `path` can name a file; it is taken as it stands, percent signs too."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return not any(character in path for character in _NO_PATH)


def _refusal(url: str) -> UserError:
    scheme = url.partition(":")[0].partition("+")[0].lower()
    if url.startswith(_SQLITE) and "?" in url:
        # A parameter without a meaning, such as mode=ro, would promise what is not kept.
        name = ascii(url.partition("?")[2].partition("=")[0])
        message, hint = (
            f"a SQLite URL has no parameters, such as {name}",
            "leave out the '?' and all behind it",
        )
    elif url.startswith(_SQLITE) and url.removeprefix(_SQLITE) not in ("", ":memory:"):
        message, hint = "the path holds a character that no file name has", _HINT
    elif url.startswith(_SQLITE):
        message, hint = "the URL names no file", "a database without a file is memory:"
    elif scheme == "sqlite":
        message, hint = "a SQLite URL has three slashes, and a fourth before an absolute path", _HINT
    else:
        # The URL may hold a password, so that only its scheme is repeated.
        message, hint = f"{scheme!r} is no kind of database", _HINT
    return UserError("INVALID_SETTING", message, field="database", hint=hint)
