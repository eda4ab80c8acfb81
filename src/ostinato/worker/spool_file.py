"""The file of a spool: outcomes of one worker process that the node may not have yet.

::

    DATA_DIR/spool/WORKER_ID.lock     held by the worker's supervisor and guardian together (``flock``)
                   WORKER_ID.db       SQLite, one row a group of outcomes, in the order of their ends
    DATA_DIR/workers/WORKER_ID/       what it keeps while it lives: scratch directories of attempts

Worker ids are never used twice. So a lock that is free belongs to nobody any more, and whoever takes it may
do with the files as it likes. The lock is made first and deleted last, by whoever holds it: files without
a lock are nobody's either. This module needs neither event loop nor network.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import LiteralString, NamedTuple
from urllib.parse import quote

import msgspec

from ostinato.core.model import Outcome

#: ``PRAGMA application_id`` of a spool: the letters OSTS.
APPLICATION_ID = 0x4F535453
#: ``PRAGMA user_version``: the form of the rows.
FORM_VERSION = 1
#: Longest wait for somebody who only reads.
_BUSY_TIMEOUT_S = 1.0
#: What SQLite says of a file that is no spool, or not a whole one. Anything else may pass by itself.
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
_SCHEMA = f"""
BEGIN IMMEDIATE;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORM_VERSION};
CREATE TABLE IF NOT EXISTS outcomes (row INTEGER PRIMARY KEY AUTOINCREMENT, body BLOB NOT NULL);
COMMIT;
"""


class Contents(NamedTuple):
    """What a spool holds, oldest first. `problem` says what could not be read; empty if all could."""

    outcomes: list[Outcome]
    problem: str


class SpoolFile:
    """Writes one spool; used by one thread at a time. The file is made at the first write.

    A row is a group of outcomes, and each write is one statement that commits by itself: the thread must win
    Python's lock back after every call into SQLite, which a busy event loop makes it wait 5 ms for.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._encode = msgspec.msgpack.Encoder().encode
        #: Where an outcome is, and how many outcomes of a row are still needed.
        self._row_of: dict[str, int] = {}
        self._needed_count: dict[int, int] = {}

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """See a group of outcomes on the disk, or none of it; an empty one shows that it can be written.

        Raises ``sqlite3.Error`` or ``OSError``; the next call begins with a new connection then.
        """
        cursor = self._execute("INSERT INTO outcomes (body) VALUES (?)", self._encode(outcomes))
        row = cursor.lastrowid
        assert row is not None, "an INSERT has made it"
        self._row_of.update((outcome.attempt_id, row) for outcome in outcomes)
        self._needed_count[row] = len(outcomes)

    def forget(self, attempt_ids: Iterable[str]) -> None:
        """Delete the rows of which nothing is needed any more; unknown ids are ignored. Raises as `add`."""
        for attempt_id in attempt_ids:
            row = self._row_of.pop(attempt_id, None)
            if row is not None:
                self._needed_count[row] -= 1
        done = [row for row, needed_count in self._needed_count.items() if not needed_count]
        if done:
            rows = msgspec.json.encode(done).decode()
            self._execute("DELETE FROM outcomes WHERE row IN (SELECT value FROM json_each(?))", rows)
            for row in done:
                del self._needed_count[row]

    def set_aside(self) -> Path:
        """Rename the damaged file, to write a new one; returns its new name."""
        self.close()
        self._row_of.clear()
        self._needed_count.clear()
        return set_aside(self.path)

    def _execute(self, statement: LiteralString, value: str | bytes) -> sqlite3.Cursor:
        try:
            return self._connect().execute(statement, (value,))
        except BaseException:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = _open(self.path, may_create=True)
            try:
                # An acknowledged fsync is the whole point (I2). One writer alone needs no shared memory.
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                _refuse_foreign(connection)
                connection.executescript(_SCHEMA)
                _sync_directory(self.path.parent)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def close(self) -> None:
        """Give the connection back; idempotent, what was committed stays."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class ForeignFileError(sqlite3.DatabaseError):
    """A database that some other program, or a version of another form, has made."""


def is_damaged(error: BaseException) -> bool:
    """Whether an error means that a file is no spool, or not a whole one."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, ForeignFileError) or (code is not None and code & 0xFF in _DAMAGED)


def read_spool(path: Path) -> Contents:
    """All that can be read of a spool whose lock the caller holds; a missing file holds nothing.

    Raises ``sqlite3.Error`` or ``OSError`` for what may pass by itself (no memory, no permission, no room).
    """
    outcomes: dict[str, Outcome] = {}
    problem = ""
    if not path.exists():
        return Contents([], problem)
    connection = _open(path, may_create=False)
    try:
        # Also what was committed but not yet moved from the log to the file is read then.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        _refuse_foreign(connection)
        if connection.execute("PRAGMA user_version").fetchone() == (0,):
            return Contents([], problem)  # killed before its first commit
        decode = msgspec.msgpack.Decoder(list[Outcome]).decode
        for row, body in connection.execute("SELECT row, body FROM outcomes ORDER BY row"):
            try:
                # The first one stands: a group whose commit was told as failed may be there nevertheless.
                for outcome in decode(body):
                    outcomes.setdefault(outcome.attempt_id, outcome)
            except (msgspec.MsgspecError, TypeError, UnicodeError) as error:
                problem = problem or f"row {row} cannot be read: {error}"
    except sqlite3.Error as error:
        if not is_damaged(error):
            raise
        problem = str(error)
    finally:
        connection.close()
    return Contents(list(outcomes.values()), problem)


def remove_spool(path: Path) -> None:
    """Delete a spool of which nothing is needed any more, but not its lock; idempotent."""
    for suffix in ("-wal", "-shm", "-journal", ""):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def set_aside(path: Path) -> Path:
    """Rename a damaged spool, so that it can be looked at; returns its new name, ``….corrupt``."""
    names = (path.with_name(f"{path.name}{f'.{number}' if number else ''}.corrupt") for number in count())
    new_path = next(name for name in names if not name.exists())
    for suffix in ("-wal", "-shm", "-journal", ""):
        if os.path.exists(f"{path}{suffix}"):
            os.rename(f"{path}{suffix}", f"{new_path}{suffix}")
    return new_path


def lock_path(path: Path) -> Path:
    """The lock of a spool."""
    return path.with_suffix(".lock")


def take_lock(path: Path, *, wait: bool) -> int | None:
    """Descriptor that holds the lock file `path`, made if it was missing. None if another process has it.

    With `wait` it is waited for: of a new worker's own lock, a worker that looks around may have hold for a
    moment. Raises ``OSError``.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_named(descriptor, path):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        # Deleted meanwhile by whoever had it: a lock that nobody else can find excludes nobody.
        os.close(descriptor)


def _is_named(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _open(path: Path, *, may_create: bool) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(os.path.abspath(path))}?mode={'rwc' if may_create else 'rw'}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=_BUSY_TIMEOUT_S,
    )


def _refuse_foreign(connection: sqlite3.Connection) -> None:
    ((application_id,), (form,)) = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    if (application_id, form) == (APPLICATION_ID, FORM_VERSION):
        return
    ((table_count,),) = connection.execute("SELECT count(*) FROM sqlite_schema")
    if application_id == APPLICATION_ID:
        raise ForeignFileError(f"its form is {form}, and this version of Ostinato knows {FORM_VERSION}")
    if application_id or form or table_count:
        raise ForeignFileError("it is not a spool of Ostinato")


def _sync_directory(path: Path) -> None:
    """See the name of a new file on the disk too."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
