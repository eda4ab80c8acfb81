"""What the checks of a definition have in common: how each refuses, and what several of them refuse."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

from ostinato.errors import UserError

COMMAND_LENGTH_MAX = 100_000
#: What the name of a variable may be.
VARIABLE_NAME = re.compile(r"[^=\x00]+")

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


def validate_command(command: str | tuple[str, ...], *, field: str, hint: str = "") -> None:
    """Raise ``INVALID_VALUE`` for a command that says nothing, is too long or cannot be passed on."""
    words = (command,) if isinstance(command, str) else command
    if not words or not words[0].strip():
        raise invalid("a command is needed", field, hint=hint)
    for word in words:
        # An argument may hold any character that the operating system can pass: all but NUL.
        refuse_nul(word, field)
    if sum(map(len, words)) > COMMAND_LENGTH_MAX:
        raise invalid(f"more than {COMMAND_LENGTH_MAX} characters", field)


def pair_checks(pairs: Mapping[str, str], field: str, *, names: re.Pattern[str]) -> Iterator[Check]:
    """Refuse names that do not match, and what no operating system takes."""
    for name, value in pairs.items():
        if names.fullmatch(name) is None:
            yield refusing(invalid(f"{name!a} is not a name", field))
        yield partial(refuse_nul, name, field)
        yield partial(refuse_nul, value, f"{field}.{name}")
