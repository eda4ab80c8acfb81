"""What an error of a database server means to the caller, in terms that both servers share."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from ostinato.errors import InternalError, OstinatoError, UnavailableError, UserError

#: ``conflict``: rolled back because of somebody else's transaction; the same one may succeed next time.
#: ``lost``: the connection is gone; whether the statement under way took effect is unknown.
#: ``refused``: the server takes no work now (starting up, too many connections, read-only after a failover).
#: ``full``: the server's disk. ``unusable``: password, database or rights; repeating cannot help.
#: ``data``: the server refused a row as data. ``ours``: a statement that does not fit the schema.
FaultKind: TypeAlias = Literal["conflict", "lost", "refused", "full", "unusable", "data", "ours"]


class Fault(NamedTuple):
    """One error of a driver, understood."""

    kind: FaultKind
    #: In words, without values of rows.
    reason: str
    #: Name of the counter of repetitions: ``deadlock``, ``serialization``, ``lock_timeout``; else the kind.
    counted_as: str = ""

    @property
    def counter(self) -> str:
        return self.counted_as or self.kind

    @property
    def is_certain(self) -> bool:
        """Nothing of the transaction has been committed, even if COMMIT had been sent."""
        return self.kind not in ("lost", "refused")


def error_of(fault: Fault, *, operation: str, subject: str) -> OstinatoError:
    """The error of ours for `fault` before COMMIT was sent: nothing was written.

    `subject` names the server without its password.
    """
    match fault.kind:
        case "full":
            return UnavailableError(
                "DATABASE_FULL",
                f"the database's disk is full: {operation} failed, nothing was written: {fault.reason}",
                subject=subject,
                hint="free space on the disk of the database server",
            )
        case "unusable":
            return UserError(
                "DATABASE_UNUSABLE",
                f"{operation}: {fault.reason}",
                subject=subject,
                hint="check the database's URL and the rights of its user",
            )
        case "data":
            return UserError(
                "INVALID_VALUE", f"{operation}: a row cannot be stored: {fault.reason}", subject=subject
            )
        case "ours":
            return InternalError(
                "INTERNAL", f"{operation}: {fault.reason}", subject=subject, hint="please report this"
            )
        case _:
            return UnavailableError(
                "DATABASE_UNAVAILABLE",
                f"{operation} did not succeed: {fault.reason}",
                subject=subject,
                hint="try again later",
            )


def unknown_commit(reason: str, *, operation: str, subject: str) -> UnavailableError:
    """COMMIT was sent, and its answer never came."""
    return UnavailableError(
        "DATABASE_UNAVAILABLE",
        f"{operation}: the answer to COMMIT was lost, and whether anything was written is unknown: {reason}",
        subject=subject,
        hint="read again before deciding",
    )


def timed_out(operation: str, *, deadline_us: int, subject: str) -> UnavailableError:
    return UnavailableError(
        "DATABASE_UNAVAILABLE",
        f"{operation} did not end within {deadline_us // 1000} ms",
        subject=subject,
        hint="the server is slow, locked or out of connections; read again before deciding",
    )
