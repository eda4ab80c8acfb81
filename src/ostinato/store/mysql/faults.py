"""What an error of MySQL, MariaDB or their driver means to the caller; translated here and nowhere else."""

from __future__ import annotations

import asyncio

from asyncmy import errors as driver_errors
from sqlalchemy import exc as sqlalchemy_errors

from ostinato.store.mysql.literals import RowTooLong
from ostinato.store.server.faults import Fault, FaultKind

#: A row with this key is there already.
DUPLICATE = 1062

#: Rolled back for somebody else's transaction, with the name of their counter.
_CONFLICTS = {
    1213: "deadlock",
    1205: "lock_timeout",
    # MariaDB: the row was changed since the snapshot; XA and Galera say a deadlock so.
    1020: "serialization",
    1614: "deadlock",
    # NOWAIT of an operator's tool, or a table being altered.
    3572: "lock_timeout",
    3101: "serialization",  # MySQL: Group Replication has refused the transaction
    1412: "serialization",  # a table was altered since the transaction began
    # What looked first whether the row was there was overtaken: it looks again.
    DUPLICATE: "duplicate",
}
_LOST = {
    2006,  # gone away
    2013,  # lost during a query
    2014,  # answers out of order: the connection cannot be trusted any more
    2055,
    1053,  # server shutdown in progress
    1077,
    1079,
    1152,  # aborted connection
    1158,
    1159,
    1160,
    1161,
    1184,
    1317,  # query interrupted: somebody has killed it
    1927,  # MariaDB: connection was killed
    3169,  # session was killed
    3032,
    4031,  # MySQL: closed for inactivity
}
#: The server takes no work now; the statement did not happen.
_REFUSED = {
    1040,  # too many connections
    1203,  # too many of this user
    1226,  # a limit of this user is reached
    1041,  # out of memory
    1037,
    1038,
    1290,  # --read-only, while a replica is promoted
    1792,  # read-only transaction
    1836,
    1129,  # host blocked after errors
    1135,  # no thread
    1969,  # MariaDB: max_statement_time
    3024,  # MySQL: max_execution_time
    2002,  # no socket
    2003,  # nobody listens
    1047,  # Galera: not ready
}
_FULL = {
    1021,  # disk full
    1114,  # table is full
}
_UNUSABLE = {
    1044,  # no right to the database
    1045,  # password
    1049,  # no such database
    1142,
    1143,
    1227,  # a privilege is missing
    1130,  # host not allowed
    1698,
    1251,
    1524,
    1862,  # password expired
    1820,
    2054,
    2059,
    2061,
    1146,  # no such table: not our schema
    1194,  # table crashed
    1195,
    3118,  # account locked
    3159,  # the server takes encrypted connections only
    3955,  # MySQL: locked after too many wrong passwords
    4151,
}
#: The server refuses a value; `safe_reason` says it without the value.
_DATA = {
    1048: "a value is null where none may be",
    1153: "it is longer than the server's max_allowed_packet",
    1264: "a number is out of range",
    1265: "a value does not fit its column",
    1292: "a value is of the wrong kind",
    1300: "a text is not UTF-8",
    1364: "a value is missing",
    1366: "a value is not one of its column's kind",
    1367: "a value is of the wrong kind",
    1406: "a text is too long",
    1690: "a number is out of range",
    1301: "it is longer than the server's max_allowed_packet",
    3140: "a text is no JSON",
    3819: "it breaks a constraint of the table",
    4025: "it breaks a constraint of the table",
    1118: "the row is too long",
}
#: Errors of files and of the storage engine, which is how a full disk shows, and what then stands in them.
_OF_FILES = {1026, 1030}
_FULL_MARKS = ("no space", "errno: 28", "error 28", "disk full", "error: 28", "got error 122", "is full")


def fault(error: BaseException) -> Fault | None:
    """What `error` means, wrapped by SQLAlchemy or not; None for what comes from no database driver."""
    if isinstance(error, sqlalchemy_errors.DBAPIError) and error.orig is not None:
        cause = error.orig.__cause__
        return fault(cause if isinstance(cause, driver_errors.MySQLError) else error.orig)
    if isinstance(error, sqlalchemy_errors.StatementError) and error.orig is not None:
        return fault(error.orig)
    if isinstance(error, UnicodeEncodeError):
        return Fault("data", "a text holds a lone surrogate")
    if isinstance(error, OverflowError):
        return Fault("data", "an integer does not fit 64 bits")
    if isinstance(error, RowTooLong):
        return Fault("data", f"the row {_DATA[1153].removeprefix('it ')}")
    if isinstance(error, driver_errors.MySQLError):
        return _of_server(error)
    if isinstance(error, ConnectionRefusedError):
        return Fault("refused", "nobody listens at the address")
    if isinstance(error, (OSError, asyncio.IncompleteReadError, EOFError)):
        return Fault("lost", str(error) or "the connection broke")
    return None


def is_duplicate(error: BaseException) -> bool:
    """Whether a row was not inserted because one with its key is there."""
    return isinstance(error, driver_errors.MySQLError) and _code(error) == DUPLICATE


def _of_server(error: driver_errors.MySQLError) -> Fault:
    code = _code(error)
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    if code in _DATA:
        return Fault("data", f"{_DATA[code]} ({code})")
    if code in _CONFLICTS:
        # The text of a duplicate quotes the key, which may be anybody's.
        reason = "a row of the same key came in between" if code == DUPLICATE else text
        return Fault("conflict", f"{reason} ({code})", _CONFLICTS[code])
    return Fault(_kind(code, text), f"{text} ({code})" if code else text)


def _kind(code: int, text: str) -> FaultKind:
    if code in _OF_FILES:
        return "full" if any(mark in text.lower() for mark in _FULL_MARKS) else "refused"
    for codes, kind in (_UNUSABLE, "unusable"), (_LOST, "lost"), (_REFUSED, "refused"), (_FULL, "full"):
        if code in codes:
            return kind  # type: ignore[return-value] # the literals above
    # The driver's own, such as a connection that it has closed, have no code or 0.
    return "lost" if code == 0 or 2000 <= code < 3000 else "ours"


def _code(error: driver_errors.MySQLError) -> int:
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0
