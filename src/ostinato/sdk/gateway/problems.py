"""Problem details of the API (RFC 9457), back to the errors that they were made of."""

from __future__ import annotations

import msgspec

from ostinato.control.document.errors import InvalidDocument
from ostinato.errors import (
    CODES,
    EXIT_BAD_INPUT,
    EXIT_CONFLICT,
    EXIT_NOT_FOUND,
    EXIT_UNREACHABLE,
    ConflictError,
    InternalError,
    OstinatoError,
    UnavailableError,
    UserError,
)

#: By exit code. What is left ends with 1: our bugs, and nothing else that an API answers.
_FAMILIES: dict[int, type[OstinatoError]] = {
    EXIT_BAD_INPUT: UserError,
    EXIT_NOT_FOUND: UserError,
    EXIT_CONFLICT: ConflictError,
    EXIT_UNREACHABLE: UnavailableError,
}


class Fault(msgspec.Struct):
    """One fault of several."""

    code: str
    detail: str
    field: str | None = None
    hint: str | None = None
    subject: str | None = None


class Problem(Fault):
    """The body of an answer that refuses. A code of ours is what tells it from other servers' problems."""

    errors: list[Fault] = []


def read_problem(body: bytes) -> Problem | None:
    """The problem that a body holds; None if it is not one of this API's."""
    try:
        return msgspec.json.decode(body, type=Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def error_of(problem: Problem, *, status: int) -> OstinatoError:
    """The error that a problem was made of; one with a code of a newer release says so in its message."""
    faults = [_user_error(fault) for fault in problem.errors]
    if faults:
        return InvalidDocument(faults)
    if problem.code in CODES:
        family = _FAMILIES.get(CODES[problem.code].exit_code, InternalError)
        return _made(family, problem.code, problem)
    if status >= 500:
        family, code = (
            (UnavailableError, "SCHEDULER_UNREACHABLE") if status == 503 else (InternalError, "INTERNAL")
        )
        return _made(family, code, _named(problem))
    return _made(UserError, "INVALID_VALUE", _named(problem))


def _user_error(fault: Fault) -> UserError:
    if fault.code in CODES:
        return UserError(**_arguments(fault.code, fault))
    return UserError(**_arguments("INVALID_VALUE", _named(fault)))


def _made(family: type[OstinatoError], code: str, fault: Fault) -> OstinatoError:
    return family(**_arguments(code, fault))


def _named(fault: Fault) -> Fault:
    return msgspec.structs.replace(fault, detail=f"{fault.code}: {fault.detail}")


def _arguments(code: str, fault: Fault) -> dict[str, str]:
    return {
        "code": code,
        "message": fault.detail,
        "subject": fault.subject or "",
        "field": fault.field or "",
        "hint": fault.hint or "",
    }
