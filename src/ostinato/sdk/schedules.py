"""Triggers as users write them: ``cron("0 2 * * *", "Europe/Berlin")``, ``every("5m")``, ``at(…)``."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from ostinato.core.instants import from_datetime, parse_duration
from ostinato.core.schedule.cron_fires import DstFold, DstGap
from ostinato.core.schedule.trigger import CronTrigger, DateTrigger, IntervalTrigger, validate_trigger
from ostinato.sdk.retry import Duration

Misfire: TypeAlias = Literal["fire_once", "fire_all", "skip"]


def cron(
    expression: str,
    timezone: str = "UTC",
    *,
    misfire: Misfire = "fire_once",
    misfire_grace: Duration = "1h",
    misfire_bound: int = 100,
    dst_gap: DstGap = "run_after",
    dst_fold: DstFold = "first",
    spread: Duration = 0,
) -> CronTrigger:
    """Fires when the wall clock of `timezone` matches `expression` (5 or 6 fields, or ``@daily`` …).

    `spread` delays each fire by a stable offset below it. Raises ``INVALID_CRON``, ``INVALID_TIMEZONE``,
    ``INVALID_DURATION`` or ``INVALID_VALUE`` naming the field. Source: design section 5.
    """
    trigger = CronTrigger(
        cron=expression,
        timezone=timezone,
        misfire=misfire,
        misfire_grace_us=parse_duration(misfire_grace, field="misfire_grace"),
        misfire_bound=misfire_bound,
        dst_gap=dst_gap,
        dst_fold=dst_fold,
        spread_us=parse_duration(spread, field="spread"),
    )
    validate_trigger(trigger)
    return trigger


def every(
    interval: Duration,
    *,
    anchor: datetime | None = None,
    misfire: Misfire = "fire_once",
    misfire_grace: Duration = "1h",
    misfire_bound: int = 100,
) -> IntervalTrigger:
    """Fires on the grid `anchor`, `anchor` + `interval`, …; without an anchor from the task's creation on.

    Raises ``INVALID_DURATION``, ``INVALID_INSTANT`` or ``INVALID_VALUE`` naming the field.
    """
    trigger = IntervalTrigger(
        every_us=parse_duration(interval, field="every"),
        anchor_us=None if anchor is None else from_datetime(anchor, field="anchor"),
        misfire=misfire,
        misfire_grace_us=parse_duration(misfire_grace, field="misfire_grace"),
        misfire_bound=misfire_bound,
    )
    validate_trigger(trigger)
    return trigger


def at(
    moment: datetime,
    *,
    misfire: Misfire = "fire_once",
    misfire_grace: Duration = "1h",
) -> DateTrigger:
    """Fires once, at an aware datetime. Raises ``INVALID_INSTANT``, ``INVALID_DURATION``."""
    trigger = DateTrigger(
        at_us=from_datetime(moment, field="at"),
        misfire=misfire,
        misfire_grace_us=parse_duration(misfire_grace, field="misfire_grace"),
    )
    validate_trigger(trigger)
    return trigger
