"""What the checks of a definition have in common: how each refuses, and what several of them refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ostinato.core.instants import format_duration
from ostinato.errors import UserError

#: Refuses for one reason, by raising, or does nothing.
Check: TypeAlias = Callable[[], None]


def validate_duration(field: str, value_us: int, *, low_us: int, high_us: int) -> None:
    """Raise ``INVALID_DURATION`` unless `value_us` is within `low_us` to `high_us`, both allowed."""
    if not low_us <= value_us <= high_us:
        raise UserError(
            "INVALID_DURATION",
            f"{format_duration(value_us)} is out of range",
            field=field,
            hint=f"from {format_duration(low_us)} to {format_duration(high_us)}",
        )


def refuse_nul(text: str, field: str) -> None:
    """Raise ``INVALID_VALUE`` for what no operating system takes as an argument: NUL and lone surrogates."""
    if "\0" in text:
        raise invalid("holds a NUL character", field)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid("holds a lone surrogate, which is not valid Unicode", field) from None


def refusing(error: UserError) -> Check:
    """The check of what is known to be wrong already."""

    def check() -> None:
        raise error

    return check


def invalid(message: str, field: str, *, hint: str = "") -> UserError:
    """The refusal of a value; `message` goes on after the name of the field."""
    return UserError("INVALID_VALUE", message, field=field, hint=hint)
