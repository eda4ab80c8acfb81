"""The next fire of a cron expression in a time zone.

The wall clock of a zone is a row of spans of constant offset. Within a span the search is on local seconds,
by month, day and time of day, in a handful of steps whatever the distance. Between spans the rules of Vixie
cron hold (design section 5):

* wildcard jobs fire at every instant whose wall-clock time matches: both passes of a fold, nothing for a gap;
* a fixed time that falls into a gap shorter than three hours fires in the first whole minute after it, each
  of its seconds once; a longer gap is a correction of the clock, for which nothing is made up;
* a fixed time in a fold fires in the first pass only, whoever asks and wherever the asker stands, so that a
  scheduler restarted in the second pass does not fire again.

Every step is on UTC seconds, so each fire is strictly later than the one before.
"""

from __future__ import annotations

from datetime import date
from typing import Literal
from zoneinfo import ZoneInfo

from ostinato.core.instants import SECOND
from ostinato.core.schedule.cron_expression import CronExpression, month_shape
from ostinato.core.schedule.zone import DAY_S, UTC_MAX_S, UTC_MIN_S, Span, span_at

#: Fixed times that a gap skips: fire right after it, or not at all.
DstGap = Literal["run_after", "skip"]
#: Fixed times that a fold repeats: fire in the first pass, the second, or both.
DstFold = Literal["first", "second", "both"]

DST_GAPS: tuple[DstGap, ...] = ("run_after", "skip")
DST_FOLDS: tuple[DstFold, ...] = ("first", "second", "both")

#: From here on a forward jump is a correction of the clock (Debian cron(8)).
CORRECTION_S = 3 * 3600

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_DAY_MIN = date.min.toordinal() - _EPOCH_ORDINAL
_DAY_MAX = date.max.toordinal() - _EPOCH_ORDINAL
_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def next_cron_fire(
    expression: CronExpression,
    zone: ZoneInfo,
    after_us: int,
    *,
    dst_gap: DstGap = "run_after",
    dst_fold: DstFold = "first",
) -> int | None:
    """First fire strictly after the instant `after_us`, or None when the calendar (year 9999) ends before it.

    `dst_gap` and `dst_fold` concern fixed-time jobs only.
    """
    utc_s = max(after_us // SECOND + 1, UTC_MIN_S)
    while utc_s <= UTC_MAX_S:
        span = span_at(zone, utc_s)
        offset_s = span.offset_s
        from_s = utc_s + offset_s
        until_s = span.end_s + offset_s
        made_up_s = None
        if not expression.is_wildcard:
            if dst_fold == "first":
                from_s = max(from_s, span.seen_until_s)
            elif dst_fold == "second":
                until_s = min(until_s, span.again_from_s)
            if dst_gap == "run_after" and 0 < span.jump_s < CORRECTION_S:
                made_up_s = _made_up_fire(expression, span, utc_s=utc_s)
        local_s = next_local_match(expression, from_s)
        fire_s = local_s - offset_s if local_s is not None and local_s < until_s else None
        if made_up_s is not None and (fire_s is None or made_up_s < fire_s):
            fire_s = made_up_s
        if fire_s is not None:
            return fire_s * SECOND if fire_s <= UTC_MAX_S else None
        if local_s is None:
            return None
        # Nothing matches before `local_s`, so neither can a change that lies clearly before it matter.
        utc_s = max(span.end_s, local_s - 2 * DAY_S)
    return None


def _made_up_fire(expression: CronExpression, span: Span, *, utc_s: int) -> int | None:
    """First fire at or after `utc_s` that stands for a time in the gap before `span`."""
    gap_end_s = span.start_s + span.offset_s
    minute_s = -(-gap_end_s // 60) * 60
    earliest = max(0, utc_s + span.offset_s - minute_s)
    if earliest > 59:
        return None
    skipped_mask = 0
    local_s = next_local_match(expression, span.seen_until_s)
    while local_s is not None and local_s < gap_end_s and skipped_mask != expression.second_mask:
        skipped_mask |= 1 << local_s % 60
        local_s = next_local_match(expression, local_s + 1)
    rest = skipped_mask >> earliest
    return minute_s + earliest + _lowest(rest) - span.offset_s if rest else None


def next_local_match(expression: CronExpression, local_s: int) -> int | None:
    """First local second at or after `local_s` that the expression matches, gaps and folds disregarded."""
    day_number, time_s = divmod(local_s, DAY_S)
    if day_number < _DAY_MIN:
        day_number, time_s = _DAY_MIN, 0
    if day_number > _DAY_MAX:
        return None
    first = date.fromordinal(day_number + _EPOCH_ORDINAL)
    year, month, day = first.year, first.month, first.day
    length = _month_length(year, month)
    month_begins = day_number - day + 1
    if expression.month_mask >> month & 1:
        days = expression.day_masks[month_shape(length, (month_begins + 4) % 7)]
        if days >> day & 1:
            time_match_s = _time_match(expression, time_s)
            if time_match_s is not None:
                return day_number * DAY_S + time_match_s
        rest = days >> (day + 1)
        if rest:
            return (day_number + 1 + _lowest(rest)) * DAY_S + _first_time(expression)
    while True:
        month_begins += length
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
        if year > date.max.year:
            return None
        length = _month_length(year, month)
        if not expression.month_mask >> month & 1:
            continue
        days = expression.day_masks[month_shape(length, (month_begins + 4) % 7)]
        if days:
            return (month_begins + _lowest(days) - 1) * DAY_S + _first_time(expression)


def _time_match(expression: CronExpression, time_s: int) -> int | None:
    """First matching second of the day at or after `time_s`."""
    hour, rest_s = divmod(time_s, 3600)
    minute, second = divmod(rest_s, 60)
    if expression.hour_mask >> hour & 1:
        if expression.minute_mask >> minute & 1:
            seconds = expression.second_mask >> second
            if seconds:
                return time_s + _lowest(seconds)
        minutes = expression.minute_mask >> (minute + 1)
        if minutes:
            return hour * 3600 + (minute + 1 + _lowest(minutes)) * 60 + _lowest(expression.second_mask)
    hours = expression.hour_mask >> (hour + 1)
    if not hours:
        return None
    return (
        (hour + 1 + _lowest(hours)) * 3600
        + _lowest(expression.minute_mask) * 60
        + _lowest(expression.second_mask)
    )


def _first_time(expression: CronExpression) -> int:
    return (
        _lowest(expression.hour_mask) * 3600
        + _lowest(expression.minute_mask) * 60
        + _lowest(expression.second_mask)
    )


def _month_length(year: int, month: int) -> int:
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        return 29
    return _LENGTHS[month]


def _lowest(mask: int) -> int:
    """Number of the lowest bit that is set."""
    return (mask & -mask).bit_length() - 1
