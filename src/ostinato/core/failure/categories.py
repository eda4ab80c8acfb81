"""The five categories of a failure, and which one a code belongs to when nothing else is said."""

from __future__ import annotations

from typing import get_args

from ostinato.core.failure.codes import CATALOGUE, Category, code_family

#: In the order in which people should read them.
CATEGORIES: tuple[Category, ...] = get_args(Category)

#: Those that a task may give its own failure; the other two belong to the scheduler.
TASK_CATEGORIES: tuple[Category, ...] = ("transient", "permanent", "resource")

CATEGORY_MEANINGS: dict[Category, str] = {
    "transient": "may pass by itself; worth another try",
    "permanent": "repeating cannot help",
    "resource": "memory, disk, processes or files ran out",
    "lost": "the attempt's end was not the task's doing: its worker is gone, or gave it back",
    "cancelled": "somebody ended it on purpose; never retried",
}

#: Client errors that a later request may not meet: time-out, too early, too many requests.
_HTTP_TRANSIENT_4XX = frozenset({408, 425, 429})
#: Server errors that say what the server cannot do, rather than that it is ill.
_HTTP_PERMANENT_5XX = frozenset({501, 505})
#: What a shell says of a command that cannot be executed or found.
_EXIT_PERMANENT = frozenset({126, 127})
#: 128 + SIGKILL: nearly always the kernel's out-of-memory killer.
_EXIT_RESOURCE = 137
_SIGNAL_RESOURCE = 9


def category_of(code: str) -> Category:
    """Category of any code. A task's own code is transient unless the failure itself says otherwise."""
    row = CATALOGUE.get(code)
    if row is not None:
        return row.category
    family = code_family(code)
    if family is None:
        return "transient"
    name, number = family
    if name == "HTTP":
        return _http_category(number)
    if name == "EXIT":
        if number in _EXIT_PERMANENT:
            return "permanent"
        return "resource" if number == _EXIT_RESOURCE else "transient"
    return "resource" if number == _SIGNAL_RESOURCE else "transient"


def is_category(text: str) -> bool:
    """Whether `text` is one of the five words."""
    return text in CATEGORY_MEANINGS


def _http_category(status: int) -> Category:
    if status >= 500:
        return "permanent" if status in _HTTP_PERMANENT_5XX else "transient"
    return "transient" if status in _HTTP_TRANSIENT_4XX else "permanent"
