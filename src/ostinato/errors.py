"""Every error that Ostinato raises: four families, one catalogue of stable codes.

A family says whose fault it is and so what the caller does next:

* ``UserError``: you. The input is wrong; repeating it cannot help.
* ``ConflictError``: someone else was first (stale epoch, live key, terminal state).
* ``UnavailableError``: the world (database, network). Repeating later may help.
* ``InternalError``: us. Please report it.

The message says what happened, ``subject`` to which thing, ``field`` in which field of the input,
``hint`` what to do. ``CODES`` feeds the docs table, the CLI's exit codes and, later, problem+json.
"""

from __future__ import annotations

from typing import NamedTuple


class CodeEntry(NamedTuple):
    """One row of the catalogue of error codes."""

    exit_code: int
    meaning: str
    #: Status of a REST answer, where it does not follow from the exit code.
    http_status: int = 0


#: Exit codes of design section 11.
EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_UNREACHABLE = 3
EXIT_CONFLICT = 4
EXIT_NOT_FOUND = 5
EXIT_INTERRUPTED = 130

#: Status of a REST answer (RFC 9110) by exit code, unless the code names its own.
_HTTP_STATUS = {
    EXIT_FAILED: 500,
    EXIT_BAD_INPUT: 400,
    EXIT_UNREACHABLE: 503,
    EXIT_CONFLICT: 409,
    EXIT_NOT_FOUND: 404,
}

CODES: dict[str, CodeEntry] = {
    "INVALID_VALUE": CodeEntry(EXIT_BAD_INPUT, "A value is not allowed here; the message names the field."),
    "INVALID_CRON": CodeEntry(
        EXIT_BAD_INPUT, "A cron expression cannot be used; the message names its field."
    ),
    "INVALID_TIMEZONE": CodeEntry(EXIT_BAD_INPUT, "A time zone is not a name of the IANA database."),
    "INVALID_DURATION": CodeEntry(
        EXIT_BAD_INPUT, "A duration is not written as a number and a unit, such as 30s."
    ),
    "INVALID_INSTANT": CodeEntry(EXIT_BAD_INPUT, "An instant is not ISO 8601 with an offset."),
    "INVALID_POLICY": CodeEntry(EXIT_BAD_INPUT, "A retry policy contradicts itself or exceeds a bound."),
    "INVALID_NAME": CodeEntry(
        EXIT_BAD_INPUT, "A name holds characters that are not allowed, or is too long."
    ),
    "INVALID_WORKFLOW": CodeEntry(
        EXIT_BAD_INPUT, "A workflow's graph cannot run as written; the message names the nodes."
    ),
    "INVALID_PAYLOAD": CodeEntry(EXIT_BAD_INPUT, "A payload does not fit the task, or JSON cannot carry it."),
    "PAYLOAD_TOO_LARGE": CodeEntry(EXIT_BAD_INPUT, "A payload is over the size limit.", 413),
    "INVALID_DOCUMENT": CodeEntry(
        EXIT_BAD_INPUT, "A file or request body is not YAML or JSON of the form that is needed."
    ),
    "BODY_TOO_LARGE": CodeEntry(EXIT_BAD_INPUT, "A request body or file is over the size limit.", 413),
    "MEDIA_TYPE": CodeEntry(
        EXIT_BAD_INPUT, "A request body is not of a media type that the address takes.", 415
    ),
    "METHOD_NOT_ALLOWED": CodeEntry(EXIT_BAD_INPUT, "The address does not answer that method.", 405),
    "HOST_REFUSED": CodeEntry(
        EXIT_BAD_INPUT, "The request names a host or comes from a web page that is not this API's.", 403
    ),
    "INVALID_SETTING": CodeEntry(EXIT_BAD_INPUT, "A setting is wrong; the message names its source."),
    "INVALID_APP": CodeEntry(EXIT_BAD_INPUT, "The module or attribute given as the app cannot be used."),
    "TASK_NOT_FOUND": CodeEntry(EXIT_NOT_FOUND, "No task of that name exists in the namespace."),
    "INSTANCE_NOT_FOUND": CodeEntry(EXIT_NOT_FOUND, "No instance has that id."),
    "WORKER_NOT_FOUND": CodeEntry(EXIT_NOT_FOUND, "No worker has that name or id."),
    "ADDRESS_NOT_FOUND": CodeEntry(EXIT_NOT_FOUND, "There is nothing at the address of a request."),
    "VERSION_CONFLICT": CodeEntry(
        EXIT_CONFLICT, "A task or instance has moved on from the version or generation that was meant."
    ),
    "KEY_CONFLICT": CodeEntry(EXIT_CONFLICT, "The idempotency key is live with another payload."),
    "INSTANCE_TERMINAL": CodeEntry(EXIT_CONFLICT, "The instance has already ended; its state is final."),
    "INSTANCE_NOT_TERMINAL": CodeEntry(
        EXIT_CONFLICT, "The instance has not ended, so it cannot be replayed."
    ),
    "INSTANCE_SUCCEEDED": CodeEntry(
        EXIT_CONFLICT, "The instance ended in success, and is run again only by force."
    ),
    "RUN_STATE": CodeEntry(
        EXIT_CONFLICT,
        "A workflow's run is in a state that it cannot be resumed, cancelled or rolled back from.",
    ),
    "TASK_OF_APP": CodeEntry(EXIT_CONFLICT, "The task is declared by an app, so no document may change it."),
    "TASK_DISABLED": CodeEntry(EXIT_CONFLICT, "The task is disabled and accepts no submissions or replays."),
    "NODE_ALREADY_RUNNING": CodeEntry(
        EXIT_CONFLICT, "A scheduler node runs on the database, which has to be free of others now."
    ),
    "COPY_REFUSED": CodeEntry(
        EXIT_CONFLICT, "A database is not copied: instances run in it, or the other one is not empty."
    ),
    "PORT_IN_USE": CodeEntry(EXIT_CONFLICT, "The address to listen on is taken."),
    "CHAOS_REFUSED": CodeEntry(
        EXIT_BAD_INPUT, "What is to be broken is not what the scenario says it is, or must not be broken."
    ),
    "RESULT_NOT_READY": CodeEntry(EXIT_FAILED, "The instance did not end within the time given."),
    "INSTANCE_FAILED": CodeEntry(EXIT_FAILED, "The instance ended without success, so it has no result."),
    "DATABASE_UNAVAILABLE": CodeEntry(
        EXIT_UNREACHABLE, "The database is not there, or did not answer in time."
    ),
    "DATABASE_FULL": CodeEntry(EXIT_UNREACHABLE, "The database's disk is full."),
    "DATABASE_UNUSABLE": CodeEntry(
        EXIT_BAD_INPUT, "The database is corrupt, read-only, gone or not Ostinato's.", http_status=503
    ),
    "SCHEMA_VERSION": CodeEntry(
        EXIT_BAD_INPUT, "The database's schema is missing, or is not the one of this version of Ostinato."
    ),
    "SCHEDULER_UNREACHABLE": CodeEntry(EXIT_UNREACHABLE, "No scheduler answers at the address."),
    "OVERLOADED": CodeEntry(EXIT_UNREACHABLE, "Too many requests are under way; repeat it a little later."),
    "BACKPRESSURE": CodeEntry(
        EXIT_UNREACHABLE,
        "Too much work waits to start, so no submission is accepted; repeat it a little later.",
        429,
    ),
    "CONNECTION_CLOSED": CodeEntry(EXIT_UNREACHABLE, "The other side ended the stream, or it broke."),
    "PROTOCOL_MISMATCH": CodeEntry(EXIT_BAD_INPUT, "Worker and scheduler speak different protocol versions."),
    "UNKNOWN_TOKEN": CodeEntry(
        EXIT_BAD_INPUT, "The scheduler asks workers for a token, and this one is missing or another."
    ),
    "ALREADY_CONNECTED": CodeEntry(
        EXIT_CONFLICT, "A worker has reached one node by two addresses; it keeps one of the streams."
    ),
    "INVARIANT": CodeEntry(
        EXIT_FAILED, "A rule that must always hold was broken. This is a bug in Ostinato."
    ),
    "INTERNAL": CodeEntry(EXIT_FAILED, "Something unforeseen happened. This is a bug in Ostinato."),
}


class OstinatoError(Exception):
    """Base of every error raised by Ostinato."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        subject: str = "",
        field: str = "",
        hint: str = "",
        place: str = "",
    ) -> None:
        if code not in CODES:
            raise KeyError(f"error code {code!r} is missing from ostinato.errors.CODES")
        super().__init__(message)
        self.code = code
        self.message = message
        self.subject = subject
        self.field = field
        self.hint = hint
        #: Where the field stands in a file, as ``tasks.yaml:12:5``; empty: in no file.
        self.place = place

    def __str__(self) -> str:
        text = ": ".join(part for part in (self.place, self.field, self.message) if part)
        return f"{text} ({self.hint})" if self.hint else text

    @property
    def exit_code(self) -> int:
        """Exit status of a command that ends with this error (design section 11)."""
        return CODES[self.code].exit_code

    @property
    def http_status(self) -> int:
        """Status of a REST answer that carries this error."""
        entry = CODES[self.code]
        return entry.http_status or _HTTP_STATUS[entry.exit_code]


class UserError(OstinatoError):
    """The input is wrong; repeating the same call cannot help."""


class ConflictError(OstinatoError):
    """Someone else was first, or the thing has moved on."""


class UnavailableError(OstinatoError):
    """Something outside did not answer; repeating the call later may help."""


class InternalError(OstinatoError):
    """A bug in Ostinato."""


def restated(
    error: UserError,
    *,
    field: str | None = None,
    subject: str | None = None,
    hint: str | None = None,
    place: str | None = None,
) -> UserError:
    """The same fault with another field, subject, hint or place; None keeps what it has."""
    return UserError(
        error.code,
        error.message,
        subject=error.subject if subject is None else subject,
        field=error.field if field is None else field,
        hint=error.hint if hint is None else hint,
        place=error.place if place is None else place,
    )


def invariant(condition: bool, name: str, message: str, *, subject: str = "") -> None:
    """Raise ``InternalError`` with code ``INVARIANT`` unless `condition` holds.

    `name` is the invariant of design section 2 (``"I5"``) or a short rule name. Stays on in production.
    """
    if not condition:
        raise InternalError("INVARIANT", f"{name}: {message}", subject=subject, hint="please report this")
