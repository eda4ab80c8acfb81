"""A Python exception as a failure: code, category, cause chain and traceback, whatever the exception does.

The chain is read outermost first: the exception, the members of a group, then ``__cause__``, or
``__context__`` unless ``raise … from None`` suppressed it. Cycles and length are bounded.

The code comes from the outermost exception that says something of its own: one of our signals
(``Permanent``, ``RetryLater``), an attribute ``ostinato_code``, an errno, a class with a known meaning. It is
looked for through group members and explicit causes (``raise … from …``), where wrapping is on purpose, but
not through implicit contexts, which only happened to be there. Among members of one group ``permanent`` goes
first. Nothing found: ``PYTHON_ERROR``. A cancellation is not recognised here: whether somebody asked for it
is known only to the worker.
"""

from __future__ import annotations

import errno
import traceback
from types import TracebackType
from typing import NamedTuple

from ostinato.core.failure.categories import TASK_CATEGORIES, category_of
from ostinato.core.failure.codes import CATALOGUE, is_valid_code
from ostinato.core.failure.failure import (
    CAUSE_MESSAGE_BYTES_MAX,
    CHAIN_LENGTH_MAX,
    Cause,
    Failure,
    safe_failure,
)
from ostinato.core.failure.foreign import (
    group_members,
    is_a,
    plain_int,
    plain_str,
    read_attribute,
    real_ancestors,
    real_field,
    real_name,
    real_qualified_name,
    text_of,
)
from ostinato.core.failure.http_clients import HttpAnswer, connection_code, hidden_reason, http_answer
from ostinato.core.failure.signals import Permanent, RetryLater, TaskError
from ostinato.core.failure.text import cut_text

#: Classes with a meaning of their own, looked for in the ancestors from the most special on. Entries before
#: errno: these reuse the errno field for numbers of another kind (resolver, TLS library).
#: Where the files of this package begin.
_OWN_FILES = __file__.removesuffix("core/failure/classify.py")
_CODE_BEFORE_ERRNO = {
    "socket.gaierror": "DNS",
    "socket.herror": "DNS",
    "ssl.SSLCertVerificationError": "TLS_CERTIFICATE",
    "ssl.SSLError": "TLS",
    "http.client.RemoteDisconnected": "CONNECTION_RESET",
}
#: Entries after errno: builtins that are often raised by hand, without a number.
_CODE_AFTER_ERRNO = {
    "MemoryError": "OOM",
    "ConnectionRefusedError": "ECONNREFUSED",
    "ConnectionResetError": "ECONNRESET",
    "ConnectionAbortedError": "ECONNABORTED",
    "BrokenPipeError": "EPIPE",
    "TimeoutError": "ETIMEDOUT",
    "PermissionError": "EACCES",
    "FileNotFoundError": "ENOENT",
    "FileExistsError": "EEXIST",
    "IsADirectoryError": "EISDIR",
    "NotADirectoryError": "ENOTDIR",
    "BlockingIOError": "EAGAIN",
    "ChildProcessError": "ECHILD",
    "ProcessLookupError": "ESRCH",
    "InterruptedError": "EINTR",
}


class _Link(NamedTuple):
    """One exception of the chain. `depth` counts the causes above it; None if it hangs on a mere context."""

    error: BaseException
    depth: int | None


class _Meaning(NamedTuple):
    code: str
    category: str
    error: BaseException
    note: str = ""
    answer: HttpAnswer | None = None


def failure_from_exception(error: BaseException) -> Failure:
    """Failure of a task that raised `error`. Total: never raises, for any exception (C067, C069)."""
    links = _chain(error)
    meaning = _meaning_of_chain(links)
    signal = meaning.error if is_a(meaning.error, RetryLater) else None
    answer = meaning.answer
    own_words = is_a(error, TaskError) and bool(real_field(error, "args"))
    text = text_of(error)
    name = real_name(type(error))
    return safe_failure(
        meaning.code,
        text if own_words and text else f"{name}: {text}" if text else name,
        category=meaning.category,
        classes=class_names(type(error)),
        chain=[_cause(link.error) for link in links],
        traceback=_traceback_of(error),
        retry_after_us=_whole_number(signal, "retry_after_us") if answer is None else answer.retry_after_us,
        retry_at_us=_whole_number(signal, "retry_at_us") if answer is None else answer.retry_at_us,
        detail=meaning.note,
    )


def class_names(kind: type[BaseException]) -> tuple[str, ...]:
    """Qualified names of a class and its ancestors, without object and BaseException."""
    return tuple(
        qualified_name(ancestor)
        for ancestor in real_ancestors(kind)
        if ancestor is not object and ancestor is not BaseException
    )


def qualified_name(kind: type) -> str:
    """``module.Class`` as patterns spell it; builtins without their module."""
    return real_qualified_name(kind)


def _chain(error: BaseException) -> list[_Link]:
    links: list[_Link] = []
    seen: set[int] = set()
    waiting = [_Link(error, 0)]
    while waiting and len(links) < CHAIN_LENGTH_MAX:
        link = waiting.pop()
        if id(link.error) in seen:
            continue
        seen.add(id(link.error))
        links.append(link)
        waiting.extend(reversed(_below(link)))
    return links


def _below(link: _Link) -> list[_Link]:
    error, depth = link
    below: list[_Link] = []
    # More members than the chain holds could not be shown; a slice keeps a huge group cheap.
    below += [_Link(member, depth) for member in group_members(error)[:CHAIN_LENGTH_MAX]]
    cause, context = real_field(error, "__cause__"), real_field(error, "__context__")
    if is_a(cause, BaseException):
        below.append(_Link(cause, None if depth is None else depth + 1))
    elif is_a(context, BaseException) and not real_field(error, "__suppress_context__"):
        below.append(_Link(context, None))
    return below


def _meaning_of_chain(links: list[_Link]) -> _Meaning:
    best: _Meaning | None = None
    best_rank = (0, False)
    for link in links:
        meaning = None if link.depth is None else _own_meaning(link.error)
        if link.depth is None or meaning is None:
            continue
        rank = (link.depth, meaning.category != "permanent")
        if best is None or rank < best_rank:
            best, best_rank = meaning, rank
    return best or _connection_meaning(links) or _python_error(links[0].error)


def _connection_meaning(links: list[_Link]) -> _Meaning | None:
    """A client library's word for a broken connection, where nothing in the chain says more."""
    for link in links:
        code = None if link.depth is None else connection_code(class_names(type(link.error)))
        if code is not None:
            return _Meaning(code, category_of(code), link.error)
    return None


def _python_error(error: BaseException, note: str = "") -> _Meaning:
    return _Meaning("PYTHON_ERROR", category_of("PYTHON_ERROR"), error, note)


def _own_meaning(error: BaseException) -> _Meaning | None:
    if is_a(error, TaskError):
        return _signal_meaning(error)
    note = ""
    said = read_attribute(error, "ostinato_code")
    own_code = plain_str(said)
    if own_code is not None and is_valid_code(own_code):
        return _Meaning(own_code, _own_category(error, "ostinato_category", code=own_code), error)
    if said is not None:
        note = "the exception's ostinato_code is not a code"
    if is_a(error, SystemExit):
        return _exit_meaning(error)
    answer = http_answer(error, class_names(type(error)))
    if answer is not None:
        return _Meaning(answer.code, category_of(answer.code), error, note, answer)
    code = _known_code(hidden_reason(error, class_names(type(error))) or error)
    if code is not None:
        return _Meaning(code, category_of(code), error, note)
    return _python_error(error, note) if note else None


def _signal_meaning(error: TaskError) -> _Meaning:
    # A subclass may skip our __init__ or overwrite its fields, so what it holds is checked, not trusted.
    fallback = "TASK_ERROR"
    if is_a(error, Permanent):
        fallback = "PERMANENT"
    elif is_a(error, RetryLater):
        fallback = "RETRY_LATER"
    code = plain_str(read_attribute(error, "code"))
    valid_code = code if code is not None and is_valid_code(code) else fallback
    return _Meaning(valid_code, _own_category(error, "category", code=fallback), error)


def _own_category(error: BaseException, name: str, *, code: str) -> str:
    """Category that the exception gives itself; else that of `code`, if a task may have it at all."""
    said = plain_str(read_attribute(error, name))
    for category in (said, category_of(code)):
        if category is not None and category in TASK_CATEGORIES:
            return category
    return "transient"


def _exit_meaning(error: SystemExit) -> _Meaning:
    status = read_attribute(error, "code")
    whole = int(status) if type(status) is bool else plain_int(status)
    number = whole & 0xFF if whole is not None else 0 if status is None else 1
    code = f"EXIT_{number}"
    return _Meaning(code, category_of(code), error)


def _known_code(error: BaseException) -> str | None:
    names = class_names(type(error))
    for name in names:
        if name in _CODE_BEFORE_ERRNO:
            return _CODE_BEFORE_ERRNO[name]
    number = plain_int(read_attribute(error, "errno")) if is_a(error, OSError) else None
    if number is not None:
        symbol = errno.errorcode.get(number, "")
        if symbol in CATALOGUE:
            return symbol
    return next((_CODE_AFTER_ERRNO[name] for name in names if name in _CODE_AFTER_ERRNO), None)


def _cause(error: BaseException) -> Cause:
    return Cause(
        class_name=qualified_name(type(error)),
        message=cut_text(text_of(error), CAUSE_MESSAGE_BYTES_MAX),
        classes=class_names(type(error)),
    )


def _whole_number(signal: RetryLater | None, name: str) -> int | None:
    return None if signal is None else plain_int(read_attribute(signal, name))


def _leave_out_own(told: traceback.TracebackException) -> None:
    """Frames of ours are nothing that the task's author could correct; kept where there are no others."""
    left = [told]
    for each in left:
        frames = [frame for frame in each.stack if not frame.filename.startswith(_OWN_FILES)]
        if frames:
            each.stack = traceback.StackSummary.from_list(frames)
        others = (each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ()))
        left += [other for other in others if other is not None]


def _traceback_of(error: BaseException) -> str:
    try:
        told = traceback.TracebackException.from_exception(error, compact=True)
        _leave_out_own(told)
        return "".join(told.format())
    except BaseException as broken:  # noqa: BLE001 - formatting calls into the user's class; the text says so
        reason = f"<formatting the rest raised {real_name(type(broken))}>"
    frames = real_field(error, "__traceback__")
    lines = traceback.format_tb(frames) if isinstance(frames, TracebackType) else []
    return "".join(
        ["Traceback (most recent call last):\n", *lines, real_qualified_name(type(error)), "\n", reason]
    )
