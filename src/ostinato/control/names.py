"""Names, keys and free texts: which characters and lengths are allowed where."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from ostinato.core.names import NAME_LENGTH_MAX, validate_name
from ostinato.errors import UserError

__all__ = [
    "KEY_BYTES_MAX",
    "LABEL_VALUE_LENGTH_MAX",
    "NAME_LENGTH_MAX",
    "TEXT_LENGTH_MAX",
    "did_you_mean",
    "instance_not_found",
    "may_be_id",
    "validate_key",
    "validate_label_value",
    "validate_name",
    "validate_text",
]

LABEL_VALUE_LENGTH_MAX = 200
KEY_BYTES_MAX = 512
TEXT_LENGTH_MAX = 4_000

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_CONTROL_BUT_LINES = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def validate_key(key: object, *, field: str = "key") -> None:
    """An idempotency key: any text without control characters that shows something.

    Raises ``INVALID_NAME``; ``INVALID_VALUE`` for what is no text or only white space.
    """
    if not isinstance(key, str):
        raise UserError("INVALID_VALUE", f"a key is a text, not {type(key).__name__}", field=field)
    if not key:
        raise UserError("INVALID_NAME", "the key is empty", field=field, hint="leave it out for no key")
    if key.isspace() and _CONTROL.search(key) is None:
        raise UserError("INVALID_VALUE", "the key is only white space", field=field)
    _refuse_characters(key, _CONTROL, code="INVALID_NAME", field=field)
    if len(key.encode()) > KEY_BYTES_MAX:
        raise UserError("INVALID_NAME", f"more than {KEY_BYTES_MAX} bytes", field=field)


def validate_label_value(value: str, *, field: str) -> None:
    """Value of a label. Raises ``INVALID_VALUE``."""
    _refuse_characters(value, _CONTROL, code="INVALID_VALUE", field=field)
    if len(value) > LABEL_VALUE_LENGTH_MAX:
        raise UserError("INVALID_VALUE", f"more than {LABEL_VALUE_LENGTH_MAX} characters", field=field)


def validate_text(text: str, *, field: str, length_max: int = TEXT_LENGTH_MAX) -> None:
    """Text for people, of several lines if it likes. Raises ``INVALID_VALUE``."""
    _refuse_characters(text, _CONTROL_BUT_LINES, code="INVALID_VALUE", field=field)
    if len(text) > length_max:
        raise UserError("INVALID_VALUE", f"{len(text)} characters, at most {length_max}", field=field)


def may_be_id(text: str) -> bool:
    """Whether an instance could have this id: no id holds other characters, nor does every database."""
    return text.isascii() and text.isalnum()


def instance_not_found(instance_id: str) -> UserError:
    """The error of an id that no instance has."""
    return UserError(
        "INSTANCE_NOT_FOUND",
        f"no instance has the id {instance_id!a}",
        subject=ascii(instance_id)[1:-1],
        hint="finished instances are deleted after their retention",
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint with the closest known name, or empty."""
    close = get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}?" if close else ""


def _refuse_characters(text: str, pattern: re.Pattern[str], *, code: str, field: str) -> None:
    found = pattern.search(text)
    if found is not None:
        raise UserError(code, f"holds the control character {found[0]!a}", field=field)
    if not text.isascii() and _SURROGATE.search(text) is not None:
        raise UserError(code, "holds a lone surrogate, which is not valid Unicode", field=field)
