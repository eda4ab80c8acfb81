"""Exceptions by which a task says how its own failure is to be treated; the SDK re-exports them.

They name their module ``ostinato``, because that is where users import them from and how policies
(``no_retry_on: [ostinato.Permanent]``) and tracebacks spell them.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from ostinato.core.failure.categories import TASK_CATEGORIES
from ostinato.core.failure.codes import is_valid_code
from ostinato.core.instants import from_datetime, parse_duration
from ostinato.errors import UserError

#: Qualified names as they stand in `Failure.classes`.
PERMANENT_CLASS = "ostinato.Permanent"
RETRY_LATER_CLASS = "ostinato.RetryLater"


class TaskError(Exception):
    """A failure with a code and category of the task's own.

    Raises ``INVALID_VALUE`` if `code` is not capitals, digits and underscores, or `category` is not one
    of transient, permanent and resource.
    """

    __module__ = "ostinato"

    def __init__(self, message: str = "", *, code: str = "TASK_ERROR", category: str = "transient") -> None:
        super().__init__(message)
        if not is_valid_code(code):
            raise UserError(
                "INVALID_VALUE",
                f"{code!r} is not a failure code",
                field="code",
                hint="write it in capitals, digits and underscores, at most 64, such as CARD_REFUSED",
            )
        if category not in TASK_CATEGORIES:
            raise UserError(
                "INVALID_VALUE",
                f"{category!r} is not a category that a task may give",
                field="category",
                hint=f"use one of {', '.join(TASK_CATEGORIES)}",
            )
        self.code = code
        self.category = category


class Permanent(TaskError):
    """Repeating cannot help: category ``permanent``, not retried unless the policy says so in words."""

    __module__ = "ostinato"

    def __init__(self, message: str = "", code: str = "PERMANENT") -> None:
        super().__init__(message, code=code, category="permanent")


class RetryLater(TaskError):
    """The task asks to be run again, after a delay, at an instant, or (with neither) by the policy's backoff.

    `after` is a duration as in ``parse_duration`` (text, seconds, timedelta); `at` an aware datetime. It
    counts as a failure: it uses up a retry, and the window still applies. Raises ``INVALID_DURATION``,
    ``INVALID_INSTANT``, and ``INVALID_VALUE`` if both are given.
    """

    __module__ = "ostinato"

    def __init__(
        self,
        message: str = "",
        *,
        after: str | int | float | timedelta | None = None,
        at: datetime | None = None,
        code: str = "RETRY_LATER",
    ) -> None:
        super().__init__(message, code=code, category="transient")
        if after is not None and at is not None:
            raise UserError("INVALID_VALUE", "RetryLater takes after or at, not both", field="at")
        self.retry_after_us = None if after is None else parse_duration(after, field="after")
        self.retry_at_us = None if at is None else from_datetime(at, field="at")
