"""Apply: store definitions of tasks, each checked whole before any is written."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from ostinato.control.checks import Check, invalid, refusing
from ostinato.control.executor_checks import executor_checks
from ostinato.control.names import validate_label_value, validate_name, validate_text
from ostinato.control.parameters import check_parameters, check_types
from ostinato.core.definition import HttpSpec, Parameter, PythonSpec, TaskDefinition, TaskRef
from ostinato.core.instants import DURATION_MAX_US, MILLISECOND, validate_duration
from ostinato.core.payload import check_json_object
from ostinato.core.retry.policy import validate_policy
from ostinato.core.schedule.trigger import Trigger, trigger_id, validate_trigger
from ostinato.core.sizes import MIB, format_size
from ostinato.errors import UserError, restated
from ostinato.store.batches import ApplyReceipt
from ostinato.store.protocol import Store

PRIORITY_MAX = 9
TRIGGERS_COUNT_MAX = 100
LABELS_COUNT_MAX = 50
GRACE_MAX_US = 3_600_000_000
#: Less than this, no interpreter and hardly a shell could start.
MEMORY_LIMIT_MIN_BYTES = 16 * MIB
#: More than any machine has.
MEMORY_LIMIT_MAX_BYTES = 2**50
CPU_LIMIT_MIN = 0.01
CPU_LIMIT_MAX = 4096.0
QUEUE_BOUND_MAX = 100_000
#: A fire's instances are made in one transaction, and looked at together by the next one's overlap rule.
SHARDS_MAX = 1_000

_ISOLATIONS = ("shared", "process")
_OVERLAPS = ("allow", "forbid", "queue", "replace")


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

    Raises the first of `definition_faults`: ``INVALID_NAME``, ``INVALID_VALUE``, ``INVALID_DURATION``,
    ``INVALID_POLICY``, ``INVALID_CRON``, ``INVALID_TIMEZONE``, ``INVALID_INSTANT``, ``INVALID_PAYLOAD`` or
    ``PAYLOAD_TOO_LARGE``.
    """
    for fault in _faults(definition):
        raise fault


def definition_faults(definition: TaskDefinition) -> list[UserError]:
    """Everything for which `validate_definition` would refuse the definition; empty: nothing."""
    return list(_faults(definition))


def _faults(definition: TaskDefinition) -> Iterator[UserError]:
    for check in _checks(definition):
        try:
            check()
        except UserError as error:
            subject = "" if error.field in ("namespace", "name") else str(definition.ref)
            yield restated(error, subject=error.subject or subject)


def validate_priority(priority: int, *, field: str = "priority") -> None:
    """Raise ``INVALID_VALUE`` unless a whole number from 0 to 9."""
    if type(priority) is not int or not 0 <= priority <= PRIORITY_MAX:
        raise UserError(
            "INVALID_VALUE", f"{priority!r} is not a whole number from 0 to {PRIORITY_MAX}", field=field
        )


def _checks(definition: TaskDefinition) -> Iterator[Check]:
    """Each refuses for one reason, so that all of them can be told at once."""
    yield partial(validate_name, definition.namespace, field="namespace")
    yield partial(validate_name, definition.name, field="name")
    yield from executor_checks(definition.executor)
    yield from _trigger_checks(definition)
    yield partial(validate_policy, definition.retry)
    yield from _duration_checks(definition)
    yield partial(_validate_isolation, definition)
    yield from _limit_checks(definition)
    yield partial(validate_priority, definition.priority)
    yield partial(_validate_overlap, definition)
    yield partial(_validate_shards, definition)
    yield from _label_checks(definition.labels)
    yield partial(validate_text, definition.description, field="description")
    yield partial(_validate_payload, definition)


def _validate_overlap(definition: TaskDefinition) -> None:
    if definition.overlap is not None and definition.overlap not in _OVERLAPS:
        raise invalid(
            f"{definition.overlap!r} is not known", "overlap", hint=f"one of {', '.join(_OVERLAPS)}"
        )
    if not 1 <= definition.queue_bound <= QUEUE_BOUND_MAX:
        raise invalid(f"{definition.queue_bound} is not within 1 to {QUEUE_BOUND_MAX}", "queue_bound")


def _validate_shards(definition: TaskDefinition) -> None:
    if type(definition.shards) is not int or not 1 <= definition.shards <= SHARDS_MAX:
        raise invalid(f"{definition.shards!r} is not a whole number from 1 to {SHARDS_MAX:,}", "shards")


def _label_checks(labels: Mapping[str, str]) -> Iterator[Check]:
    if len(labels) > LABELS_COUNT_MAX:
        yield refusing(invalid(f"{len(labels)} labels, at most {LABELS_COUNT_MAX}", "labels"))
        return
    for name, value in labels.items():
        yield partial(validate_name, name, field="labels")
        yield partial(validate_label_value, value, field=f"labels.{name}")


def _validate_payload(definition: TaskDefinition) -> None:
    given = check_json_object(bytes(definition.payload))
    if given or definition.triggers:
        _validate_fires(definition, given.keys())
    check_types(definition.executor, given, subject=str(definition.ref))


def _validate_fires(definition: TaskDefinition, given: Collection[str]) -> None:
    """The task's own payload must fit by name, and hold whatever its fires need."""
    executor = definition.executor
    if isinstance(executor, PythonSpec) and not definition.triggers:
        executor = msgspec.structs.replace(
            executor,
            parameters=tuple(
                Parameter(entry.name, required=False, type=entry.type) for entry in executor.parameters
            ),
        )
    check_parameters(executor, given, subject=str(definition.ref))


def _trigger_checks(definition: TaskDefinition) -> Iterator[Check]:
    if len(definition.triggers) > TRIGGERS_COUNT_MAX:
        message = f"{len(definition.triggers)} triggers, at most {TRIGGERS_COUNT_MAX}"
        yield refusing(invalid(message, "triggers"))
        return
    seen: set[str] = set()
    for index, trigger in enumerate(definition.triggers):
        yield partial(_validate_trigger, definition, index, trigger=trigger, seen=seen)


def _validate_trigger(definition: TaskDefinition, index: int, *, trigger: Trigger, seen: set[str]) -> None:
    validate_trigger(trigger, field=f"triggers[{index}]")
    identifier = trigger_id(definition.namespace, definition.name, trigger)
    if identifier in seen:
        raise invalid("fires at the same instants as an earlier trigger", f"triggers[{index}]")
    seen.add(identifier)


def _duration_checks(definition: TaskDefinition) -> Iterator[Check]:
    limits = (
        ("timeout", definition.timeout_us, MILLISECOND, DURATION_MAX_US),
        ("grace", definition.grace_us, 0, GRACE_MAX_US),
        ("queue_timeout", definition.queue_timeout_us, 0, DURATION_MAX_US),
        ("heartbeat_timeout", definition.heartbeat_timeout_us, MILLISECOND, DURATION_MAX_US),
    )
    for field, value_us, low_us, high_us in limits:
        if value_us is not None:
            yield partial(validate_duration, field, value_us, low_us=low_us, high_us=high_us)


def _validate_isolation(definition: TaskDefinition) -> None:
    if definition.isolation not in _ISOLATIONS:
        raise invalid(
            f"{definition.isolation!r} is not known", "isolation", hint=f"one of {', '.join(_ISOLATIONS)}"
        )
    is_python = isinstance(definition.executor, PythonSpec)
    if definition.isolation == "process" and not is_python:
        raise invalid(
            "is for Python functions",
            "isolation",
            hint="leave it out: a command or container always has processes of its own, a request needs none",
        )
    field = _limited_by(definition)
    if field and is_python and definition.isolation == "shared":
        raise invalid(
            f"{field} limits a process, and a task with isolation shared has none of its own",
            "isolation",
            hint="write process, or leave it out",
        )


def _limit_checks(definition: TaskDefinition) -> Iterator[Check]:
    field = _limited_by(definition)
    if field and isinstance(definition.executor, HttpSpec):
        message = "a request has no process that could be limited"
        yield refusing(invalid(message, field, hint="leave it out"))
        return
    yield partial(_validate_memory_limit, definition.memory_limit_bytes)
    yield partial(_validate_cpu_limit, definition.cpu_limit)


def _validate_memory_limit(memory_bytes: int | None) -> None:
    if memory_bytes is not None and not MEMORY_LIMIT_MIN_BYTES <= memory_bytes <= MEMORY_LIMIT_MAX_BYTES:
        low, high = format_size(MEMORY_LIMIT_MIN_BYTES), format_size(MEMORY_LIMIT_MAX_BYTES)
        raise invalid(
            f"{format_size(memory_bytes)} is out of range", "memory_limit", hint=f"from {low} to {high}"
        )


def _validate_cpu_limit(cpu_count: float | None) -> None:
    # Written so that NaN, which is in no range, is refused.
    if cpu_count is not None and not CPU_LIMIT_MIN <= cpu_count <= CPU_LIMIT_MAX:
        raise invalid(
            f"{cpu_count} cores are out of range",
            "cpu_limit",
            hint=f"from {CPU_LIMIT_MIN} to {CPU_LIMIT_MAX:.0f} cores",
        )


def _limited_by(definition: TaskDefinition) -> str:
    if definition.memory_limit_bytes is not None:
        return "memory_limit"
    return "" if definition.cpu_limit is None else "cpu_limit"
