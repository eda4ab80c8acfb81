"""Reading under way: collects every fault instead of stopping at the first, at most one a field."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, Protocol

from ostinato.core.url_text import shown_url
from ostinato.errors import UserError, restated


class Faulty(Enum):
    """Stands where a value could not be read; the fault is recorded."""

    FAULTY = "faulty"


FAULTY: Final = Faulty.FAULTY


class Kind(Protocol):
    """What a field may hold: read from a document, written to one, described by JSON Schema."""

    def read(self, value: object, field: str, *, reading: Reading) -> Any:
        """Value for the definition, or `FAULTY` after recording faults; raises one of the value itself."""
        ...

    def write(self, value: Any) -> Any:
        """What `read` makes the same value of."""
        ...

    def schema(self) -> dict[str, Any]:
        """JSON Schema of what `read` accepts by its form."""
        ...


class Reading:
    """The faults of one document. `native`: values of Python (timedelta, numbers of seconds) are allowed."""

    def __init__(self, *, native: bool = False) -> None:
        self.native = native
        self.faults: list[UserError] = []
        self._fields: set[str] = set()

    def refuse(self, fault: UserError) -> None:
        """Record `fault` unless its field has one already."""
        # Names of the input are part of paths; a lone surrogate in an answer could not be sent.
        field = fault.field if fault.field.isprintable() else ascii(fault.field)[1:-1]
        if field in self._fields:
            return
        self._fields.add(field)
        self.faults.append(restated(fault, field=field))

    def read(self, kind: Kind, value: object, *, field: str) -> Any:
        """Value of `kind`, or `FAULTY`."""
        try:
            return kind.read(value, field, reading=self)
        except UserError as fault:
            self.refuse(fault)
            return FAULTY


def wrong_type(
    value: object, wanted: str, *, field: str, code: str = "INVALID_VALUE", hint: str = ""
) -> UserError:
    """The fault of a value of another type: ``'5' is a text, not a number``."""
    return UserError(code, f"{type_words(value)}, not {wanted}", field=field, hint=hint or _type_hint(value))


def type_words(value: object) -> str:
    """What a value is, as a sentence whose subject is the value or the field."""
    if value is None:
        return "is empty (null)"
    if isinstance(value, bool):
        return f"is {str(value).lower()}"
    if isinstance(value, int | float):
        return f"{shown(value)} is a number"
    if isinstance(value, str):
        return f"{shown(value)} is a text"
    if isinstance(value, list | tuple):
        return "is a list"
    if isinstance(value, Mapping):
        return "is a block of fields"
    return f"is of the type {type(value).__qualname__}"


def shown(value: object) -> str:
    """A value in a message, at most 60 characters of it, and none of a password."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**40:
        return "the integer"  # repr() of thousands of digits raises
    if isinstance(value, str) and ("://" in value or (":" in value and "@" in value)):
        value = shown_url(value)  # in whatever field it was written
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _type_hint(value: object) -> str:
    return "leave it out, or give it a value" if value is None else ""
