"""Cron expressions: five or six fields, or an ``@`` name, read into sets that the search can use at once.

The dialect is Debian's (Vixie) cron with the usual additions, see ``docs/schedules.md``:

* fields are minute, hour, day-of-month, month, day-of-week; six fields put seconds first;
* a *wildcard* job (its minute or hour field begins with ``*``) follows real time through clock changes,
  any other is a *fixed-time* job;
* if neither day field begins with ``*``, a day that matches either fires; otherwise it must match both;
* an expression that no date can ever match is refused here, never discovered by searching years.

Which days of a month match depends only on its length and on the weekday of its first day: 28 combinations,
computed once per pair of day fields. They answer both "when next?" and "ever?".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ostinato.core.schedule.cron_fields import (
    DAY_FIELD,
    HOUR_FIELD,
    MINUTE_FIELD,
    MONTH_FIELD,
    SECOND_FIELD,
    WEEKDAY_FIELD,
    MonthDays,
    WeekDays,
    read_month_days,
    read_values,
    read_week_days,
    shown,
)
from ostinato.errors import UserError

#: Longer than any expression with every value of every field listed.
TEXT_CHARACTERS_MAX = 1024

MACROS = {
    "@HOURLY": "0 * * * *",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@WEEKLY": "0 0 * * 0",
    "@MONTHLY": "0 0 1 * *",
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
}

_BLANKS = re.compile(r"[ \t]+")
_FIRST_LENGTH = 28
_EVERY_WEEKDAY = WeekDays(frozenset(range(7)))


@dataclass(frozen=True, slots=True)
class CronExpression:
    """A valid cron expression; at least one date of the calendar matches it.

    ``*_mask`` are sets as bits (bit n: value n is in the set). ``day_masks[month_shape(length, first)]`` are
    the matching days of a month with `length` days whose first day is weekday `first` (Sunday is 0).
    """

    #: Upper case, single blanks, ``@`` names written out: equal texts fire at equal instants.
    text: str
    has_seconds: bool
    #: Minute or hour begins with ``*``: follows real time through clock changes.
    is_wildcard: bool
    second_mask: int
    minute_mask: int
    hour_mask: int
    month_mask: int
    day_masks: tuple[int, ...]

    @property
    def seconds(self) -> frozenset[int]:
        """Matching seconds of a minute; only 0 where the expression has five fields."""
        return _members(self.second_mask)

    @property
    def minutes(self) -> frozenset[int]:
        """Matching minutes of an hour."""
        return _members(self.minute_mask)

    @property
    def hours(self) -> frozenset[int]:
        """Matching hours of a day."""
        return _members(self.hour_mask)

    @property
    def months(self) -> frozenset[int]:
        """Matching months, January being 1."""
        return _members(self.month_mask)

    def days(self, *, length: int, first_weekday: int) -> frozenset[int]:
        """Matching days of a month of `length` days that begins with `first_weekday` (Sunday is 0)."""
        return _members(self.day_masks[month_shape(length, first_weekday)])


def month_shape(length: int, first_weekday: int) -> int:
    """Index into ``day_masks``."""
    return (length - _FIRST_LENGTH) * 7 + first_weekday


@lru_cache(maxsize=16384)
def parse_cron(text: str, *, field: str = "cron") -> CronExpression:
    """Expression of `text`.

    Raises ``INVALID_CRON``, at once for any text. The error's ``field`` is ``second``, ``minute``, ``hour``,
    ``day-of-month``, ``month`` or ``day-of-week`` where one of them is wrong, otherwise `field`.
    """
    parts = _parts(text, field)
    has_seconds = len(parts) == 6
    second, minute, hour, day, month, weekday = parts if has_seconds else ["0", *parts]
    second_values = read_values(SECOND_FIELD, second)
    minute_values = read_values(MINUTE_FIELD, minute)
    hour_values = read_values(HOUR_FIELD, hour)
    month_days = read_month_days(day)
    months = read_values(MONTH_FIELD, month)
    week_days = read_week_days(weekday)
    both_must_match = day.startswith("*") or weekday.startswith("*")
    day_masks = _day_masks(month_days, week_days, both_must_match=both_must_match)
    if not _ever(months, day_masks):
        raise _impossible(text, month, months=months, month_days=month_days)
    return CronExpression(
        text=" ".join(parts),
        has_seconds=has_seconds,
        is_wildcard=minute.startswith("*") or hour.startswith("*"),
        second_mask=_mask(second_values),
        minute_mask=_mask(minute_values),
        hour_mask=_mask(hour_values),
        month_mask=_mask(months),
        day_masks=day_masks,
    )


def _parts(text: str, field: str) -> list[str]:
    if len(text) > TEXT_CHARACTERS_MAX:
        raise UserError(
            "INVALID_CRON", f"the expression has more than {TEXT_CHARACTERS_MAX} characters", field=field
        )
    trimmed = text.strip(" \t")
    if trimmed.startswith("@"):
        return _macro(trimmed, field).split(" ")
    # Upper case of ASCII only: 'ſ'.upper() is 'S', and such a letter must not become part of a name.
    parts = [part.upper() if part.isascii() else part for part in _BLANKS.split(trimmed)] if trimmed else []
    if len(parts) not in (5, 6):
        raise UserError(
            "INVALID_CRON",
            f"{shown(text)} has {len(parts)} {'field' if len(parts) == 1 else 'fields'} instead of five, "
            "or six with seconds first",
            field=field,
            hint="minute hour day-of-month month day-of-week, such as 30 2 * * MON-FRI",
        )
    return parts


def _macro(trimmed: str, field: str) -> str:
    name = trimmed.upper()
    if name in MACROS:
        return MACROS[name]
    reason = (
        "@reboot is not a schedule of instants" if name == "@REBOOT" else f"{shown(trimmed)} is not known"
    )
    known = ", ".join(macro.lower() for macro in MACROS)
    raise UserError("INVALID_CRON", reason, field=field, hint=f"known names are {known}")


def _mask(values: frozenset[int]) -> int:
    return sum(1 << value for value in values)


def _members(mask: int) -> frozenset[int]:
    return frozenset(value for value in range(mask.bit_length()) if mask >> value & 1)


@lru_cache(maxsize=4096)
def _day_masks(month_days: MonthDays, week_days: WeekDays, *, both_must_match: bool) -> tuple[int, ...]:
    masks: list[int] = []
    for length in range(_FIRST_LENGTH, 32):
        for first_weekday in range(7):
            by_date = _dates(month_days, length=length, first_weekday=first_weekday)
            by_weekday = _weekdays(week_days, length=length, first_weekday=first_weekday)
            masks.append(_mask(frozenset(by_date & by_weekday if both_must_match else by_date | by_weekday)))
    return tuple(masks)


def _dates(month_days: MonthDays, *, length: int, first_weekday: int) -> set[int]:
    found = {day for day in month_days.plain if day <= length}
    found.update(length - offset for offset in month_days.before_last if offset < length)
    # 30W in February names no day, so nothing fires there (it does not slide into another date).
    found.update(
        _nearest_workday(day, length=length, first_weekday=first_weekday)
        for day in month_days.nearest
        if day <= length
    )
    if month_days.last_workday:
        found.add(_nearest_workday(length, length=length, first_weekday=first_weekday))
    return found


def _nearest_workday(day: int, *, length: int, first_weekday: int) -> int:
    weekday = (first_weekday + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


def _weekdays(week_days: WeekDays, *, length: int, first_weekday: int) -> set[int]:
    found: set[int] = set()
    for day in range(1, length + 1):
        weekday = (first_weekday + day - 1) % 7
        if (
            weekday in week_days.plain
            or (weekday in week_days.last and day + 7 > length)
            or (weekday, (day + 6) // 7) in week_days.nth
        ):
            found.add(day)
    return found


def _lengths(month: int) -> tuple[int, ...]:
    if month == 2:
        return (28, 29)
    return (30,) if month in (4, 6, 9, 11) else (31,)


def _ever(months: frozenset[int], day_masks: tuple[int, ...]) -> bool:
    # Every month, and a February of either length, begins with each weekday in some year of the calendar.
    lengths = {length for month in months for length in _lengths(month)}
    return any(day_masks[month_shape(length, first)] for length in lengths for first in range(7))


def _impossible(text: str, month: str, *, months: frozenset[int], month_days: MonthDays) -> UserError:
    dates_alone = _day_masks(month_days, _EVERY_WEEKDAY, both_must_match=True)
    blamed = WEEKDAY_FIELD if _ever(months, dates_alone) else DAY_FIELD
    which = "months" if len(months) > 1 else "month"
    return UserError(
        "INVALID_CRON",
        f"no date ever matches the {blamed.name} field of {shown(text)} in {which} {shown(month)}",
        field=blamed.name,
        hint="no month that is named has such a day",
    )
