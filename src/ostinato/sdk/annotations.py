"""Annotations of a function: resolved as far as they can be, and whether a type can be rebuilt from JSON."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, cast

import msgspec

from ostinato.sdk.context import Context

#: Stands for an annotation that is missing, unresolvable, or of no use for a check.
UNCHECKED: object = object()


def type_hints(function: Callable[..., object]) -> dict[str, object]:
    """Annotations by parameter; one that cannot be resolved here stays the text that was written."""
    target = inspect.unwrap(function)
    try:
        return dict(typing.get_type_hints(target, include_extras=True))
    except (NameError, AttributeError, TypeError, SyntaxError):
        # A name that exists for type checkers alone makes the whole call fail, so each is tried alone.
        written = dict(getattr(target, "__annotations__", {}))
        return {name: _resolved(target, annotation) for name, annotation in written.items()}


def _resolved(target: Callable[..., object], annotation: object) -> object:
    holder = type("_Holder", (), {"__annotations__": {"value": annotation}})
    names = dict(getattr(target, "__globals__", {}))
    try:
        return typing.get_type_hints(holder, globalns=names, include_extras=True)["value"]
    except (NameError, AttributeError, TypeError, SyntaxError):
        return annotation


def is_context(annotation: object) -> bool:
    if isinstance(annotation, str):
        words = [word.strip().rpartition(".")[2] for word in annotation.strip("'\"").split("|")]
        return "Context" in words
    options = typing.get_args(annotation) or (annotation,)
    return any(option is Context for option in options)


def usable(annotation: object) -> object:
    """The annotation if msgspec can rebuild values of it, else `UNCHECKED`."""
    if annotation is UNCHECKED or annotation in (Any, object) or isinstance(annotation, str):
        return UNCHECKED
    if annotation is None:
        return type(None)
    try:
        msgspec.json.Decoder(cast("type[object]", annotation))
    except (TypeError, NameError):
        return UNCHECKED
    return annotation
