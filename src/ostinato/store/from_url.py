"""Turns a database URL into a store; an adapter is imported only when a URL asks for it."""

from __future__ import annotations

import os

from ostinato.clock import Clock
from ostinato.errors import UserError
from ostinato.store.protocol import Store

_SQLITE = "sqlite:///"
_LATER = ("postgresql", "postgres", "mysql", "mariadb")
_HINT = "write sqlite:///relative.db, sqlite:////absolute.db or memory:"
#: What no path of a URL may hold: the first ends every path, the second would begin parameters.
_NO_PATH = ("\0", "?")


def open_store_from_url(url: str, *, clock: Clock, partition_count: int = 64) -> Store:
    """Store of `url`, not yet opened: three slashes before a relative path, four before an absolute one.

    Raises ``INVALID_SETTING`` for a URL that names no database of this version.
    """
    if url == "memory:":
        from ostinato.store.memory import MemoryStore

        return MemoryStore(clock, partition_count)
    path = url.removeprefix(_SQLITE)
    if url.startswith(_SQLITE) and path and path != ":memory:" and _is_path(path):
        from ostinato.store.sqlite.store import SqliteStore

        return SqliteStore(path, clock=clock, partition_count=partition_count)
    raise _refusal(url)


def _is_path(path: str) -> bool:
    """Whether `path` can name a file; it is taken as it stands, percent signs too."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return not any(character in path for character in _NO_PATH)


def _refusal(url: str) -> UserError:
    scheme = url.partition(":")[0].partition("+")[0].lower()
    if scheme in _LATER:
        message, hint = f"{scheme} databases are not in this version", "use sqlite:///ostinato.db"
    elif url.startswith(_SQLITE) and "?" in url:
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
