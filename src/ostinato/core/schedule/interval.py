"""Interval schedules: a grid from an anchor, which no restart can shift."""

from __future__ import annotations

from ostinato.core.instants import INSTANT_MAX_US


def next_interval_fire(every_us: int, anchor_us: int, after_us: int) -> int | None:
    """First of anchor, anchor + every, anchor + 2·every, … strictly after `after_us`.

    Instants in UTC microseconds. An anchor in the future is itself the first fire. None past year 9999.
    """
    if after_us < anchor_us:
        fire_us = anchor_us
    else:
        fire_us = anchor_us + ((after_us - anchor_us) // every_us + 1) * every_us
    return fire_us if fire_us <= INSTANT_MAX_US else None


def interval_fire_count(every_us: int, *, first_us: int, last_us: int) -> int:
    """How many fires of the grid through `first_us` lie in [`first_us`, `last_us`]."""
    return 0 if last_us < first_us else (last_us - first_us) // every_us + 1
