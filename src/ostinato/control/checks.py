"""What the checks of a definition have in common: how each refuses, and what several of them refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ostinato.errors import UserError

#: Refuses for one reason, by raising, or does nothing.
Check: TypeAlias = Callable[[], None]


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
