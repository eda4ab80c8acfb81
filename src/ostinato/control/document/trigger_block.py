"""Entries of ``triggers``: cron, interval or date, told apart by their first field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from ostinato.control.document.block import Block, Field
from ostinato.control.document.hints import hint_of_trigger_field
from ostinato.control.document.kinds import Duration, Instant, Text, Whole, Word
from ostinato.control.document.reading import FAULTY, Reading, wrong_type
from ostinato.core.instants import HOUR
from ostinato.core.schedule.cron_fires import DST_FOLDS, DST_GAPS
from ostinato.core.schedule.trigger import (
    MISFIRE_BOUND_MAX,
    MISFIRE_MODES,
    CronTrigger,
    DateTrigger,
    IntervalTrigger,
    Trigger,
    validate_trigger,
)
from ostinato.errors import UserError

_HINT = 'write {cron: "0 2 * * *"}, {every: 5m} or {at: "2026-01-31T18:00:00+01:00"}'
_NATIVE_HINT = 'write cron("0 2 * * *"), every("5m") or at(moment)'

_MISFIRE = (
    Field(
        name="misfire",
        attribute="misfire",
        kind=Word(MISFIRE_MODES),
        description="What becomes of fires that were missed: one run now, all of them, or none.",
        default="fire_once",
    ),
    Field(
        name="misfire_grace",
        attribute="misfire_grace_us",
        kind=Duration(),
        description="How late a fire may be and still run.",
        default="1h",
    ),
    Field(
        name="misfire_bound",
        attribute="misfire_bound",
        kind=Whole(1, MISFIRE_BOUND_MAX),
        description="How many missed fires misfire: fire_all makes up for, at most.",
        default=100,
    ),
)

CRON = Block(
    type=CronTrigger,
    thing="a cron trigger",
    unknown_hint=hint_of_trigger_field,
    fields=(
        Field(
            name="cron",
            attribute="cron",
            kind=Text(),
            description="Five or six fields, or @daily and the like; see schedules.md.",
            required=True,
            examples=("0 2 * * *", "*/5 * * * mon-fri", "@daily"),
        ),
        Field(
            name="timezone",
            attribute="timezone",
            kind=Text(),
            description="Zone of the IANA database whose wall clock counts.",
            default="UTC",
            examples=("Europe/Berlin",),
        ),
        Field(
            name="dst_gap",
            attribute="dst_gap",
            kind=Word(DST_GAPS),
            description="A time that the clock skips: run after the gap, or not at all.",
            default="run_after",
        ),
        Field(
            name="dst_fold",
            attribute="dst_fold",
            kind=Word(DST_FOLDS),
            description="A time that the clock shows twice: run the first time, the second, or both.",
            default="first",
        ),
        Field(
            name="spread",
            attribute="spread_us",
            kind=Duration(),
            description="Each fire is delayed by an offset below this, which is always the same for a task.",
            default="0s",
            examples=("10m",),
        ),
        *_MISFIRE,
    ),
)

EVERY = Block(
    type=IntervalTrigger,
    thing="an interval trigger",
    fields=(
        Field(
            name="every",
            attribute="every_us",
            kind=Duration(),
            description="Time from fire to fire.",
            required=True,
            examples=("5m",),
        ),
        Field(
            name="anchor",
            attribute="anchor_us",
            kind=Instant(),
            description="An instant of the grid; unsaid: the creation of the task.",
            examples=("2026-01-01T00:00:00Z",),
        ),
        *_MISFIRE,
    ),
)

AT = Block(
    type=DateTrigger,
    thing="a date trigger",
    fields=(
        Field(
            name="at",
            attribute="at_us",
            kind=Instant(),
            description="The one instant at which the task fires, ISO 8601 with an offset.",
            required=True,
            examples=("2026-01-31T18:00:00+01:00",),
        ),
        *_MISFIRE,
    ),
)

BLOCKS = {"cron": CRON, "every": EVERY, "at": AT}
_TYPES = get_args(Trigger)
_HARMLESS: dict[str, Trigger] = {
    "cron": CronTrigger(cron="0 0 * * *"),
    "every": IntervalTrigger(every_us=HOUR),
    "at": DateTrigger(at_us=0),
}


class TriggerKind:
    """One trigger. In Python also one that is made already."""

    def read(self, value: object, field: str, *, reading: Reading) -> Any:
        if reading.native and isinstance(value, _TYPES):
            return value
        if not isinstance(value, Mapping):
            hint = _NATIVE_HINT if reading.native else _HINT
            raise wrong_type(value, "a trigger", field=field, hint=hint)
        said = [name for name in BLOCKS if value.get(name) is not None]
        if len(said) != 1:
            message = f"says {' and '.join(said)}" if said else "says neither cron nor every nor at"
            raise UserError("INVALID_VALUE", message, field=field, hint=f"{_HINT}, one a trigger")
        return _read_block(said[0], value, field, reading=reading)

    def write(self, value: Any) -> dict[str, Any]:
        return next(block for block in BLOCKS.values() if isinstance(value, block.type)).write(value)

    def schema(self) -> dict[str, Any]:
        return {"$ref": "#/$defs/trigger"}


def _read_block(name: str, value: Mapping[str, object], field: str, *, reading: Reading) -> Any:
    block, harmless = BLOCKS[name], _HARMLESS[name]
    before = len(reading.faults)
    members = block.read_members(value, field, reading=reading)
    for attribute, member in members.items():
        if member is FAULTY:
            continue
        try:
            # One by one, because a trigger is refused for its first fault.
            validate_trigger(msgspec.structs.replace(harmless, **{attribute: member}), field=field)
        except UserError as fault:
            reading.refuse(fault)
    return FAULTY if len(reading.faults) > before else block.type(**members)


def trigger_schema() -> dict[str, Any]:
    """Schema of an entry of ``triggers``."""
    return {"oneOf": [block.schema() for block in BLOCKS.values()]}
