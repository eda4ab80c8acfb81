"""Values that stand as they were given, so that a command starts without what converts all others.

Typer converts every value with pydantic, also one that was not given. To import that and to build a schema
for each option takes as long as all the rest of a command's start, and nearly all of our values are texts,
flags and plain numbers.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import typer

#: Longer numbers are for Typer to judge.
_DIGITS_MAX = 15


def spare_conversions(command: Any, context: typer.Context) -> None:
    """Let parameters of a built command take plain values as they are; Typer converts the rest, and refuses.

    Nothing changes with a version of Typer that converts in another way.
    """
    # With --help, which is no parameter of the command itself.
    for parameter in command.get_params(context):
        descriptor = getattr(parameter, "type_descriptor", None)
        if hasattr(parameter, "_runtime_param") and descriptor is not None:
            parameter._runtime_param = _PlainFirst(descriptor)


class _PlainFirst:
    """What Typer asks for the value of one parameter."""

    def __init__(self, descriptor: Any) -> None:
        info = descriptor.parameter_info
        # What has a parser or bounds of its own is plain only where it was not given.
        self._type = None if info.parser is not None or descriptor.is_ranged else descriptor.annotation

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        plain = _plain(value, self._type)
        if plain is not None:
            return plain
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _plain(value: Any, wanted: Any) -> Any:
    """What a parameter of the type `wanted` gives to its command; None where that takes a conversion."""
    if wanted is str and _is_text(value):
        return value
    if wanted is int:
        return _number(value)
    if wanted == list[str] and isinstance(value, list | tuple) and all(map(_is_text, value)):
        return list(value)
    if isinstance(wanted, type) and issubclass(wanted, Enum) and isinstance(value, wanted):
        return value
    return None


def _is_text(value: Any) -> bool:
    """Bytes of the command line that are no UTF-8 are half of a character each, which Typer refuses."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _number(value: Any) -> int | None:
    if type(value) is int:
        return value
    is_plain = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX
    return int(value) if is_plain and (value == "0" or value[0] != "0") else None
