"""What an error of ``sqlite3`` means to the caller; translated here and nowhere else."""

from __future__ import annotations

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

_UNUSABLE = {
    sqlite3.SQLITE_CORRUPT: "the file is corrupt",
    sqlite3.SQLITE_NOTADB: "the file is not a SQLite database",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
    sqlite3.SQLITE_PERM: "access to the file is denied",
    sqlite3.SQLITE_AUTH: "access to the file is denied",
    sqlite3.SQLITE_FORMAT: "the file is not a SQLite database",
}
#: Statements that do not fit the schema or their values.
_OUR_FAULT = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_RANGE})


def translate(error: sqlite3.Error, *, path: str, operation: str) -> OstinatoError:
    """The error of ours that says what happened to the database, and whether repeating helps."""
    # The low byte is the primary code; the rest says which part of the file system answered.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return UnavailableError(
            "DATABASE_FULL",
            f"the disk is full, {operation} was not written",
            subject=path,
            hint="free space on the disk of the database",
        )
    if code in _OUR_FAULT:
        return InternalError("INTERNAL", f"{operation}: {error}", subject=path, hint="please report this")
    if code in _UNUSABLE:
        return unusable(path, _UNUSABLE[code])
    return UnavailableError(
        "DATABASE_UNAVAILABLE", f"{operation} did not succeed: {error}", subject=path, hint="try again later"
    )


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
