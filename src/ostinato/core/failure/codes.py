"""The one catalogue of failure codes: what each means, its category and its numeric form.

A symbolic code is what people read and match on (``ECONNREFUSED``, ``HTTP_503``). The numeric form is for
systems that sort and count: eight digits, module (2) · function (2) · detail (4), as ``50 01 0503``.
Both are stable: a row may be added, never renumbered (design section 4, Failures).

Every code has a number. Families (``HTTP_n``, ``EXIT_n``, ``SIGNAL_n``) carry n as their detail; a detail
that does not fit in four digits becomes 9999. A task's own code, and any code that this release does not
know, lies between 90 000 000 and 90 999 999 by a hash that is the same in every process and release.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from ostinato.core.ids import stable_hash

Category = Literal["transient", "permanent", "resource", "lost", "cancelled"]


class CodeRow(NamedTuple):
    """One row of the catalogue."""

    module: int
    function: int
    detail: int
    category: Category
    meaning: str


#: What the two leading digits of a numeric code say.
MODULES: dict[int, str] = {
    10: "scheduler: the attempt was ended, lost or never started",
    20: "worker: preparing an attempt, collecting its result",
    30: "python executor",
    40: "processes: shell and container executors",
    50: "HTTP executor",
    60: "network",
    70: "operating system (errno)",
    90: "the task's own codes, and codes of other releases",
}

CODE_LENGTH_MAX = 64
OWN_CODES_START = 90_000_000
OWN_CODES_COUNT = 1_000_000
_DETAIL_MAX = 9_999

_OWN_CODE = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)
_FAMILY = re.compile(r"(HTTP|EXIT|SIGNAL)_([0-9]{1,60})", re.ASCII)
#: Family → (module, function).
_FAMILY_PLACES = {"HTTP": (50, 1), "EXIT": (40, 1), "SIGNAL": (40, 2)}

#: errno name → (number as on Linux, category). Fixed here because numbers differ between systems.
_ERRNO: dict[str, tuple[int, Category]] = {
    "EPERM": (1, "permanent"),
    # A file may arrive later, so a missing one is worth a retry.
    "ENOENT": (2, "transient"),
    "ESRCH": (3, "transient"),
    "EINTR": (4, "transient"),
    "EIO": (5, "transient"),
    "ENXIO": (6, "transient"),
    "E2BIG": (7, "permanent"),
    "ENOEXEC": (8, "permanent"),
    "EBADF": (9, "transient"),
    "ECHILD": (10, "transient"),
    "EAGAIN": (11, "transient"),
    "ENOMEM": (12, "resource"),
    "EACCES": (13, "permanent"),
    "EFAULT": (14, "transient"),
    "EBUSY": (16, "transient"),
    "EEXIST": (17, "transient"),
    "EXDEV": (18, "permanent"),
    "ENODEV": (19, "transient"),
    "ENOTDIR": (20, "permanent"),
    "EISDIR": (21, "permanent"),
    "EINVAL": (22, "permanent"),
    "ENFILE": (23, "resource"),
    "EMFILE": (24, "resource"),
    "ETXTBSY": (26, "transient"),
    "EFBIG": (27, "resource"),
    "ENOSPC": (28, "resource"),
    "ESPIPE": (29, "permanent"),
    "EROFS": (30, "permanent"),
    "EPIPE": (32, "transient"),
    "EDEADLK": (35, "transient"),
    "ENAMETOOLONG": (36, "permanent"),
    "ENOLCK": (37, "resource"),
    "ENOSYS": (38, "permanent"),
    "ENOTEMPTY": (39, "transient"),
    "ELOOP": (40, "permanent"),
    "EPROTO": (71, "transient"),
    "EMSGSIZE": (90, "permanent"),
    "EPROTONOSUPPORT": (93, "permanent"),
    "EOPNOTSUPP": (95, "permanent"),
    "EAFNOSUPPORT": (97, "permanent"),
    "EADDRINUSE": (98, "transient"),
    "EADDRNOTAVAIL": (99, "transient"),
    "ENETDOWN": (100, "transient"),
    "ENETUNREACH": (101, "transient"),
    "ENETRESET": (102, "transient"),
    "ECONNABORTED": (103, "transient"),
    "ECONNRESET": (104, "transient"),
    "ENOBUFS": (105, "resource"),
    "ENOTCONN": (107, "transient"),
    "ETIMEDOUT": (110, "transient"),
    "ECONNREFUSED": (111, "transient"),
    "EHOSTDOWN": (112, "transient"),
    "EHOSTUNREACH": (113, "transient"),
    "ESTALE": (116, "transient"),
    "EDQUOT": (122, "resource"),
}

CATALOGUE: dict[str, CodeRow] = {
    "TIMEOUT": CodeRow(10, 1, 1, "transient", "The attempt ran longer than the task's timeout."),
    "HEARTBEAT_TIMEOUT": CodeRow(
        10, 1, 2, "transient", "The task did not call heartbeat within its heartbeat_timeout."
    ),
    "QUEUE_TIMEOUT": CodeRow(10, 1, 3, "permanent", "The instance could not start within its queue_timeout."),
    "WINDOW_PASSED": CodeRow(10, 1, 4, "permanent", "The next attempt could not start within the window."),
    "CANCELLED": CodeRow(10, 2, 1, "cancelled", "A person or a program cancelled the instance."),
    "REPLACED": CodeRow(10, 2, 2, "cancelled", "A newer fire replaced the instance (overlap: replace)."),
    "WORKER_LOST": CodeRow(10, 3, 1, "lost", "The worker that ran the attempt is gone."),
    "LEASE_EXPIRED": CodeRow(10, 3, 2, "lost", "The worker's lease ended before it was heard from again."),
    "NOT_ACKNOWLEDGED": CodeRow(10, 3, 3, "lost", "The worker never acknowledged the assignment."),
    "SUPERVISOR_GONE": CodeRow(
        10, 3, 4, "lost", "The worker's supervisor died; its guardian ended the attempt."
    ),
    "REFUSED": CodeRow(10, 4, 1, "lost", "The worker refused the attempt before it started. Not counted."),
    "HANDED_BACK": CodeRow(10, 4, 2, "lost", "A draining worker handed the attempt back. Not counted."),
    "COLLATERAL": CodeRow(
        10, 4, 3, "lost", "The attempt was ended together with its neighbour. Not counted."
    ),
    "WORKER_GONE": CodeRow(
        10, 5, 1, "permanent", "The worker that a broadcast shard belongs to did not come back."
    ),
    "BAD_PAYLOAD": CodeRow(20, 1, 1, "permanent", "The payload does not fit the task."),
    "TASK_NOT_FOUND": CodeRow(20, 1, 2, "permanent", "The worker has no such task."),
    "TASK_IMPORT": CodeRow(20, 1, 3, "permanent", "The module of the task could not be imported."),
    "EXECUTOR_ERROR": CodeRow(20, 2, 1, "transient", "The executor could not run the attempt."),
    "SPAWN_FAILED": CodeRow(20, 2, 2, "resource", "No process could be started for the attempt."),
    "BAD_RESULT": CodeRow(20, 3, 1, "permanent", "The result is too large, or cannot be stored as JSON."),
    "UNKNOWN_CODE": CodeRow(
        20, 4, 1, "transient", "The failure was reported with a code that is not one; see its detail."
    ),
    "PYTHON_ERROR": CodeRow(30, 1, 1, "transient", "The task raised an exception without a code of its own."),
    "PERMANENT": CodeRow(30, 2, 1, "permanent", "The task raised Permanent: repeating cannot help."),
    "RETRY_LATER": CodeRow(30, 2, 2, "transient", "The task raised RetryLater: it asks to be run again."),
    "TASK_ERROR": CodeRow(30, 2, 3, "transient", "The task raised TaskError."),
    "OOM": CodeRow(40, 3, 1, "resource", "The attempt ran out of memory, or was killed for using too much."),
    "IMAGE_NOT_FOUND": CodeRow(40, 4, 1, "permanent", "The image is not there, or may not be fetched."),
    "IMAGE_PULL_FAILED": CodeRow(40, 4, 2, "transient", "The image could not be fetched."),
    "CONTAINER_REFUSED": CodeRow(40, 5, 1, "permanent", "The engine refused to make such a container."),
    "CONTAINER_NOT_STARTED": CodeRow(40, 5, 2, "transient", "The engine could not start the container."),
    "CONTAINER_REMOVED": CodeRow(40, 5, 3, "transient", "Somebody else removed the container while it ran."),
    "ENGINE_LOST": CodeRow(
        40, 5, 4, "lost", "The container engine stopped answering while the container ran."
    ),
    "HTTP_PROTOCOL": CodeRow(50, 2, 1, "transient", "The server's answer was not valid HTTP."),
    "REDIRECT_LIMIT": CodeRow(50, 2, 2, "permanent", "The server redirected too often."),
    "INVALID_URL": CodeRow(50, 2, 3, "permanent", "The task's URL is not an http or https URL."),
    "CONNECT_TIMEOUT": CodeRow(50, 3, 1, "transient", "No connection could be made in time."),
    "READ_TIMEOUT": CodeRow(50, 3, 2, "transient", "The server sent nothing for too long."),
    "WRITE_TIMEOUT": CodeRow(50, 3, 3, "transient", "The server took no more of the request."),
    "DNS": CodeRow(60, 1, 1, "transient", "A host name could not be resolved."),
    "CONNECTION_RESET": CodeRow(60, 2, 1, "transient", "The other side closed the connection midway."),
    "TLS": CodeRow(60, 3, 1, "transient", "The TLS connection could not be made, or broke."),
    "TLS_CERTIFICATE": CodeRow(60, 3, 2, "permanent", "The other side's certificate is not trusted."),
    **{
        name: CodeRow(70, 1, number, category, f"The operating system reported {name}.")
        for name, (number, category) in _ERRNO.items()
    },
}


def is_valid_code(text: str) -> bool:
    """Whether `text` may be a code: 1–64 capitals, digits and underscores, a capital first."""
    return _OWN_CODE.fullmatch(text) is not None


def code_family(code: str) -> tuple[str, int] | None:
    """``("HTTP", 503)`` of ``HTTP_503``; None if the code belongs to no family."""
    found = _FAMILY.fullmatch(code)
    return (found[1], int(found[2])) if found else None


def numeric_code(code: str) -> int:
    """Eight-digit numeric form of any text: see the module's docstring. Total, and stable across releases."""
    row = CATALOGUE.get(code)
    if row is not None:
        return _number((row.module, row.function), row.detail)
    family = code_family(code)
    if family is not None:
        return _number(_FAMILY_PLACES[family[0]], min(family[1], _DETAIL_MAX))
    return OWN_CODES_START + stable_hash("failure-code", code) % OWN_CODES_COUNT


def _number(place: tuple[int, int], detail: int) -> int:
    return place[0] * 1_000_000 + place[1] * 10_000 + detail
