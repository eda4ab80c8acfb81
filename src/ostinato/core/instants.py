"""Instants and durations: integer microseconds, how they are parsed and how they are shown.

An *instant* is microseconds since 1970-01-01T00:00Z (UTC, wall time). A *duration* is microseconds.
Both are plain ``int``; the unit is in the name (``due_us``, ``timeout_us``). Zones exist only at the edges.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from ostinato.errors import UserError

MICROSECOND = 1
MILLISECOND = 1_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

#: First and last instant that ``datetime`` can show.
INSTANT_MIN_US = int(datetime(1, 1, 1, tzinfo=UTC).timestamp()) * SECOND
INSTANT_MAX_US = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * SECOND + 999_999

#: Longest duration accepted anywhere (design section 11: hard ceiling of a retry delay).
DURATION_MAX_US = 365 * DAY * 100

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"us": MICROSECOND, "ms": MILLISECOND, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_PART = re.compile(r"(\d{1,15})(?:\.(\d{1,6}))?(us|ms|s|m|h|d)", re.ASCII)

#: Words that people write for the units.
_WORDS = (
    (("us", "µs", "usec", "usecs", "microsecond", "microseconds"), MICROSECOND),
    (("ms", "msec", "msecs", "milli", "millis", "millisecond", "milliseconds"), MILLISECOND),
    (("s", "sec", "secs", "second", "seconds"), SECOND),
    (("m", "min", "mins", "minute", "minutes"), MINUTE),
    (("h", "hr", "hrs", "hour", "hours"), HOUR),
    (("d", "day", "days"), DAY),
    (("w", "wk", "wks", "week", "weeks"), 7 * DAY),
)
_LOOSE_PART = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,6}))?\s*([a-zµ]{1,12})")
_LOOSE = re.compile(rf"(?:{_LOOSE_PART.pattern}(?:\s|,|and\b)*)+")


def from_datetime(moment: datetime, *, field: str = "instant") -> int:
    """Instant of an aware datetime, exact to the microsecond. Raises ``INVALID_INSTANT`` on any other."""
    if not isinstance(moment, datetime):
        raise UserError(
            "INVALID_INSTANT",
            f"{moment!r} is not an instant",
            field=field,
            hint="give an aware datetime, such as datetime(..., tzinfo=UTC)",
        )
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise UserError(
            "INVALID_INSTANT",
            f"{moment.isoformat()} has no UTC offset",
            field=field,
            hint="give an aware datetime, such as datetime(..., tzinfo=UTC)",
        )
    return (moment - _EPOCH) // timedelta(microseconds=1)


def to_datetime(instant_us: int) -> datetime:
    """Aware UTC datetime of an instant."""
    return _EPOCH + timedelta(microseconds=instant_us)


def format_instant(instant_us: int) -> str:
    """ISO 8601 in UTC with the fewest fraction digits, as ``2026-01-01T00:00:00Z``."""
    return to_datetime(instant_us).isoformat().replace("+00:00", "Z")


def parse_instant(text: str, *, field: str = "instant") -> int:
    """Instant of an ISO 8601 text with offset. Raises ``INVALID_INSTANT``."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UserError(
            "INVALID_INSTANT",
            f"{text!r} is not an ISO 8601 instant",
            field=field,
            hint="write it as 2026-01-31T18:00:00+01:00",
        ) from None
    if moment.tzinfo is None:
        raise UserError(
            "INVALID_INSTANT",
            f"{text!r} has no UTC offset",
            field=field,
            hint=f"write {moment.isoformat()}+01:00 for an offset of one hour, {moment.isoformat()}Z for UTC",
        )
    return from_datetime(moment, field=field)


def parse_duration(value: str | int | float | timedelta, *, field: str = "duration") -> int:
    """Duration in microseconds of ``"1h30m"``, a timedelta, or a number of seconds (SDK only).

    Never negative; at most 100 years. Raises ``INVALID_DURATION`` and names `field`.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float | timedelta):
        raise _bad_duration(value, field)
    if isinstance(value, timedelta):
        duration_us = value // timedelta(microseconds=1)
    elif isinstance(value, int):
        duration_us = value * SECOND
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise _bad_duration(value, field)
        duration_us = round(value * SECOND)
    else:
        duration_us = _parse_duration_text(value, field)
    if duration_us < 0:
        raise UserError("INVALID_DURATION", f"{value!r} is negative", field=field)
    if duration_us > DURATION_MAX_US:
        raise UserError("INVALID_DURATION", f"{value!r} is more than 100 years", field=field)
    return duration_us


def _parse_duration_text(text: str, field: str) -> int:
    compact = text.strip()
    total = position = 0
    previous_unit = DURATION_MAX_US
    for part in _PART.finditer(compact):
        unit = _UNITS[part[3]]
        if part.start() != position or unit >= previous_unit:
            raise _bad_duration(text, field)
        total += int(part[1]) * unit + int((part[2] or "0").ljust(6, "0")) * unit // 1_000_000
        position, previous_unit = part.end(), unit
    if position == 0 or position != len(compact):
        raise _bad_duration(text, field)
    return total


def _bad_duration(value: object, field: str) -> UserError:
    meant = _meant_duration(value) if isinstance(value, str) and len(value) <= 60 else ""
    return UserError(
        "INVALID_DURATION",
        f"{value!r} is not a duration",
        field=field,
        hint=meant or "write a number and a unit, largest first: 500ms, 30s, 5m, 1h30m, 7d",
    )


def _meant_duration(text: str) -> str:
    """How a duration with other words for its units, or in another order, is written; empty: not known."""
    said = text.strip().casefold()
    if said.isascii() and said.isdecimal():
        return f"write {int(said)}s for seconds" if len(said) <= 9 else ""
    if _LOOSE.fullmatch(said) is None:
        return ""
    total_us = 0
    for part in _LOOSE_PART.finditer(said):
        unit_us = next((unit for words, unit in _WORDS if part[3] in words), None)
        if unit_us is None:
            return ""
        total_us += int(part[1]) * unit_us + int((part[2] or "0").ljust(6, "0")) * unit_us // 1_000_000
    return f"write {format_duration(total_us)}" if total_us <= DURATION_MAX_US else ""


def validate_duration(field: str, duration_us: int, *, low_us: int, high_us: int) -> None:
    """Raise ``INVALID_DURATION`` unless `duration_us` is within `low_us` to `high_us`, both allowed."""
    if not low_us <= duration_us <= high_us:
        raise UserError(
            "INVALID_DURATION",
            f"{format_duration(duration_us)} is out of range",
            field=field,
            hint=f"from {format_duration(low_us)} to {format_duration(high_us)}",
        )


def format_duration(duration_us: int) -> str:
    """Shortest text that `parse_duration` reads back: ``0s``, ``500ms``, ``1h30m``."""
    if duration_us == 0:
        return "0s"
    if duration_us < 0:
        return "-" + format_duration(-duration_us)
    parts: list[str] = []
    rest = duration_us
    for name, unit in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", MILLISECOND), ("us", 1)):
        count, rest = divmod(rest, unit)
        if count:
            parts.append(f"{count}{name}")
    return "".join(parts)
