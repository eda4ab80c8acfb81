"""Opens the file of a SQLite database: whose it is, which schema it has, and makes or migrates it."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import quote

from ostinato.errors import OstinatoError, UserError, invariant
from ostinato.store.migrations import HEAD_REVISION
from ostinato.store.sqlite.failures import translate, unusable
from ostinato.store.sqlite.new_file import make_schema

if TYPE_CHECKING:
    from sqlalchemy import Connection

#: ``PRAGMA application_id`` of our files: the letters OSTI.
APPLICATION_ID = 0x4F535449

#: How every SQLite database begins.
_BEGINNING = b"SQLite format 3\0"
#: ``UPDATE … FROM`` came with it.
_SQLITE_MIN = (3, 33, 0)
_BUSY_TIMEOUT_SHARE = 0.8
_CACHE_KIB = 65536
_CHECKPOINT_PAGES = 4000
#: What a burst has made of the log beyond this is given back to the disk.
_LOG_BYTES_KEPT = 64 * 1024 * 1024


def connect(path: str, *, deadline_us: int, read_only: bool) -> sqlite3.Connection:
    """Connection in which nothing begins or ends by itself. The file must exist unless it may be written."""
    if sqlite3.sqlite_version_info < _SQLITE_MIN:
        raise unusable(
            path,
            f"the SQLite library {sqlite3.sqlite_version} is too old",
            hint="use Python with SQLite 3.33 or newer",
        )
    mode = "rw" if read_only or os.path.exists(path) else "rwc"
    connection = sqlite3.connect(
        file_uri(path, mode=mode),
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        # Waiting for another writer must end before the caller's own deadline does.
        timeout=deadline_us * _BUSY_TIMEOUT_SHARE / 1e6,
        cached_statements=512,
    )
    try:
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        # The journals of statements would go to files, which costs a third of the throughput.
        connection.execute("PRAGMA temp_store = MEMORY")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
    except BaseException:
        # The first statement meets damage. The error's frames would keep the file, and its log, open.
        connection.close()
        raise
    return connection


def file_uri(path: str, *, mode: str) -> str:
    """SQLite's name of the file; the bytes of its name need not be UTF-8."""
    return f"file:{quote(os.fsencode(os.path.abspath(path)))}?mode={mode}"


def connect_writer(path: str, *, deadline_us: int, partition_count: int) -> sqlite3.Connection:
    """The writing connection of a database that is ours and has the newest schema, made if there was none.

    Raises ``DATABASE_UNUSABLE``, ``SCHEMA_VERSION``, ``DATABASE_FULL``, ``DATABASE_UNAVAILABLE``, each with
    the field ``database``.
    """
    try:
        return _connect_writer(path, deadline_us=deadline_us, partition_count=partition_count)
    except OstinatoError as error:
        error.field = error.field or "database"
        raise


def _connect_writer(path: str, *, deadline_us: int, partition_count: int) -> sqlite3.Connection:
    why = why_unusable(path)
    if why:
        raise unusable(path, why)
    connection: sqlite3.Connection | None = None
    try:
        connection = connect(path, deadline_us=deadline_us, read_only=False)
        _prepare(connection, path, partition_count=partition_count)
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise translate(error, path=path, operation="opening the database", is_opening=True) from error
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    return connection


def why_unusable(path: str) -> str:
    """What the file system says against a database at `path`, empty where nothing; none needs to be there.

    SQLite itself would wait for ever for the other end of a pipe, write into a device, and name no reason.
    """
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        return f"there is no folder {folder}"
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        # A link may lead elsewhere.
        folder = os.path.dirname(os.path.realpath(path))
        return "" if may_access(folder, os.W_OK | os.X_OK) else f"the folder {folder} cannot be written"
    except OSError as error:
        return f"the file cannot be opened: {error.strerror}"
    if stat.S_ISDIR(mode):
        return "it is a folder"
    if not stat.S_ISREG(mode):
        return "it is no regular file"
    return _why_unusable_file(path)


def _why_unusable_file(path: str) -> str:
    if not may_access(path, os.R_OK):
        return "the file cannot be read by this user"
    with open(path, "rb") as file:
        beginning = file.read(len(_BEGINNING))
    # SQLite takes a file of one byte for an empty one and writes over it.
    if beginning not in (b"", _BEGINNING):
        return "the file is not a SQLite database"
    return "" if may_access(path, os.W_OK) else "the file is read-only"


def may_access(path: str, mode: int) -> bool:
    """Whether this process may, as the user that it acts for."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _prepare(connection: sqlite3.Connection, path: str, *, partition_count: int) -> None:
    revision = stored_revision(connection, path)
    # Only now: the mode is written into the file, and somebody else's is not ours to change.
    connection.execute("PRAGMA journal_mode = WAL")
    # Durable when the call returns: NORMAL would lose the last commits with the machine.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES_KEPT}")
    if revision == HEAD_REVISION:
        # Says now, rather than at the first submission, that the file cannot be written.
        connection.execute("BEGIN IMMEDIATE")
        connection.rollback()
    elif revision or not _make(connection, path, partition_count=partition_count):
        _migrate(connection, path, partition_count=partition_count)


def stored_revision(connection: sqlite3.Connection, path: str) -> str:
    """Revision of the schema in the file, empty for an empty file; refuses what is not ours."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if not tables and application_id == 0:
        return ""
    if application_id != APPLICATION_ID or "alembic_version" not in tables:
        raise unusable(path, "it belongs to another program", hint="name another file")
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    if row is None:
        raise unusable(path, "it does not say which schema it has")
    return str(row[0])


def _make(connection: sqlite3.Connection, path: str, *, partition_count: int) -> bool:
    """Give an empty file the newest schema; false: another process has made it while this one waited."""
    connection.execute("BEGIN IMMEDIATE")
    if stored_revision(connection, path):
        connection.rollback()
        return False
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    make_schema(connection, partition_count=partition_count)
    connection.commit()
    return True


def _migrate(connection: sqlite3.Connection, path: str, *, partition_count: int) -> None:
    """Bring the file to the newest schema."""

    def bring(session: Connection, revision: str) -> None:
        from ostinato.store.migrations.run import upgrade

        if revision != HEAD_REVISION:
            upgrade(session, partition_count=partition_count)

    change_schema(connection, path, change=bring)


def change_schema(
    connection: sqlite3.Connection, path: str, *, change: Callable[[Connection, str], None]
) -> None:
    """Let `change` migrate from the revision that it is told, in one transaction: never half.

    Raises ``SCHEMA_VERSION`` where a newer version has made it.
    """
    # Late: importing Alembic takes longer than opening a database that needs no migration.
    from sqlalchemy import create_engine
    from sqlalchemy.pool import StaticPool

    from ostinato.store.migrations.run import knows_revision

    engine = create_engine(
        "sqlite://", creator=lambda: connection, poolclass=StaticPool, pool_reset_on_return=None
    )
    with engine.connect() as session:
        # After connecting, which rolls back.
        connection.execute("BEGIN IMMEDIATE")
        # Another process may have migrated while this one waited for the lock.
        revision = stored_revision(connection, path)
        if revision and not knows_revision(revision):
            raise UserError(
                "SCHEMA_VERSION",
                f"{path} has schema {revision}, which this version does not know",
                subject=path,
                hint="use the newer version of Ostinato that made it",
            )
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        change(session, revision)
        invariant(connection.in_transaction, "migration", "a revision ended the transaction", subject=path)
        connection.commit()
