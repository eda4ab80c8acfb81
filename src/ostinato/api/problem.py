"""Problem details (RFC 9457): every refusal of the API as one struct, with our codes."""

from __future__ import annotations

import logging
from typing import Annotated

import msgspec

from ostinato.control.document.errors import InvalidDocument
from ostinato.core.failure.text import cut_text
from ostinato.errors import CODES, InternalError, OstinatoError

PROBLEM_TYPE = "application/problem+json"
#: Seconds after which a busy or unavailable node is worth another try.
RETRY_AFTER_SECONDS = 1
#: A message may quote what was sent; the answer need not be as long.
_TEXT_BYTES_MAX = 4_000
#: Faults of one document that an answer lists.
_ERRORS_COUNT_MAX = 200

_log = logging.getLogger("ostinato.api")
_encode = msgspec.json.Encoder().encode


class Fault(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One of several faults of a document."""

    code: Annotated[str, msgspec.Meta(description="A code of docs/errors.md.")]
    detail: Annotated[str, msgspec.Meta(description="What is wrong.")]
    field: Annotated[str, msgspec.Meta(description="Path of the field, as `tasks[0].retry.interval`.")] = ""
    hint: Annotated[str, msgspec.Meta(description="What to do.")] = ""
    place: Annotated[str, msgspec.Meta(description="Where in YAML, as `body:12:5`.")] = ""


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why a request was not carried out (RFC 9457)."""

    type: Annotated[str, msgspec.Meta(description="`urn:ostinato:error:` and the code.")]
    title: Annotated[str, msgspec.Meta(description="Meaning of the code; the same each time.")]
    status: Annotated[int, msgspec.Meta(description="The status of the answer.", ge=400, le=599)]
    detail: Annotated[str, msgspec.Meta(description="What happened to which thing, this time.")]
    code: Annotated[str, msgspec.Meta(description="Stable; see docs/errors.md.")]
    field: Annotated[str, msgspec.Meta(description="Path of the wrong field, parameter or header.")] = ""
    hint: Annotated[str, msgspec.Meta(description="What to do.")] = ""
    subject: Annotated[str, msgspec.Meta(description="The thing that it is about.")] = ""
    place: Annotated[str, msgspec.Meta(description="Where in YAML: `body`, line, column.")] = ""
    errors: Annotated[list[Fault], msgspec.Meta(description="Every fault, where there are several.")] = []


def problem_of(error: BaseException) -> Problem:
    """The problem that `error` is; anything that is not ours is ``INTERNAL`` and tells nothing of itself."""
    if not isinstance(error, OstinatoError):
        error = InternalError(
            "INTERNAL", "the request could not be answered", hint="see the log of the node, and report it"
        )
    errors: list[Fault] = []
    if isinstance(error, InvalidDocument):
        errors = [_fault(each) for each in error.errors[:_ERRORS_COUNT_MAX]]
    return Problem(
        type=f"urn:ostinato:error:{error.code}",
        title=CODES[error.code].meaning,
        status=error.http_status,
        detail=_safe(error.message),
        code=error.code,
        field=_safe(error.field),
        hint=_safe(error.hint),
        subject=_safe(error.subject),
        place=error.place,
        errors=errors,
    )


def log_bug(error: BaseException, *, method: str, path: str) -> None:
    """Say in the log, with its traceback, what is answered as ``INTERNAL``; other errors are the caller's."""
    if isinstance(error, OstinatoError) and not isinstance(error, InternalError):
        return
    _log.error("api_failed", exc_info=error, extra={"method": method, "path": cut_text(path, 200)})


def encode_problem(problem: Problem) -> bytes:
    """JSON of a problem."""
    return _encode(problem)


def headers_of(problem: Problem) -> dict[str, str]:
    """Headers that a problem's status asks for."""
    return {"retry-after": str(RETRY_AFTER_SECONDS)} if problem.status in (429, 503) else {}


def _fault(error: OstinatoError) -> Fault:
    return Fault(
        code=error.code,
        detail=_safe(error.message),
        field=_safe(error.field),
        hint=_safe(error.hint),
        place=error.place,
    )


def _safe(text: str) -> str:
    """Text that JSON can carry: what somebody sent may hold lone surrogates."""
    return cut_text(text, _TEXT_BYTES_MAX) if text else ""
