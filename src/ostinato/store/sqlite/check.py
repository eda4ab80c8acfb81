"""What can be said about the file of a database without changing it or anything beside it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from threading import Event, Timer
from typing import Literal

import msgspec

from ostinato.core.instants import SECOND
from ostinato.errors import OstinatoError
from ostinato.store.batches import DatabaseFacts
from ostinato.store.migrations import HEAD_REVISION
from ostinato.store.sqlite.database import file_uri, may_access, stored_revision, why_unusable
from ostinato.store.sqlite.failures import translate

CHECK_DEADLINE_US = 10 * SECOND
_COUNTED_ROWS_MAX = 1_000_000
_BUSY_TIMEOUT_S = 2.0
_PROBLEMS_MAX = 5
_STEPS_BETWEEN_LOOKS = 1_000

Integrity = Literal["ok", "corrupt", "unfinished", "unknown"]


class _Content(msgspec.Struct, frozen=True):
    """What stands in the file."""

    revision: str = ""
    integrity: Integrity = "unknown"
    problems: tuple[str, ...] = ()
    page_bytes: int = 0
    free_page_count: int = 0
    journal_mode: str = ""
    row_counts: dict[str, int] = {}
    uncounted: tuple[str, ...] = ()


def check_file(path: str, *, deadline_us: int = CHECK_DEADLINE_US) -> DatabaseFacts:
    """Facts about the file at `path`, whether or not a scheduler uses it; whatever is wrong is one of them.

    Blocks for up to `deadline_us`, which bounds the check of integrity; counting rows has a bound of its own.
    """
    problem = why_unusable(path)
    if not os.path.isfile(path):
        return DatabaseFacts(
            path=path,
            exists=os.path.lexists(path),
            problems=(problem,) if problem else (),
            is_writable=not problem,
            disk_free_bytes=_disk_free_bytes(path),
        )
    content = _read(path, deadline_us=deadline_us)
    folder = os.path.dirname(os.path.abspath(path))
    return DatabaseFacts(
        path=path,
        exists=True,
        revision=content.revision,
        schema=_schema(content.revision),
        integrity=content.integrity,
        problems=(problem, *content.problems) if problem else content.problems,
        size_bytes=_size_bytes(path) + _size_bytes(f"{path}-wal"),
        page_bytes=content.page_bytes,
        free_page_count=content.free_page_count,
        journal_mode=content.journal_mode,
        # The log and the lock are files of the same folder.
        is_writable=not problem and may_access(folder, os.W_OK | os.X_OK),
        disk_free_bytes=_disk_free_bytes(path),
        row_counts=content.row_counts,
        uncounted=content.uncounted,
    )


def _schema(revision: str) -> Literal["none", "older", "current", "newer"]:
    """Revisions are numbers of a fixed width, so that their texts have their order."""
    if not revision:
        return "none"
    if revision == HEAD_REVISION:
        return "current"
    return "older" if revision < HEAD_REVISION else "newer"


def _read(path: str, *, deadline_us: int) -> _Content:
    """Contents of the file.

    Where there is no log nobody has the file open, and reading through one would make it, for whichever user
    asks; so the file is then read as one that does not change. If a log comes meanwhile, it did.
    """
    is_at_rest = not os.path.exists(f"{path}-wal")
    content = _read_once(path, "ro&immutable=1" if is_at_rest else "ro", deadline_us=deadline_us)
    if is_at_rest and content.integrity != "ok" and os.path.exists(f"{path}-wal"):
        return _read_once(path, "ro", deadline_us=deadline_us)
    return content


def _read_once(path: str, mode: str, *, deadline_us: int) -> _Content:
    try:
        with closing(
            sqlite3.connect(
                file_uri(path, mode=mode),
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                timeout=_BUSY_TIMEOUT_S,
            )
        ) as connection:
            connection.execute("PRAGMA query_only = ON")
            return _content(connection, path, deadline_us=deadline_us)
    except sqlite3.Error as error:
        told = translate(error, path=path, operation="reading the database", is_opening=True)
        return _Content(integrity=_verdict(error), problems=(told.message,))


def _verdict(error: sqlite3.Error) -> Integrity:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return "corrupt" if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) else "unknown"


def _content(connection: sqlite3.Connection, path: str, *, deadline_us: int) -> _Content:
    revision, problems = "", tuple[str, ...]()
    try:
        revision = stored_revision(connection, path)
    except OstinatoError as error:
        problems = (error.message,)
    try:
        integrity, found = _integrity(connection, deadline_us=deadline_us)
    except sqlite3.Error as error:
        integrity, found = _verdict(error), (str(error),)
    content = _Content(
        revision=revision,
        integrity=integrity,
        problems=problems + found,
        page_bytes=_pragma(connection, "page_size"),
        free_page_count=_pragma(connection, "freelist_count"),
        journal_mode=_journal_mode(path),
    )
    if not revision or integrity == "corrupt":
        return content
    row_counts = {table: _row_count(connection, table) for table in _tables(connection)}
    uncounted = tuple(table for table, count in row_counts.items() if count >= _COUNTED_ROWS_MAX)
    return msgspec.structs.replace(content, row_counts=row_counts, uncounted=uncounted)


def _integrity(connection: sqlite3.Connection, *, deadline_us: int) -> tuple[Integrity, tuple[str, ...]]:
    late = Event()

    def interrupt() -> None:
        late.set()
        connection.interrupt()

    # An interrupt before the statement has begun is forgotten, so the statement also looks for itself.
    connection.set_progress_handler(late.is_set, _STEPS_BETWEEN_LOOKS)
    alarm = Timer(deadline_us / 1e6, interrupt)
    alarm.daemon = True
    alarm.start()
    try:
        rows = connection.execute(f"PRAGMA quick_check({_PROBLEMS_MAX})").fetchall()
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
            return "unfinished", ()
        raise
    finally:
        alarm.cancel()
        # Lest it fire at a connection that is closed.
        alarm.join()
        connection.set_progress_handler(None, 0)
    found = tuple(line for (text,) in rows for line in str(text).splitlines())
    return ("ok", ()) if found == ("ok",) else ("corrupt", found[:_PROBLEMS_MAX])


def _tables(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        " AND name <> 'alembic_version' ORDER BY name"
    )
    return [row[0] for row in rows]


def _row_count(connection: sqlite3.Connection, table: str) -> int:
    count: int = connection.execute(
        f'SELECT count(*) FROM (SELECT 1 FROM "{table}" LIMIT {_COUNTED_ROWS_MAX})'
    ).fetchone()[0]
    return count


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _journal_mode(path: str) -> str:
    """From the header of the file: a connection that reads it as unchanging would name its own."""
    with open(path, "rb") as file:
        header = file.read(20)
    return "wal" if header[18:20] == b"\x02\x02" else "delete"


def _size_bytes(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _disk_free_bytes(path: str) -> int:
    """Of the disk that `path` is on or would be made on; 0 where it cannot be asked."""
    folder = os.path.dirname(os.path.realpath(path))
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize
