"""What may be said of a task where it is declared, turned into a definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict

import msgspec

from ostinato.control.document.block import Block
from ostinato.control.document.errors import unknown_field
from ostinato.control.document.read import read_definition
from ostinato.control.document.reading import Reading, wrong_type
from ostinato.control.document.task_fields import OPTIONS
from ostinato.core.definition import ExecutorSpec, Isolation, Overlap, TaskDefinition, TaskRef
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.schedule.trigger import CronTrigger, DateTrigger, IntervalTrigger, Trigger
from ostinato.errors import UserError, restated
from ostinato.sdk.retry import Duration
from ostinato.sdk.schedules import at, cron, every

_TRIGGER_HINT = 'write cron("0 2 * * *"), every("5m") or at(moment)'
#: Options for which None says that there is no limit.
_OPTIONAL = ("timeout", "queue_timeout", "heartbeat_timeout", "memory_limit", "cpu_limit")


class TaskOptions(TypedDict, total=False):
    """Options of every kind of task; the defaults are those of design section 11.

    `cron`, `every`, `at` and `triggers` may be combined; `timezone` is that of a `cron` given as text.
    `shards` is how many instances each fire makes, each told its number (``context.shard``).
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
    shards: int
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

    Read by the code that reads ``tasks.yaml``, and refused in the same words. Raises the first fault, as
    ``validate_definition``, naming the option.
    """
    said: dict[str, object] = {"description": description, **options}
    known = tuple(TaskOptions.__annotations__)
    for name in said:
        if name not in known:
            raise restated(unknown_field(name, known, field="", thing="a task"), subject=str(ref))
    triggers = _triggers(options)
    for name in ("cron", "timezone", "every", "at", "triggers", "payload"):
        said.pop(name, None)
    # Python has a word of its own for none.
    said.update({name: "none" for name in _OPTIONAL if said.get(name, "none") is None})
    reading = Reading(native=True)
    members = OPTIONS.read_members(said, "", reading=reading)
    members |= {"triggers": triggers, "payload": msgspec.Raw(payload)}
    definition = read_definition(members, ref, executor=executor, field="", reading=reading)
    if definition is None or reading.faults:
        raise restated(reading.faults[0], subject=str(ref))
    return definition


def read_executor(block: Block, said: Mapping[str, object], *, field: str, subject: str) -> Any:
    """What `block` makes of arguments in Python; None is unsaid. Raises the first fault, naming the argument.

    Read by the code that reads ``tasks.yaml``, so that each value is refused in the same words.
    """
    reading = Reading(native=True)
    given = {name: value for name, value in said.items() if value is not None}
    executor = reading.read(block, given, field=field)
    if reading.faults:
        raise restated(reading.faults[0], subject=subject)
    return executor


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
    more = options.get("triggers", ())
    if not isinstance(more, list | tuple):
        raise wrong_type(more, "a list", field="triggers", hint=_TRIGGER_HINT)
    triggers += more
    for index, trigger in enumerate(triggers):
        if not isinstance(trigger, CronTrigger | IntervalTrigger | DateTrigger):
            raise UserError(
                "INVALID_VALUE",
                f"{trigger!r} is not a trigger",
                field=f"triggers[{index}]",
                hint=_TRIGGER_HINT,
            )
    return tuple(triggers)
