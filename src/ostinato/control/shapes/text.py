"""Instants and durations as texts of the shapes."""

from __future__ import annotations

from ostinato.core.instants import format_duration, format_instant


def instant(instant_us: int | None) -> str | None:
    """ISO 8601 in UTC with microseconds; None stays None."""
    return None if instant_us is None else format_instant(instant_us)


def duration(duration_us: int | None) -> str:
    """A number with its unit; ``none`` for no limit."""
    return "none" if duration_us is None else format_duration(duration_us)
