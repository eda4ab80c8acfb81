"""One-off schedules: a single instant."""

from __future__ import annotations


def next_date_fire(at_us: int, after_us: int) -> int | None:
    """The instant if it is strictly after `after_us`, otherwise None: it has no further run."""
    return at_us if at_us > after_us else None
