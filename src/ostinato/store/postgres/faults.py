"""What an error of asyncpg, or of SQLAlchemy around it, means; translated here and nowhere else."""

from __future__ import annotations

import ssl

import asyncpg
from sqlalchemy import exc

from ostinato.store.server.faults import Fault, FaultKind

_CONFLICTS = {"40P01": "deadlock", "40001": "serialization", "55P03": "lock_timeout"}
#: By the whole SQLSTATE, before its class.
_STATES: dict[str, FaultKind] = {
    # Ended while idle in a transaction, shut down, crashed, idle for too long.
    "25P03": "lost",
    "57P01": "lost",
    "57P02": "lost",
    "57P05": "lost",
    # Read-only after a failover, starting up, cancelled (by the time-out of a statement, or by somebody).
    "25006": "refused",
    "57P03": "refused",
    "57014": "refused",
    # Dropped while in use.
    "57P04": "unusable",
    "42501": "unusable",
    # No such table: the database was made anew under a store that is open.
    "42P01": "unusable",
    "53100": "full",
    # Corrupt data, corrupt index.
    "XX001": "unusable",
    "XX002": "unusable",
}
_CLASSES: dict[str, FaultKind] = {
    "08": "lost",
    # Values, constraints, limits such as the size of a row of an index.
    "22": "data",
    "23": "data",
    "54": "data",
    # Password, database.
    "28": "unusable",
    "3D": "unusable",
    # Too many connections, no memory; a standby; errors of its files; its own errors.
    "53": "refused",
    "55": "refused",
    "58": "refused",
    "XX": "refused",
}
_HINTS = {
    "25006": "the server is read-only, as after a failover",
    "57014": "the server cancelled the statement",
}


def fault_of(error: BaseException) -> Fault | None:
    """What `error` means; None for what comes from no database."""
    error = _unwrapped(error)
    if isinstance(error, asyncpg.PostgresError):
        return _server_fault(error)
    if isinstance(error, asyncpg.DataError):
        return Fault("data", _client_problem(error))
    if isinstance(error, (asyncpg.ClientConfigurationError, ssl.SSLCertVerificationError)):
        return Fault("unusable", str(error))
    if isinstance(error, (asyncpg.InterfaceError, asyncpg.InternalClientError)):
        # Said of a connection that is closed, or was in the middle of something.
        return Fault("lost", str(error))
    if isinstance(error, exc.StatementError):
        return Fault("data", "a value is not of its column's kind")
    if isinstance(error, exc.TimeoutError):
        return Fault("refused", "every connection is in use")
    if isinstance(error, (ConnectionRefusedError, FileNotFoundError)):
        return Fault("refused", f"the server does not accept connections: {error.strerror or error}")
    if isinstance(error, OSError):
        return Fault("lost", f"the connection failed: {error.strerror or error}")
    return None


def data_problem(error: BaseException) -> str | None:
    """What is wrong with a row as data, without its values; None for any other error."""
    fault = fault_of(error)
    return fault.reason if fault is not None and fault.kind == "data" else None


def _unwrapped(error: BaseException) -> BaseException:
    """The driver's own error within SQLAlchemy's."""
    if isinstance(error, exc.StatementError) and error.orig is not None:
        inner = error.orig.__cause__ or error.orig
        known = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
        if isinstance(inner, known):
            return inner
    return error


def _server_fault(error: asyncpg.PostgresError) -> Fault:
    state = error.sqlstate or ""
    if state in _CONFLICTS:
        return Fault("conflict", _CONFLICTS[state].replace("_", " "), _CONFLICTS[state])
    if isinstance(error, asyncpg.InvalidCachedStatementError):
        # Prepared before a migration: prepared anew, it fits.
        return Fault("conflict", "the schema has changed", "schema_change")
    kind = _STATES.get(state) or _CLASSES.get(state[:2], "ours")
    # The message alone: the detail shows the row.
    reason = ascii(str(error.args[0] if error.args else error))[1:-1]
    return Fault(kind, f"{_HINTS[state]}: {reason}" if state in _HINTS else reason)


def _client_problem(error: asyncpg.DataError) -> str:
    """What asyncpg refused to send: its own message quotes the value."""
    cause = error.__cause__
    if isinstance(cause, UnicodeEncodeError) or "surrogates not allowed" in str(error):
        return "a text holds a lone surrogate"
    if isinstance(cause, OverflowError) or "out of" in str(error):
        return "an integer does not fit its column"
    return "a value is not of its column's kind"
