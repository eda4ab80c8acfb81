"""What an error of ``sqlite3`` means to the caller; translated here and nowhere else."""

from __future__ import annotations

import errno
import os
import sqlite3

from ostinato.errors import InternalError, OstinatoError, UnavailableError, UserError

#: What the driver raises about the data of a row, before or while it is written.
DATA_ERRORS = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    OverflowError,
    UnicodeEncodeError,
)

_FULL_HINT = "free space on the disk of the database"
_UNUSABLE = {
    sqlite3.SQLITE_CORRUPT: "the file is corrupt",
    sqlite3.SQLITE_NOTADB: "the file is not a SQLite database",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
    sqlite3.SQLITE_PERM: "access to the file is denied",
    sqlite3.SQLITE_AUTH: "access to the file is denied",
    sqlite3.SQLITE_FORMAT: "the file is not a SQLite database",
}
#: Failures of files that a full disk shows as, beside ``SQLITE_FULL``: a quota, a file that cannot be made.
_MAYBE_FULL = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
#: Of these, the one after which nothing of the transaction is in the log. After the others (the frames are
#: written, but syncing them or indexing them failed) a crash may still bring it back: whether it was written
#: is unknown.
_CERTAIN = frozenset({sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_CANTOPEN})
#: A disk with less room than a few pages and a block of ``-shm`` counts as full.
_ROOM_BYTES = 64 * 1024
#: What the system says about a full disk: no room, no room for this user.
FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})
#: Statements that do not fit the schema or their values.
_OUR_FAULT = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_RANGE})


def translate(error: sqlite3.Error, *, path: str, operation: str, is_opening: bool = False) -> OstinatoError:
    """The error of ours that says what happened to the database, and whether repeating helps.

    `is_opening`: nothing was to be written yet, so a full disk is always a certain failure.
    """
    # The low byte is the primary code; the rest says which part of the file system answered.
    extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    code = extended & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return full(path, operation)
    if code in _MAYBE_FULL and not _has_room(path):
        if is_opening or extended in _CERTAIN:
            return full(path, operation)
        return UnavailableError(
            "DATABASE_UNAVAILABLE",
            f"the disk is full: {operation} failed, and whether anything was written is unknown: {error}",
            subject=path,
            hint=_FULL_HINT,
        )
    if code in _OUR_FAULT:
        return InternalError("INTERNAL", f"{operation}: {error}", subject=path, hint="please report this")
    if code in _UNUSABLE:
        return unusable(path, _UNUSABLE[code])
    return UnavailableError(
        "DATABASE_UNAVAILABLE", f"{operation} did not succeed: {error}", subject=path, hint="try again later"
    )


def full(path: str, operation: str) -> UnavailableError:
    return UnavailableError(
        "DATABASE_FULL",
        f"the disk is full: {operation} failed, nothing was written",
        subject=path,
        hint=_FULL_HINT,
    )


def _has_room(path: str) -> bool:
    """Whether the disk of `path` takes a few more pages and one more file, as far as it says."""
    try:
        disk = os.statvfs(os.path.dirname(os.path.realpath(path)))
    except OSError:
        # Not to be asked: then nothing says that it is full.
        return True
    if disk.f_blocks == 0:
        # Of no size at all, as /proc is: no room there is no fullness.
        return True
    has_inodes = disk.f_favail > 0 or disk.f_files == 0
    return has_inodes and disk.f_bavail * disk.f_frsize >= _ROOM_BYTES


def unusable(path: str, why: str, *, hint: str = "name another file, or restore this one") -> UserError:
    return UserError("DATABASE_UNUSABLE", f"{path}: {why}", subject=path, hint=hint)


def refused(error: BaseException, *, path: str, operation: str) -> UserError:
    return UserError(
        "INVALID_VALUE", f"{operation}: a row cannot be stored: {safe_message(error)}", subject=path
    )


def timed_out(path: str, operation: str, *, deadline_us: int) -> UnavailableError:
    return UnavailableError(
        "DATABASE_UNAVAILABLE",
        f"{operation} did not end within {deadline_us // 1000} ms",
        subject=path,
        hint="the disk is slow or another process holds the database; read again before deciding",
    )


def safe_message(error: BaseException) -> str:
    """What was wrong with a row, without the row: an encoding error quotes the text itself."""
    if isinstance(error, UnicodeEncodeError):
        return "a text holds a lone surrogate"
    if isinstance(error, OverflowError):
        return "an integer does not fit 64 bits"
    return ascii(str(error))[1:-1]
