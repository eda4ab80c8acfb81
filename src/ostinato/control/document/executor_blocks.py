"""``shell``, ``http`` and ``python``: what a task runs; ``container`` stands beside, in a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from ostinato.control.document.block import Block, Field
from ostinato.control.document.command_kind import CommandKind
from ostinato.control.document.container_block import CONTAINER
from ostinato.control.document.hints import block_hint
from ostinato.control.document.kinds import Duration, ListOf, Text, TextMap, Truth, Word
from ostinato.control.document.reading import FAULTY, Reading
from ostinato.core.definition import (
    PARAMETER_TYPES,
    ContainerSpec,
    ExecutorSpec,
    HttpSpec,
    Parameter,
    PythonSpec,
    ShellSpec,
)

STATUSES_COUNT_MAX = 100
PARAMETERS_COUNT_MAX = 1_000


class StatusKind:
    """A status or a range of them; 200 may be a number."""

    def read(self, value: object, field: str, *, reading: Reading) -> str:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 999:
            return str(value)
        return Text().read(value, field, reading=reading)

    def write(self, value: Any) -> Any:
        return int(value) if value.isdecimal() else value

    def schema(self) -> dict[str, Any]:
        return {
            "anyOf": [
                {"type": "integer", "minimum": 100, "maximum": 999},
                {"type": "string", "pattern": "^(?:[1-9]xx|[1-9][0-9]{2}(?:-[1-9][0-9]{2})?)$"},
            ]
        }


class ParameterKind:
    """A parameter: its name alone if it is required, otherwise a block."""

    _block = Block(
        type=Parameter,
        thing="a parameter",
        fields=(
            Field(
                name="name",
                attribute="name",
                kind=Text(),
                description="Name of the parameter.",
                required=True,
            ),
            Field(
                name="required",
                attribute="required",
                kind=Truth(),
                description="Whether a payload must hold it.",
                default=True,
            ),
            Field(
                name="type",
                attribute="type",
                kind=Word(tuple(PARAMETER_TYPES)),
                description="What its value must be; unsaid: whatever the function takes.",
            ),
        ),
    )

    def read(self, value: object, field: str, *, reading: Reading) -> Any:
        if isinstance(value, str):
            return Parameter(Text().read(value, field, reading=reading))
        return self._block.read(value, field, reading=reading)

    def write(self, value: Any) -> Any:
        return value.name if value.required and not value.type else self._block.write(value)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "minLength": 1}, self._block.schema()]}


class PythonKind:
    """A Python function. Where nothing is said of its parameters, any payload is let through to it."""

    block = Block(
        type=PythonSpec,
        thing="a Python function",
        bare_hint=partial(block_hint, "python"),
        fields=(
            Field(
                name="call",
                attribute="call",
                kind=Text(),
                description="Application and function, as package.module:function.",
                required=True,
                examples=("shop:report",),
            ),
            Field(
                name="async",
                attribute="is_async",
                kind=Truth(),
                description="Whether it is a coroutine function.",
                default=False,
            ),
            Field(
                name="parameters",
                attribute="parameters",
                kind=ListOf(ParameterKind(), PARAMETERS_COUNT_MAX),
                description="Parameters that a payload is checked against; unsaid: any payload is allowed.",
                examples=(["day", {"name": "limit", "required": False}],),
            ),
            Field(
                name="accepts_any",
                attribute="accepts_any",
                kind=Truth(),
                description="Whether a payload may hold more than the parameters.",
            ),
        ),
    )

    def read(self, value: object, field: str, *, reading: Reading) -> Any:
        members = self.block.read_members(value, field, reading=reading)
        if isinstance(value, Mapping) and value.get("parameters") is None:
            members.setdefault("accepts_any", True)
        return FAULTY if FAULTY in members.values() else PythonSpec(**members)

    def write(self, value: Any) -> dict[str, Any]:
        written = self.block.write(value)
        if value.parameters:
            return written
        if value.accepts_any:
            del written["accepts_any"]
            return written
        return {**written, "parameters": []}

    def schema(self) -> dict[str, Any]:
        return self.block.schema()


SHELL = Block(
    type=ShellSpec,
    thing="a command",
    bare_hint=partial(block_hint, "shell"),
    fields=(
        Field(
            name="command",
            attribute="command",
            kind=CommandKind(),
            description="A text is run by /bin/sh -c, a list of words as it stands.",
            required=True,
            examples=("pg_dump shop", ["pg_dump", "shop"]),
        ),
        Field(
            name="env",
            attribute="env",
            kind=TextMap("a variable"),
            description="Variables of the environment, added to the few that the worker gives.",
            examples=({"PGHOST": "db.example.com"},),
        ),
        Field(
            name="directory",
            attribute="directory",
            kind=Text(),
            description="Folder that it runs in; unsaid: a fresh one that is removed afterwards.",
            examples=("/srv/shop",),
        ),
    ),
)

HTTP = Block(
    type=HttpSpec,
    thing="an HTTP request",
    bare_hint=partial(block_hint, "http"),
    fields=(
        Field(
            name="method",
            attribute="method",
            kind=Text("^[A-Z]{1,20}$"),
            description="Method, in capitals.",
            required=True,
            examples=("GET", "POST"),
        ),
        Field(
            name="url",
            attribute="url",
            kind=Text("^https?://"),
            description="Address, with its scheme.",
            required=True,
            examples=("https://example.com/refresh",),
        ),
        Field(
            name="headers",
            attribute="headers",
            kind=TextMap("a header"),
            description="Headers, one line of ASCII each.",
            examples=({"Accept": "application/json"},),
        ),
        Field(name="body", attribute="body", kind=Text(), description="Body that is sent.", default=""),
        Field(
            name="success_status",
            attribute="success_status",
            kind=ListOf(StatusKind(), STATUSES_COUNT_MAX, "[2xx]"),
            description="Statuses that are a success.",
            default=["2xx"],
            examples=(["2xx", 304, "400-404"],),
        ),
        Field(
            name="connect_timeout",
            attribute="connect_timeout_us",
            kind=Duration(),
            description="Longest time until the connection stands.",
            default="10s",
        ),
        Field(
            name="read_timeout",
            attribute="read_timeout_us",
            kind=Duration(),
            description="Longest silence while the answer is read.",
            default="1m",
        ),
        Field(
            name="follow_redirects",
            attribute="follow_redirects",
            kind=Truth(),
            description="Whether redirects are followed.",
            default=False,
        ),
    ),
)

PYTHON = PythonKind()


def readable_part(name: str, value: object) -> ExecutorSpec | None:
    """What could be read of a faulty executor, filled up with harmless values; None: nothing.

    It lets the rest of the executor and of the task be judged.
    """
    block = {"shell": SHELL, "http": HTTP, "python": PYTHON.block, "container": CONTAINER}[name]
    harmless: dict[str, ExecutorSpec] = {
        "shell": ShellSpec("true"),
        "http": HttpSpec("GET", "http://localhost"),
        "python": PythonSpec("module:function", accepts_any=True),
        "container": ContainerSpec("image"),
    }
    if not isinstance(value, Mapping):
        return None
    members = block.read_members(value, name, reading=Reading())
    read = {attribute: member for attribute, member in members.items() if member is not FAULTY}
    if "parameters" in read:
        read.setdefault("accepts_any", False)
    return msgspec.structs.replace(harmless[name], **read)
