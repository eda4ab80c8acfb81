"""Triggers of a task that depend on time alone: what they are, when they fire next, what they are called."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import msgspec

from ostinato.core.ids import stable_hash
from ostinato.core.instants import (
    DAY,
    DURATION_MAX_US,
    HOUR,
    INSTANT_MAX_US,
    INSTANT_MIN_US,
    MILLISECOND,
    format_duration,
    format_instant,
    validate_duration,
)
from ostinato.core.schedule.cron_expression import parse_cron
from ostinato.core.schedule.cron_fires import DST_FOLDS, DST_GAPS, DstFold, DstGap, next_cron_fire
from ostinato.core.schedule.date import next_date_fire
from ostinato.core.schedule.interval import next_interval_fire
from ostinato.core.schedule.spread import spread_offset_us
from ostinato.core.schedule.zone import load_zone
from ostinato.errors import UserError, restated

#: What becomes of fires that the scheduler could not fire in time (design section 5, Misfires).
MISFIRE_MODES = ("fire_once", "fire_all", "skip")
MISFIRE_BOUND_MAX = 1000
EVERY_MIN_US = 100 * MILLISECOND
SPREAD_MAX_US = DAY


class CronTrigger(msgspec.Struct, frozen=True, tag="cron", tag_field="type", kw_only=True):
    """Fires when the wall clock of `timezone` matches `cron`."""

    cron: str
    timezone: str = "UTC"
    misfire: str = "fire_once"
    misfire_grace_us: int = HOUR
    misfire_bound: int = 100
    dst_gap: DstGap = "run_after"
    dst_fold: DstFold = "first"
    #: Each fire is delayed by a stable offset in [0, spread_us).
    spread_us: int = 0


class IntervalTrigger(msgspec.Struct, frozen=True, tag="every", tag_field="type", kw_only=True):
    """Fires on the grid anchor, anchor + every, …; the anchor is the task's creation where none is given."""

    every_us: int
    anchor_us: int | None = None
    misfire: str = "fire_once"
    misfire_grace_us: int = HOUR
    misfire_bound: int = 100


class DateTrigger(msgspec.Struct, frozen=True, tag="at", tag_field="type", kw_only=True):
    """Fires once."""

    at_us: int
    misfire: str = "fire_once"
    misfire_grace_us: int = HOUR
    misfire_bound: int = 100


Trigger: TypeAlias = CronTrigger | IntervalTrigger | DateTrigger


def validate_trigger(trigger: Trigger, *, field: str = "") -> None:
    """Refuse a trigger that could not fire as written.

    Raises ``INVALID_CRON``, ``INVALID_TIMEZONE``, ``INVALID_DURATION``, ``INVALID_INSTANT`` or
    ``INVALID_VALUE``; the error's field is `field`, a dot, and the part that is wrong (``cron``,
    ``timezone``, ``misfire_grace``, …). Which field of a cron expression it is, the message says.
    """
    try:
        _validate_times(trigger)
        _validate_misfire(trigger)
    except UserError as error:
        name = "cron" if error.code == "INVALID_CRON" else error.field
        path = f"{field}.{name}" if field else name
        raise restated(error, field=path) from None


def _validate_times(trigger: Trigger) -> None:
    if isinstance(trigger, CronTrigger):
        _text("cron", trigger.cron)
        _text("timezone", trigger.timezone)
        parse_cron(trigger.cron)
        load_zone(trigger.timezone)
        _one_of("dst_gap", trigger.dst_gap, allowed=DST_GAPS)
        _one_of("dst_fold", trigger.dst_fold, allowed=DST_FOLDS)
        validate_duration("spread", trigger.spread_us, low_us=0, high_us=SPREAD_MAX_US)
    elif isinstance(trigger, IntervalTrigger):
        validate_duration("every", trigger.every_us, low_us=EVERY_MIN_US, high_us=DURATION_MAX_US)
        if trigger.anchor_us is not None:
            _instant("anchor", trigger.anchor_us)
    else:
        _instant("at", trigger.at_us)


def _validate_misfire(trigger: Trigger) -> None:
    _one_of("misfire", trigger.misfire, allowed=MISFIRE_MODES)
    validate_duration("misfire_grace", trigger.misfire_grace_us, low_us=0, high_us=DURATION_MAX_US)
    bound = trigger.misfire_bound
    if type(bound) is not int or not 1 <= bound <= MISFIRE_BOUND_MAX:
        raise UserError(
            "INVALID_VALUE",
            f"{bound!r} is not a whole number from 1 to {MISFIRE_BOUND_MAX}",
            field="misfire_bound",
        )


def _text(field: str, value: object) -> None:
    # What Python hands in need not be what is declared.
    if not isinstance(value, str):
        raise UserError("INVALID_VALUE", f"{value!r} is not a text", field=field)


def _one_of(field: str, value: str, *, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(
            "INVALID_VALUE", f"{value!r} is not known", field=field, hint=f"one of {', '.join(allowed)}"
        )


def _instant(field: str, value_us: int) -> None:
    if not INSTANT_MIN_US <= value_us <= INSTANT_MAX_US:
        raise UserError("INVALID_INSTANT", f"{value_us} is outside the years 1 to 9999", field=field)


def trigger_id(namespace: str, task: str, trigger: Trigger) -> str:
    """16 hexadecimal characters that name the trigger's instants: part of the unique key of a fire (I8).

    Equal for specifications that fire at equal instants by their wording; misfire settings are not part of
    it, so that changing them neither repeats nor loses a fire.
    """
    if isinstance(trigger, CronTrigger):
        parts = [
            "cron",
            parse_cron(trigger.cron).text,
            trigger.timezone,
            trigger.dst_gap,
            trigger.dst_fold,
            str(trigger.spread_us),
        ]
    elif isinstance(trigger, IntervalTrigger):
        parts = ["every", str(trigger.every_us), "" if trigger.anchor_us is None else str(trigger.anchor_us)]
    else:
        parts = ["at", str(trigger.at_us)]
    return f"{stable_hash(namespace, task, *parts):016x}"


def next_fire(trigger: Trigger, after_us: int, *, created_us: int, spread_key: str) -> int | None:
    """First fire strictly after the instant `after_us`; None: no further run.

    `created_us` anchors an interval that has no anchor of its own; `spread_key` picks the offset of a spread.
    """
    if isinstance(trigger, CronTrigger):
        offset_us = spread_offset_us(trigger.spread_us, spread_key)
        fire_us = _next_cron_fire(
            trigger.cron, trigger.timezone, after_us - offset_us, trigger.dst_gap, trigger.dst_fold
        )
        return None if fire_us is None or fire_us + offset_us > INSTANT_MAX_US else fire_us + offset_us
    if isinstance(trigger, IntervalTrigger):
        anchor_us = created_us if trigger.anchor_us is None else trigger.anchor_us
        return next_interval_fire(trigger.every_us, anchor_us, after_us)
    return next_date_fire(trigger.at_us, after_us)


@lru_cache(maxsize=4096)
def _next_cron_fire(
    cron: str, timezone: str, after_us: int, dst_gap: DstGap, dst_fold: DstFold
) -> int | None:
    """Kept, since many tasks share an expression (every midnight), and those that do fire at once."""
    return next_cron_fire(parse_cron(cron), load_zone(timezone), after_us, dst_gap=dst_gap, dst_fold=dst_fold)


def describe_trigger(trigger: Trigger) -> str:
    """One line for people: ``cron 0 2 * * * Europe/Berlin``, ``every 5m``, ``at 2026-01-01T00:00:00Z``."""
    if isinstance(trigger, CronTrigger):
        words = ["cron", trigger.cron.strip(), trigger.timezone]
        if trigger.spread_us:
            words.append(f"spread {format_duration(trigger.spread_us)}")
        if trigger.dst_gap != "run_after":
            words.append(f"dst_gap {trigger.dst_gap}")
        if trigger.dst_fold != "first":
            words.append(f"dst_fold {trigger.dst_fold}")
        return " ".join(words)
    if isinstance(trigger, IntervalTrigger):
        anchor = "" if trigger.anchor_us is None else f" from {format_instant(trigger.anchor_us)}"
        return f"every {format_duration(trigger.every_us)}{anchor}"
    return f"at {format_instant(trigger.at_us)}"
