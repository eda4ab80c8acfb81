"""Kinds of values that stand by themselves: texts, words, numbers, durations, sizes, instants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from ostinato.control.document.errors import joined, shown_key
from ostinato.control.document.reading import FAULTY, Kind, Reading, shown, wrong_type
from ostinato.core.instants import format_duration, format_instant, parse_duration, parse_instant
from ostinato.core.payload import encode_payload, not_an_object
from ostinato.core.sizes import format_size, parse_size
from ostinato.errors import UserError

NONE = "none"
#: As ``parse_duration`` reads, but for the order of the units, which no regular expression of JSON Schema
#: says in a way that people could read.
DURATION_PATTERN = r"(?:[0-9]{1,15}(?:\.[0-9]{1,6})?(?:us|ms|s|m|h|d))+"
SIZE_PATTERN = r"[0-9]{1,18}(?:\.[0-9]{1,9})?\s*(?:B|KB|MB|GB|KiB|MiB|GiB)"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
#: Largest whole number that a float holds exactly, and so the largest that is written as a whole one.
WHOLE_FLOAT_MAX = 2**53


class Text(msgspec.Struct, frozen=True):
    """Any text; what it may hold is checked with the whole definition."""

    pattern: str = ""

    def read(self, value: object, field: str, *, reading: Reading) -> str:
        if not isinstance(value, str):
            hint = f'put it in quotes: "{value}"' if isinstance(value, int | float) else ""
            raise wrong_type(value, "a text", field=field, hint=hint)
        try:
            value.encode()
        except UnicodeEncodeError:
            message = "holds a lone surrogate, which is not valid Unicode"
            raise UserError("INVALID_VALUE", message, field=field) from None
        return value

    def write(self, value: Any) -> Any:
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", **({"pattern": self.pattern} if self.pattern else {})}


class Word(msgspec.Struct, frozen=True):
    """One of a few words."""

    words: tuple[str, ...]

    def read(self, value: object, field: str, *, reading: Reading) -> str:
        listed = f"one of {', '.join(self.words)}"
        if not isinstance(value, str):
            raise wrong_type(value, "a word", field=field, hint=listed)
        if value not in self.words:
            raise UserError("INVALID_VALUE", f"{shown(value)} is not known", field=field, hint=listed)
        return value

    def write(self, value: Any) -> Any:
        return value

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


class Whole(msgspec.Struct, frozen=True):
    """A whole number; JSON Schema tells its bounds, which are checked with the whole definition."""

    low: int
    high: int

    def read(self, value: object, field: str, *, reading: Reading) -> int:
        if isinstance(value, float):
            raise UserError("INVALID_VALUE", f"{value!r} is not a whole number", field=field)
        if not isinstance(value, int) or isinstance(value, bool):
            raise wrong_type(value, "a whole number", field=field, hint=_unquoted(value))
        if not self.low <= value <= self.high:
            message = f"{shown(value)} is not a whole number from {self.low} to {self.high}"
            raise UserError("INVALID_VALUE", message, field=field)
        return value

    def write(self, value: Any) -> Any:
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


class OptionalNumber(msgspec.Struct, frozen=True):
    """A number, or ``none``."""

    low: float
    high: float

    def read(self, value: object, field: str, *, reading: Reading) -> float | None:
        if value == NONE:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise wrong_type(value, "a number", field=field, hint=_unquoted(value))
        if isinstance(value, float):
            return value
        # As it is read back, so that 1 and 1.0 are the same version; far too many cores are refused later.
        if abs(value) <= WHOLE_FLOAT_MAX:
            return float(value)
        return math.inf if value > 0 else -math.inf

    def write(self, value: Any) -> Any:
        return NONE if value is None else plain_number(value)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "number", "minimum": self.low, "maximum": self.high}, {"const": NONE}]}


class Truth(msgspec.Struct, frozen=True):
    """true or false."""

    def read(self, value: object, field: str, *, reading: Reading) -> bool:
        if not isinstance(value, bool):
            raise wrong_type(value, "true or false", field=field, hint="write true or false without quotes")
        return value

    def write(self, value: Any) -> Any:
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


class Duration(msgspec.Struct, frozen=True):
    """A number with its unit; `optional` ones may be ``none``."""

    optional: bool = False

    def read(self, value: object, field: str, *, reading: Reading) -> int | None:
        if self.optional and value == NONE:
            return None
        return read_duration(value, field, reading=reading)

    def write(self, value: Any) -> Any:
        return NONE if value is None else format_duration(value)

    def schema(self) -> dict[str, Any]:
        pattern = f"(?:{NONE}|{DURATION_PATTERN})" if self.optional else DURATION_PATTERN
        return {"type": "string", "pattern": rf"^\s*{pattern}\s*$"}


def read_duration(value: object, field: str, *, reading: Reading) -> int:
    """Microseconds. A bare number is a fault in a document, and seconds in Python."""
    if isinstance(value, str) or (
        reading.native and isinstance(value, int | float | timedelta) and not isinstance(value, bool)
    ):
        return parse_duration(value, field=field)
    if isinstance(value, int | float) and not isinstance(value, bool):
        message = f"{shown(value)} has no unit"
        hint = f"write {value}s for seconds" if math.isfinite(value) and value < WHOLE_FLOAT_MAX else ""
        raise UserError("INVALID_DURATION", message, field=field, hint=hint)
    hint = "write a number and a unit: 500ms, 30s, 5m, 1h30m, 7d"
    raise wrong_type(value, "a duration", field=field, code="INVALID_DURATION", hint=hint)


class OptionalSize(msgspec.Struct, frozen=True):
    """Bytes as a number or with a unit, or ``none``."""

    def read(self, value: object, field: str, *, reading: Reading) -> int | None:
        return None if value == NONE else parse_size(value, field=field)

    def write(self, value: Any) -> Any:
        return NONE if value is None else format_size(value)

    def schema(self) -> dict[str, Any]:
        text = {"type": "string", "pattern": rf"^\s*(?:{NONE}|{SIZE_PATTERN})\s*$"}
        return {"anyOf": [text, {"type": "integer", "minimum": 0}]}


class Instant(msgspec.Struct, frozen=True):
    """ISO 8601 with an offset."""

    def read(self, value: object, field: str, *, reading: Reading) -> int:
        if not isinstance(value, str):
            hint = "write it as 2026-01-31T18:00:00+01:00"
            raise wrong_type(value, "an instant", field=field, code="INVALID_INSTANT", hint=hint)
        return parse_instant(value, field=field)

    def write(self, value: Any) -> Any:
        return format_instant(value)

    def schema(self) -> dict[str, Any]:
        offset = r"(?:[Zz]|[+-][0-9]{2}:?[0-9]{2}(?::?[0-9]{2})?)"
        return {"type": "string", "pattern": rf"^\s*[0-9].*{offset}\s*$"}


class TextMap(msgspec.Struct, frozen=True):
    """Names with a text each. `whole`: a fault belongs to the block, not to the member."""

    thing: str
    whole: bool = False

    def read(self, value: object, field: str, *, reading: Reading) -> Any:
        if not isinstance(value, Mapping):
            raise wrong_type(value, "a block of fields", field=field, hint="write {name: text}")
        faulty = False
        for name, text in value.items():
            if not isinstance(name, str):
                raise UserError("INVALID_VALUE", f"{shown(name)} is not a name", field=field)
            member = field if self.whole else joined(field, shown_key(name))
            read = reading.read(Text(), text, field=member)
            faulty = faulty or read is FAULTY
        return FAULTY if faulty else dict(value)

    def write(self, value: Any) -> Any:
        return dict(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": {"type": "string"}}


class JsonObject(msgspec.Struct, frozen=True):
    """A JSON object of any members; kept encoded."""

    def read(self, value: object, field: str, *, reading: Reading) -> msgspec.Raw:
        if not isinstance(value, Mapping):
            raise not_an_object(value, field=field)
        return msgspec.Raw(encode_payload(dict(value), field=field))

    def write(self, value: Any) -> Any:
        return msgspec.json.decode(bytes(value))

    def schema(self) -> dict[str, Any]:
        return {"type": "object"}


class ListOf(msgspec.Struct, frozen=True):
    """A list of one kind; a tuple in the definition."""

    entry: Kind
    count_max: int
    example: str = ""

    def read(self, value: object, field: str, *, reading: Reading) -> Any:
        if not isinstance(value, list | tuple):
            raise wrong_type(
                value, "a list", field=field, hint=f"write {self.example}" if self.example else ""
            )
        if len(value) > self.count_max:
            message = f"holds {len(value)} entries, at most {self.count_max}"
            raise UserError("INVALID_VALUE", message, field=field)
        entries = [
            reading.read(self.entry, item, field=f"{field}[{index}]") for index, item in enumerate(value)
        ]
        return FAULTY if any(entry is FAULTY for entry in entries) else tuple(entries)

    def write(self, value: Any) -> Any:
        return [self.entry.write(item) for item in value]

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.entry.schema(), "maxItems": self.count_max}


def plain_number(value: float) -> int | float:
    """A float as people write it: 2 for 2.0."""
    return int(value) if value.is_integer() and abs(value) <= WHOLE_FLOAT_MAX else value


def _unquoted(value: object) -> str:
    is_number = isinstance(value, str) and value.strip().lstrip("+-").replace(".", "", 1).isdecimal()
    return "write it without quotes" if is_number else ""
