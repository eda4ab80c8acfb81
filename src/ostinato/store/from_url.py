"""Turns a database URL into a store; an adapter is imported only when a URL asks for it."""

from __future__ import annotations

from ostinato.clock import Clock
from ostinato.errors import UserError
from ostinato.store.protocol import Store

_SQLITE = "sqlite:///"
_LATER = ("postgresql", "postgres", "mysql", "mariadb")
_HINT = "write sqlite:///relative.db, sqlite:////absolute.db or memory:"


def open_store_from_url(url: str, *, clock: Clock, partition_count: int = 64) -> Store:
    """Store of `url`, not yet opened: three slashes before a relative path, four before an absolute one.

    Raises ``INVALID_SETTING`` for a URL that names no database of this version.
    """
    if url == "memory:":
        from ostinato.store.memory import MemoryStore

        return MemoryStore(clock, partition_count)
    path = url.removeprefix(_SQLITE)
    if url.startswith(_SQLITE) and path and path != ":memory:" and "\0" not in path:
        from ostinato.store.sqlite.store import SqliteStore

        return SqliteStore(path, clock=clock, partition_count=partition_count)
    raise _refusal(url)


def _refusal(url: str) -> UserError:
    scheme = url.partition(":")[0].partition("+")[0].lower()
    if scheme in _LATER:
        message, hint = f"{scheme} databases are not in this version", "use sqlite:///ostinato.db"
    elif url.startswith(_SQLITE):
        message, hint = "the URL names no file", "a database without a file is memory:"
    elif scheme == "sqlite":
        message, hint = "a SQLite URL has three slashes, and a fourth before an absolute path", _HINT
    else:
        # The URL may hold a password, so that only its scheme is repeated.
        message, hint = f"{scheme!r} is no kind of database", _HINT
    return UserError("INVALID_SETTING", message, field="database", hint=hint)
