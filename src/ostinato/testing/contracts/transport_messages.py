"""One example of every message of both directions, and strategies that fill every field of them.

The strategies are made from the fields' types, so a field that is added to a message is tested at once.
"""

from __future__ import annotations

import types
import typing
from typing import get_args

import msgspec
from hypothesis import strategies as st

from ostinato.core.definition import TaskRef
from ostinato.core.model import Outcome, OutputChunk
from ostinato.wire.messages import (
    Assignment,
    Assignments,
    NodeMessage,
    Outcomes,
    TaskSpec,
    WorkerMessage,
)

WORKER_KINDS: tuple[type[WorkerMessage], ...] = get_args(WorkerMessage)
NODE_KINDS: tuple[type[NodeMessage], ...] = get_args(NodeMessage)

#: Every character but lone surrogates, which no message can carry.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
INT64 = st.integers(-(2**63), 2**63 - 1)
POSITIVE = st.integers(1, 2**63 - 1)

#: Fields that must say something.
_REQUIRED_TEXT = {"instance_id", "attempt_id", "worker_id", "node_id", "code", "namespace", "name", "task"}
_REQUIRED_NUMBERS = {"attempt", "version", "generation", "shard_total", "protocol"}
#: Fields that a worker keeps to itself.
_UNSENT = {(Outcome, "partition")}
_CHOICES: dict[tuple[type, str], tuple[str, ...]] = {
    (OutputChunk, "stream"): ("stdout", "stderr", "log"),
    (TaskSpec, "exclusive"): ("strict", "relaxed"),
    (TaskSpec, "isolation"): ("shared", "process"),
}


def messages(kind: type[msgspec.Struct]) -> st.SearchStrategy[msgspec.Struct]:
    """Any message of a kind."""
    return _structs(kind)


def assignments(count: int, *, payload: bytes = b"{}") -> Assignments:
    """`count` assignments, numbered in their ids."""
    return Assignments(
        1,
        [
            Assignment(
                instance_id=f"instance-{number}",
                ref=TaskRef("default", "report"),
                version=1,
                generation=1,
                attempt=1,
                attempt_id=f"attempt-{number}",
                retry_count=0,
                payload=payload,
                due_us=1_700_000_000_000_000 + number,
            )
            for number in range(count)
        ],
    )


def outcomes(count: int, *, result: bytes = b"null") -> Outcomes:
    """`count` successful outcomes, numbered in their ids."""
    return Outcomes(
        [
            Outcome(
                instance_id=f"instance-{number}",
                attempt=1,
                attempt_id=f"attempt-{number}",
                started_us=1_700_000_000_000_000,
                finished_us=1_700_000_000_500_000,
                result=result,
            )
            for number in range(count)
        ],
        {"process": count},
    )


def _structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[msgspec.Struct]:
    hints = typing.get_type_hints(kind)
    fields = {name: _field(kind, name, hint=hints[name]) for name in kind.__struct_fields__}
    return st.builds(kind, **fields)


def _field(owner: type, name: str, *, hint: object) -> st.SearchStrategy[object]:
    if (owner, name) in _UNSENT:
        return st.none()
    if (owner, name) in _CHOICES:
        return st.sampled_from(_CHOICES[owner, name])
    if hint is str and name in _REQUIRED_TEXT:
        return NAMES
    if hint is int and name in _REQUIRED_NUMBERS:
        return POSITIVE
    return _values(hint)


_LEAVES: dict[object, st.SearchStrategy[object]] = {
    str: TEXT,
    bytes: st.binary(max_size=12),
    int: INT64,
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    type(None): st.none(),
}


def _values(hint: object) -> st.SearchStrategy[object]:
    """Any value of a type as it stands in a message."""
    if hint in _LEAVES:
        return _LEAVES[hint]
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _structs(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(_values(argument) for argument in arguments))
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(_values(arguments[0]), max_size=3)
    if origin is tuple:
        return st.lists(_values(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(_values(arguments[0]), _values(arguments[1]), max_size=3)
    raise TypeError(f"no strategy for {hint!r}: add one")
