"""Blocks of named fields: one description that reads, writes and gives the JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec

from ostinato.control.document.errors import joined, unknown_field
from ostinato.control.document.reading import FAULTY, Kind, Reading, wrong_type
from ostinato.errors import UserError

Struct = TypeVar("Struct", bound=msgspec.Struct)


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field: its name in documents, the attribute that it fills, what it may hold."""

    name: str
    attribute: str
    kind: Kind
    description: str
    required: bool = False
    examples: tuple[Any, ...] = ()
    #: As people write it, where something holds if the field is left out.
    default: Any = None

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the field's value, with what people should know of it."""
        schema = self.kind.schema()
        schema = {**(schema if self.required else or_null(schema)), "description": self.description}
        if self.default is not None:
            schema["default"] = self.default
        if self.examples:
            schema["examples"] = list(self.examples)
        return schema


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A block of fields that makes a struct of `type`; `thing` names it in messages (``a task``)."""

    type: Any
    thing: str
    fields: tuple[Field, ...]
    #: How an unknown field with its value is written here, empty: not known.
    unknown_hint: Callable[[str, object], str] | None = None
    #: Which block is meant by something else in its place.
    bare_hint: Callable[[object], str] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.fields)

    def read_members(self, value: object, field: str, *, reading: Reading) -> dict[str, Any]:
        """Values by attribute, `FAULTY` where one could not be read; unknown and missing ones are recorded.

        Raises the fault of what is no block.
        """
        if not isinstance(value, Mapping):
            hint = "" if self.bare_hint is None or value is None else self.bare_hint(value)
            raise wrong_type(value, "a block of fields", field=field, hint=hint)
        names = self.names
        for name in value:
            if name not in names:
                hint = self._hint(name, value[name])
                reading.refuse(unknown_field(name, names, field=field, thing=self.thing, hint=hint))
        members: dict[str, Any] = {}
        for entry in self.fields:
            path = joined(field, entry.name)
            # Null is unsaid, as in a retry block; Python has left-out arguments for that.
            if value.get(entry.name) is not None or (reading.native and entry.name in value):
                members[entry.attribute] = reading.read(entry.kind, value[entry.name], field=path)
            elif entry.required:
                reading.refuse(UserError("INVALID_VALUE", "is missing", field=path, hint=_example(entry)))
                members[entry.attribute] = FAULTY
        return members

    def _hint(self, name: object, value: object) -> str:
        if self.unknown_hint is None or not isinstance(name, str):
            return ""
        return self.unknown_hint(name, value)

    def read(self, value: object, field: str, *, reading: Reading) -> Any:
        members = self.read_members(value, field, reading=reading)
        return FAULTY if FAULTY in members.values() else self.type(**members)

    def write(self, value: Any) -> dict[str, Any]:
        return {
            entry.name: entry.kind.write(getattr(value, entry.attribute))
            for entry in self.fields
            if entry.required or getattr(value, entry.attribute) != _default(self.type, entry.attribute)
        }

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {
            "type": "object",
            "additionalProperties": False,
            "properties": {entry.name: entry.schema() for entry in self.fields},
        }
        required = [entry.name for entry in self.fields if entry.required]
        return {**schema, "required": required} if required else schema


@cache
def _default(kind: Any, attribute: str) -> object:
    for entry in msgspec.structs.fields(kind):
        if entry.name == attribute:
            if entry.default_factory is not msgspec.NODEFAULT:
                return entry.default_factory()
            return entry.default
    raise KeyError(attribute)


def or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, or null, which is the same as leaving the field out."""
    if "type" in schema:
        return {**schema, "type": [schema["type"], "null"]}
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return {"anyOf": [schema, {"type": "null"}]}


def _example(entry: Field) -> str:
    example = entry.examples[0] if entry.examples else None
    return f"as {entry.name}: {example}" if isinstance(example, str | int) else ""
