"""The ``Retry-After`` header (RFC 9110, 10.2.3) as a delay in microseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from ostinato.core.instants import DURATION_MAX_US, INSTANT_MAX_US, INSTANT_MIN_US, SECOND, from_datetime

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = r"(?P<month>[a-z]{3})"
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_SHORT_DAY = "(?:mon|tue|wed|thu|fri|sat|sun)"
_LONG_DAY = "(?:monday|tuesday|wednesday|thursday|friday|saturday|sunday)"
#: The three forms of an HTTP-date (RFC 9110, 5.6.7): the preferred one, RFC 850's, and that of C's asctime().
_DATE_FORMS = tuple(
    re.compile(form, re.ASCII | re.IGNORECASE)
    for form in (
        rf"{_SHORT_DAY}, (?P<day>\d\d) {_MONTH} (?P<year>\d{{4}}) {_CLOCK} GMT",
        rf"{_LONG_DAY}, (?P<day>\d\d)-{_MONTH}-(?P<year>\d\d) {_CLOCK} GMT",
        rf"{_SHORT_DAY} {_MONTH} (?P<day>[ \d]\d) {_CLOCK} (?P<year>\d{{4}})",
    )
)
_SECONDS = re.compile(r"\d+", re.ASCII)
#: More digits than this are beyond any duration; converting thousands of them would raise.
_DIGITS_MAX = 12


def parse_retry_after(value: str, now_us: int) -> int | None:
    """Delay in µs from `now_us`, or None if the value is neither whole seconds nor an HTTP-date.

    Signs, fractions, junk, an empty value and two values joined by a comma are ignored (None), so that the
    policy's backoff applies. 0 and a date in the past are 0. A huge number is cut to 100 years, which the
    decision then refuses as too long. Never negative, never raises (C063).
    """
    text = value.strip(" \t\r\n")
    if _SECONDS.fullmatch(text):
        digits = text.lstrip("0") or "0"
        if len(digits) > _DIGITS_MAX:
            return DURATION_MAX_US
        return min(int(digits) * SECOND, DURATION_MAX_US)
    for form in _DATE_FORMS:
        found = form.fullmatch(text)
        if found is not None:
            date_us = _date_us(found, now_us)
            return None if date_us is None else min(max(date_us - now_us, 0), DURATION_MAX_US)
    return None


def _date_us(found: re.Match[str], now_us: int) -> int | None:
    month_name = found["month"].lower()
    if month_name not in _MONTHS:
        return None
    year = int(found["year"])
    if len(found["year"]) == 2:
        year = _full_year(year, now_us)
    # A leap second is written :60; datetime knows none, so it is the second after :59.
    second = int(found["second"])
    leap = second == 60
    try:
        moment = datetime(
            year,
            _MONTHS.index(month_name) + 1,
            int(found["day"]),
            int(found["hour"]),
            int(found["minute"]),
            59 if leap else second,
            tzinfo=UTC,
        )
    except ValueError:
        # No such day or time, as 30 Feb or 25:00: not a date, so it is ignored.
        return None
    return from_datetime(moment) + (SECOND if leap else 0)


def _full_year(two_digits: int, now_us: int) -> int:
    """The year with these last digits that is at most 50 years ahead of now (RFC 9110, 5.6.7)."""
    clamped_us = min(max(now_us, INSTANT_MIN_US), INSTANT_MAX_US)
    current = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=clamped_us)).year
    ahead = (two_digits - current) % 100
    return current + ahead if ahead <= 50 else current + ahead - 100
