"""Kinds of values that only scenarios have: addresses, probes, rates, offsets, and blocks by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ostinato.control.document.block import Block
from ostinato.control.document.errors import joined, shown_key
from ostinato.control.document.kinds import NAME_PATTERN, Duration, Text, read_duration
from ostinato.control.document.reading import FAULTY, Reading, shown, wrong_type
from ostinato.core.instants import format_duration, validate_duration
from ostinato.core.names import validate_name
from ostinato.core.sizes import format_size, parse_size
from ostinato.errors import UserError
from ostinato.settings_readers import Address, read_address

#: Entries of one section.
_ENTRIES_COUNT_MAX = 100


class Named(msgspec.Struct, frozen=True):
    """A section: names, each with a block."""

    block: Block

    def read(self, value: object, field: str, *, reading: Reading) -> Any:
        if not isinstance(value, Mapping):
            raise wrong_type(value, "a block of names", field=field, hint="write {name: {…}}")
        if len(value) > _ENTRIES_COUNT_MAX:
            message = f"holds {len(value)} entries, at most {_ENTRIES_COUNT_MAX}"
            raise UserError("INVALID_VALUE", message, field=field)
        found: dict[str, Any] = {}
        for name, said in value.items():
            path = joined(field, shown_key(name))
            found[str(name)] = reading.read(_Entry(self.block, str(name)), said, field=path)
        return FAULTY if FAULTY in found.values() else found

    def write(self, value: Any) -> Any:
        return {name: self.block.write(entry) for name, entry in value.items()}

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "propertyNames": {"pattern": NAME_PATTERN},
            "maxProperties": _ENTRIES_COUNT_MAX,
            "additionalProperties": self.block.schema(),
        }


class _Entry(msgspec.Struct, frozen=True):
    """One block of a section, which learns its name."""

    block: Block
    name: str

    def read(self, value: object, field: str, *, reading: Reading) -> Any:
        validate_name(self.name, field=field)
        entry = self.block.read(value, field, reading=reading)
        return entry if entry is FAULTY else msgspec.structs.replace(entry, name=self.name)

    def write(self, value: Any) -> Any:
        return self.block.write(value)

    def schema(self) -> dict[str, Any]:
        return self.block.schema()


class AddressKind(msgspec.Struct, frozen=True):
    """``HOST:PORT``."""

    reader: Callable[[object], Address]

    def read(self, value: object, field: str, *, reading: Reading) -> Address:
        text = Text().read(value, field, reading=reading)
        try:
            address = self.reader(text)
        except UserError as fault:
            raise UserError("INVALID_VALUE", fault.message, field=field, hint=fault.hint) from None
        if address.port == 0:
            raise UserError("INVALID_VALUE", f"{address} has no port", field=field)
        return address

    def write(self, value: Any) -> Any:
        return str(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^.+:[0-9]{1,5}$"}


class ProbeKind:
    """An HTTP address, or ``HOST:PORT``."""

    def read(self, value: object, field: str, *, reading: Reading) -> str:
        text: str = Text().read(value, field, reading=reading)
        if not text.startswith(("http://", "https://")):
            if "/" in text and "://" not in text:
                hint = f"write http://{shown_key(text)}, or HOST:PORT alone for a connection"
                message = f"{shown(text)} has a path and no http://"
                raise UserError("INVALID_VALUE", message, field=field, hint=hint)
            AddressKind(read_address).read(text, field, reading=reading)
        elif not _names_a_host(text):
            hint = "write it as http://127.0.0.1:8640/readyz"
            raise UserError("INVALID_VALUE", f"{shown(text)} is no address", field=field, hint=hint)
        return text

    def write(self, value: Any) -> Any:
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^(?:https?://.+|.+:[0-9]{1,5})$"}


def _names_a_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False  # a port that is none, or half a bracket


class ProbeMap:
    """Names with a probe each."""

    def read(self, value: object, field: str, *, reading: Reading) -> Any:
        if not isinstance(value, Mapping):
            hint = "write {node-a: http://127.0.0.1:8640/readyz}"
            raise wrong_type(value, "a block of names", field=field, hint=hint)
        found: dict[str, Any] = {}
        for name, text in value.items():
            path = joined(field, shown_key(name))
            try:
                validate_name(str(name), field=path)
            except UserError as fault:
                reading.refuse(fault)
            found[str(name)] = reading.read(ProbeKind(), text, field=path)
        return FAULTY if FAULTY in found.values() else found

    def write(self, value: Any) -> Any:
        return dict(value)

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "propertyNames": {"pattern": NAME_PATTERN},
            "additionalProperties": ProbeKind().schema(),
        }


class Rate(msgspec.Struct, frozen=True):
    """A number above 0."""

    high: float

    def read(self, value: object, field: str, *, reading: Reading) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise wrong_type(value, "a number", field=field)
        if not (math.isfinite(value) and 0 < value <= self.high):
            message = f"{shown(value)} is out of range"
            raise UserError("INVALID_VALUE", message, field=field, hint=f"above 0, at most {self.high:g}")
        return float(value)

    def write(self, value: Any) -> Any:
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "exclusiveMinimum": 0, "maximum": self.high}


class Size:
    """Bytes as a number or with a unit."""

    def read(self, value: object, field: str, *, reading: Reading) -> int:
        size_bytes = parse_size(value, field=field)
        if size_bytes < 0:
            raise UserError("INVALID_VALUE", f"{shown(value)} is less than nothing", field=field)
        return size_bytes

    def write(self, value: Any) -> Any:
        return format_size(value)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]}


class BoundedDuration(msgspec.Struct, frozen=True):
    """A duration within bounds."""

    low_us: int
    high_us: int

    def read(self, value: object, field: str, *, reading: Reading) -> int:
        duration_us = read_duration(value, field, reading=reading)
        validate_duration(field, duration_us, low_us=self.low_us, high_us=self.high_us)
        return duration_us

    def write(self, value: Any) -> Any:
        return format_duration(value)

    def schema(self) -> dict[str, Any]:
        return Duration().schema()
