"""What may be said of a task where it is declared, turned into a definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, TypedDict, get_args

import msgspec

from ostinato.control.apply import validate_definition
from ostinato.control.names import did_you_mean
from ostinato.core.definition import (
    ExecutorSpec,
    Isolation,
    Overlap,
    PythonSpec,
    TaskDefinition,
    TaskRef,
    decode_definition,
    encode_definition,
)
from ostinato.core.instants import parse_duration
from ostinato.core.retry.policy import RetryPolicy, effective_policy
from ostinato.core.schedule.trigger import CronTrigger, DateTrigger, IntervalTrigger, Trigger
from ostinato.core.sizes import parse_size
from ostinato.errors import UserError
from ostinato.sdk.retry import Duration
from ostinato.sdk.schedules import at, cron, every


class TaskOptions(TypedDict, total=False):
    """Options of every kind of task; the defaults are those of design section 11.

    `cron`, `every`, `at` and `triggers` may be combined; `timezone` is that of a `cron` given as text.
    `timeout` None means that an attempt may run for ever. `overlap` decides what happens while an earlier
    instance has not ended. `labels` must be carried by the worker. `payload` is what fires run with, and the
    base of every submission. `queue_timeout` fails an instance that has found no worker in that time after it
    was due. `heartbeat_timeout` fails an attempt that has not called ``context.heartbeat()`` for so long.
    `exclusive` ``relaxed`` lets an attempt finish although its worker has lost touch. `isolation` ``process``
    gives each attempt of a Python function a fresh process to itself. `memory_limit` (``"512MiB"``, or a
    number of bytes) and `cpu_limit` (cores, as ``0.5``) bound an attempt; for Python functions they imply it.
    """

    cron: str | CronTrigger
    timezone: str
    every: Duration | IntervalTrigger
    at: datetime | DateTrigger
    triggers: Sequence[Trigger]
    retry: RetryPolicy | Mapping[str, object]
    timeout: Duration | None
    grace: Duration
    overlap: Overlap
    queue_bound: int
    priority: int
    labels: Mapping[str, str]
    payload: Mapping[str, object]
    queue_timeout: Duration | None
    heartbeat_timeout: Duration | None
    exclusive: Literal["strict", "relaxed"]
    isolation: Isolation
    memory_limit: str | int | None
    cpu_limit: float | None
    description: str


def make_definition(
    ref: TaskRef,
    executor: ExecutorSpec,
    *,
    options: TaskOptions,
    payload: bytes = b"{}",
    description: str = "",
) -> TaskDefinition:
    """A valid definition. `payload` is the encoded one of the options.

    Raises as ``validate_definition``, naming the option, and ``INVALID_VALUE`` for one that does not exist.
    """
    said: Mapping[str, object] = {**options}
    for name in said:
        if name not in TaskOptions.__annotations__:
            hint = did_you_mean(name, TaskOptions.__annotations__)
            raise UserError(
                "INVALID_VALUE",
                f"{name!r} is not an option of a task",
                subject=str(ref),
                field=name,
                hint=hint,
            )
    changes: dict[str, object] = {}
    for name in ("timeout", "queue_timeout", "heartbeat_timeout"):
        if name in said:
            changes[f"{name}_us"] = None if said[name] is None else _duration(said[name], field=name)
    if "grace" in said:
        changes["grace_us"] = _duration(said["grace"], field="grace")
    for name in ("overlap", "queue_bound", "priority", "exclusive"):
        if name in said:
            changes[name] = said[name]
    changes.update(_isolation_and_limits(said, executor))
    if "labels" in options:
        changes["labels"] = _labels(options["labels"])
    if "retry" in options:
        changes["retry"] = _policy(options["retry"])
    definition = TaskDefinition(
        namespace=ref.namespace,
        name=ref.name,
        executor=executor,
        triggers=_triggers(options),
        payload=msgspec.Raw(payload),
        description=options.get("description", description),
    )
    definition = msgspec.structs.replace(definition, **changes)
    _check_types(definition)
    validate_definition(definition)
    return definition


def _check_types(definition: TaskDefinition) -> None:
    try:
        decode_definition(encode_definition(definition))
    except UnicodeEncodeError:
        # What text may hold is said, field by field, by the validation that follows.
        return
    except (msgspec.ValidationError, TypeError) as error:
        message, _, path = str(error).partition(" - at `")
        raise UserError(
            "INVALID_VALUE",
            message[:1].lower() + message[1:],
            subject=str(definition.ref),
            field=path.rstrip("`").removeprefix("$.") or "task",
        ) from None


def _duration(value: object, *, field: str) -> int:
    if not isinstance(value, str | int | float | timedelta):
        raise UserError("INVALID_DURATION", f"{value!r} is not a duration", field=field)
    return parse_duration(value, field=field)


def _isolation_and_limits(said: Mapping[str, object], executor: ExecutorSpec) -> dict[str, object]:
    changes = {name: said[name] for name in ("isolation", "cpu_limit") if name in said}
    if changes.get("isolation", "shared") not in get_args(Isolation):
        raise UserError(
            "INVALID_VALUE",
            f"{changes['isolation']!r} is not known",
            field="isolation",
            hint=f"one of {', '.join(get_args(Isolation))}",
        )
    if said.get("memory_limit") is not None:
        changes["memory_limit_bytes"] = parse_size(said["memory_limit"], field="memory_limit")
    is_limited = "memory_limit_bytes" in changes or changes.get("cpu_limit") is not None
    if is_limited and "isolation" not in said and isinstance(executor, PythonSpec):
        changes["isolation"] = "process"
    cpu_limit = changes.get("cpu_limit")
    if isinstance(cpu_limit, int) and not isinstance(cpu_limit, bool):
        # As it is read back, so that 1 and 1.0 are the same version.
        changes["cpu_limit"] = float(cpu_limit)
    return changes


def _policy(retry: object) -> RetryPolicy:
    if isinstance(retry, RetryPolicy):
        return retry
    if isinstance(retry, Mapping):
        return effective_policy(retry)
    raise UserError(
        "INVALID_POLICY",
        f"{retry!r} is not a retry policy",
        field="retry",
        hint="write Retry.fixed(30), Retry.none() for no retries, or leave it out for the default",
    )


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UserError("INVALID_VALUE", f"{name!r}: {value!r} is not text", field="labels")
    return dict(labels)


def _triggers(options: TaskOptions) -> tuple[Trigger, ...]:
    triggers: list[Trigger] = []
    expression = options.get("cron")
    if "timezone" in options and not isinstance(expression, str):
        raise UserError("INVALID_VALUE", "goes with a cron expression given as text", field="timezone")
    if isinstance(expression, str):
        triggers.append(cron(expression, options.get("timezone", "UTC")))
    elif expression is not None:
        triggers.append(expression)
    interval = options.get("every")
    if interval is not None:
        triggers.append(interval if isinstance(interval, IntervalTrigger) else every(interval))
    moment = options.get("at")
    if moment is not None:
        triggers.append(moment if isinstance(moment, DateTrigger) else at(moment))
    triggers += options.get("triggers", ())
    for index, trigger in enumerate(triggers):
        if not isinstance(trigger, CronTrigger | IntervalTrigger | DateTrigger):
            raise UserError(
                "INVALID_VALUE",
                f"{trigger!r} is not a trigger",
                field=f"triggers[{index}]",
                hint='write cron("0 2 * * *"), every("5m") or at(moment)',
            )
    return tuple(triggers)
