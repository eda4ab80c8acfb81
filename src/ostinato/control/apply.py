"""Apply: store definitions of tasks, each checked whole before any is written."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import urlsplit

import msgspec

from ostinato.control.names import validate_label_value, validate_name, validate_text
from ostinato.control.parameters import check_parameters
from ostinato.core.definition import (
    ExecutorSpec,
    HttpSpec,
    Parameter,
    PythonSpec,
    ShellSpec,
    TaskDefinition,
    TaskRef,
)
from ostinato.core.instants import DURATION_MAX_US, MILLISECOND, format_duration
from ostinato.core.payload import check_json_object
from ostinato.core.retry.policy import validate_policy
from ostinato.core.schedule.trigger import trigger_id, validate_trigger
from ostinato.core.sizes import MIB, format_size
from ostinato.errors import UserError
from ostinato.store.batches import ApplyReceipt
from ostinato.store.protocol import Store

PRIORITY_MAX = 9
TRIGGERS_COUNT_MAX = 100
LABELS_COUNT_MAX = 50
COMMAND_LENGTH_MAX = 100_000
GRACE_MAX_US = 3_600_000_000
#: Less than this, no interpreter and hardly a shell could start.
MEMORY_LIMIT_MIN_BYTES = 16 * MIB
#: More than any machine has.
MEMORY_LIMIT_MAX_BYTES = 2**50
CPU_LIMIT_MIN = 0.01
CPU_LIMIT_MAX = 4096.0
QUEUE_BOUND_MAX = 100_000

_ISOLATIONS = ("shared", "process")
_OVERLAPS = ("allow", "forbid", "queue", "replace")
_METHOD = re.compile(r"[A-Z]{1,20}", re.ASCII)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
#: Set from the body: a second opinion would make the server wait for more, or take the rest as a request.
_FRAMING_HEADERS = frozenset({"content-length", "transfer-encoding"})
_VARIABLE_NAME = re.compile(r"[^=\x00]+")
_STATUS = re.compile(r"[1-9]xx|[1-9]\d\d(-[1-9]\d\d)?", re.ASCII)


async def apply(store: Store, definitions: Sequence[TaskDefinition], *, now_us: int) -> list[ApplyReceipt]:
    """Store `definitions`, all or none; one that is the same as stored makes no new version (C041).

    Empty in, empty out. Raises what `validate_definition` raises, with the task as the error's subject, and
    ``INVALID_VALUE`` if one task is given twice.
    """
    seen: set[TaskRef] = set()
    for definition in definitions:
        validate_definition(definition)
        if definition.ref in seen:
            raise UserError("INVALID_VALUE", f"task {definition.ref} is given twice", field="name")
        seen.add(definition.ref)
    return await store.apply(definitions, now_us=now_us) if definitions else []


def validate_definition(definition: TaskDefinition) -> None:
    """Refuse what could not run as written; the error names the field as ``tasks.yaml`` does.

    Raises ``INVALID_NAME``, ``INVALID_VALUE``, ``INVALID_DURATION``, ``INVALID_POLICY``, ``INVALID_CRON``,
    ``INVALID_TIMEZONE``, ``INVALID_INSTANT``, ``INVALID_PAYLOAD`` or ``PAYLOAD_TOO_LARGE``.
    """
    validate_name(definition.namespace, field="namespace")
    validate_name(definition.name, field="name")
    try:
        _validate_parts(definition)
    except UserError as error:
        raise UserError(
            error.code,
            error.message,
            subject=error.subject or str(definition.ref),
            field=error.field,
            hint=error.hint,
        ) from None


def validate_priority(priority: int, *, field: str = "priority") -> None:
    """Raise ``INVALID_VALUE`` unless a whole number from 0 to 9."""
    if type(priority) is not int or not 0 <= priority <= PRIORITY_MAX:
        raise UserError(
            "INVALID_VALUE", f"{priority!r} is not a whole number from 0 to {PRIORITY_MAX}", field=field
        )


def _validate_parts(definition: TaskDefinition) -> None:
    _validate_executor(definition.executor)
    _validate_triggers(definition)
    validate_policy(definition.retry)
    _validate_durations(definition)
    _validate_isolation(definition)
    _validate_limits(definition)
    validate_priority(definition.priority)
    if definition.overlap is not None and definition.overlap not in _OVERLAPS:
        raise _invalid(
            f"{definition.overlap!r} is not known", "overlap", hint=f"one of {', '.join(_OVERLAPS)}"
        )
    if not 1 <= definition.queue_bound <= QUEUE_BOUND_MAX:
        raise _invalid(f"{definition.queue_bound} is not within 1 to {QUEUE_BOUND_MAX}", "queue_bound")
    if len(definition.labels) > LABELS_COUNT_MAX:
        raise _invalid(f"{len(definition.labels)} labels, at most {LABELS_COUNT_MAX}", "labels")
    for name, value in definition.labels.items():
        validate_name(name, field="labels")
        validate_label_value(value, field=f"labels.{name}")
    validate_text(definition.description, field="description")
    given = check_json_object(bytes(definition.payload))
    if given or definition.triggers:
        _validate_fires(definition, given.keys())


def _validate_fires(definition: TaskDefinition, given: Collection[str]) -> None:
    """The task's own payload must fit by name, and hold whatever its fires need."""
    executor = definition.executor
    if isinstance(executor, PythonSpec) and not definition.triggers:
        executor = msgspec.structs.replace(
            executor, parameters=tuple(Parameter(entry.name, required=False) for entry in executor.parameters)
        )
    check_parameters(executor, given, subject=str(definition.ref))


def _validate_triggers(definition: TaskDefinition) -> None:
    if len(definition.triggers) > TRIGGERS_COUNT_MAX:
        raise _invalid(f"{len(definition.triggers)} triggers, at most {TRIGGERS_COUNT_MAX}", "triggers")
    seen: set[str] = set()
    for index, trigger in enumerate(definition.triggers):
        validate_trigger(trigger, field=f"triggers[{index}]")
        identifier = trigger_id(definition.namespace, definition.name, trigger)
        if identifier in seen:
            raise _invalid("fires at the same instants as an earlier trigger", f"triggers[{index}]")
        seen.add(identifier)


def _validate_durations(definition: TaskDefinition) -> None:
    limits = (
        ("timeout", definition.timeout_us, MILLISECOND, DURATION_MAX_US),
        ("grace", definition.grace_us, 0, GRACE_MAX_US),
        ("queue_timeout", definition.queue_timeout_us, 0, DURATION_MAX_US),
        ("heartbeat_timeout", definition.heartbeat_timeout_us, MILLISECOND, DURATION_MAX_US),
    )
    for field, value_us, low_us, high_us in limits:
        if value_us is not None and not low_us <= value_us <= high_us:
            raise UserError(
                "INVALID_DURATION",
                f"{format_duration(value_us)} is out of range",
                field=field,
                hint=f"from {format_duration(low_us)} to {format_duration(high_us)}",
            )


def _validate_isolation(definition: TaskDefinition) -> None:
    if definition.isolation not in _ISOLATIONS:
        raise _invalid(
            f"{definition.isolation!r} is not known", "isolation", hint=f"one of {', '.join(_ISOLATIONS)}"
        )
    is_python = isinstance(definition.executor, PythonSpec)
    if definition.isolation == "process" and not is_python:
        raise _invalid(
            "is for Python functions",
            "isolation",
            hint="leave it out: a command always has processes of its own, a request needs none",
        )
    field = _limited_by(definition)
    if field and is_python and definition.isolation == "shared":
        raise _invalid(
            f"{field} limits a process, and a task with isolation shared has none of its own",
            "isolation",
            hint="write process, or leave it out",
        )


def _validate_limits(definition: TaskDefinition) -> None:
    field = _limited_by(definition)
    if field and isinstance(definition.executor, HttpSpec):
        raise _invalid("a request has no process that could be limited", field, hint="leave it out")
    memory_bytes, cpu_count = definition.memory_limit_bytes, definition.cpu_limit
    if memory_bytes is not None and not MEMORY_LIMIT_MIN_BYTES <= memory_bytes <= MEMORY_LIMIT_MAX_BYTES:
        low, high = format_size(MEMORY_LIMIT_MIN_BYTES), format_size(MEMORY_LIMIT_MAX_BYTES)
        raise _invalid(
            f"{format_size(memory_bytes)} is out of range", "memory_limit", hint=f"from {low} to {high}"
        )
    # Written so that NaN, which is in no range, is refused.
    if cpu_count is not None and not CPU_LIMIT_MIN <= cpu_count <= CPU_LIMIT_MAX:
        raise _invalid(
            f"{cpu_count} cores are out of range",
            "cpu_limit",
            hint=f"from {CPU_LIMIT_MIN} to {CPU_LIMIT_MAX:.0f} cores",
        )


def _limited_by(definition: TaskDefinition) -> str:
    if definition.memory_limit_bytes is not None:
        return "memory_limit"
    return "" if definition.cpu_limit is None else "cpu_limit"


# ── executors ─────────────────────────────────────────────────────────────────────────────────────────


def _validate_executor(executor: ExecutorSpec) -> None:
    if isinstance(executor, PythonSpec):
        _validate_python(executor)
    elif isinstance(executor, ShellSpec):
        _validate_shell(executor)
    else:
        _validate_http(executor)


def _validate_python(executor: PythonSpec) -> None:
    if not executor.call:
        raise _invalid("a function is needed", "python.call", hint="write it as package.module:function")
    validate_text(executor.call, field="python.call")
    seen: set[str] = set()
    for parameter in executor.parameters:
        if not parameter.name.isidentifier() or parameter.name in seen:
            raise _invalid(f"{parameter.name!a} cannot be a parameter", "python.parameters")
        seen.add(parameter.name)


def _validate_shell(executor: ShellSpec) -> None:
    words = (executor.command,) if isinstance(executor.command, str) else executor.command
    if not words or not words[0].strip():
        raise _invalid("a command is needed", "shell.command")
    for word in words:
        # An argument may hold any character that the operating system can pass: all but NUL.
        _refuse_nul(word, "shell.command")
    if sum(map(len, words)) > COMMAND_LENGTH_MAX:
        raise _invalid(f"more than {COMMAND_LENGTH_MAX} characters", "shell.command")
    _validate_pairs(executor.env, "shell.env", names=_VARIABLE_NAME)
    _refuse_nul(executor.directory, "shell.directory")


def _validate_http(executor: HttpSpec) -> None:
    if _METHOD.fullmatch(executor.method) is None:
        raise _invalid(f"{executor.method!r} is not a method", "http.method", hint="write it as GET or POST")
    validate_text(executor.url, field="http.url")
    if not executor.url.startswith(("http://", "https://")) or any(map(str.isspace, executor.url)):
        raise _invalid(f"{executor.url!r} is not an http:// or https:// address", "http.url")
    _validate_address(executor.url)
    _validate_headers(executor.headers)
    _refuse_nul(executor.body, "http.body")
    if not executor.success_status:
        raise _invalid("no status would ever be a success", "http.success_status")
    for status in executor.success_status:
        if _STATUS.fullmatch(status) is None:
            raise _invalid(f"{status!r} is no status", "http.success_status", hint="as 200, 2xx or 200-204")
    for field, value_us in (
        ("http.connect_timeout", executor.connect_timeout_us),
        ("http.read_timeout", executor.read_timeout_us),
    ):
        if not MILLISECOND <= value_us <= DURATION_MAX_US:
            raise UserError("INVALID_DURATION", f"{format_duration(value_us)} is out of range", field=field)


def _validate_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _invalid(f"{url!r} is not an address: {error}", "http.url") from None
    if not parts.hostname:
        raise _invalid(f"{url!r} names no host", "http.url")
    if port == 0:
        raise _invalid(f"{url!r} names port 0, which nobody can listen on", "http.url")


def _validate_headers(headers: Mapping[str, str]) -> None:
    """Refuse headers that no request could be sent with."""
    _validate_pairs(headers, "http.headers", names=_HEADER_NAME)
    for name, value in headers.items():
        field = f"http.headers.{name}"
        if name.lower() in _FRAMING_HEADERS:
            raise _invalid(
                "says where the request ends",
                field,
                hint="leave it out: it is made from the body that is sent",
            )
        if "\r" in value or "\n" in value:
            raise _invalid("a header is one line", field)
        if not value.isascii():
            raise _invalid("holds a character that is not ASCII", field, hint="encode it, as %C3%A9")
        if value != value.strip():
            raise _invalid("begins or ends with white space", field)


def _validate_pairs(pairs: Mapping[str, str], field: str, *, names: re.Pattern[str]) -> None:
    for name, value in pairs.items():
        if names.fullmatch(name) is None:
            raise _invalid(f"{name!a} is not a name", field)
        _refuse_nul(name, field)
        _refuse_nul(value, f"{field}.{name}")


def _refuse_nul(text: str, field: str) -> None:
    if "\0" in text:
        raise _invalid("holds a NUL character", field)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _invalid("holds a lone surrogate, which is not valid Unicode", field) from None


def _invalid(message: str, field: str, *, hint: str = "") -> UserError:
    return UserError("INVALID_VALUE", message, field=field, hint=hint)
