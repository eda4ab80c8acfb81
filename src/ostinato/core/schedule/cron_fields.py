"""The fields of a cron expression: which values each may hold and how one is read into a set.

One grammar for every field: a list of items, an item being ``*``, ``N``, ``N-M``, each with an optional
``/step``. The two day fields add items of their own (``L``, ``LW``, ``15W``, ``5L``, ``5#3``), which are
relative to a month and so kept apart from the plain values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ostinato.errors import UserError

_NUMBER = re.compile(r"[0-9]{1,4}", re.ASCII)
_RANGE = re.compile(r"([0-9A-Z]+)-([0-9A-Z]+)", re.ASCII)
_LAST_OFFSET = re.compile(r"L-([0-9]{1,4})", re.ASCII)
_NEAREST = re.compile(r"([0-9]{1,4})W", re.ASCII)
_LAST_WEEKDAY = re.compile(r"([0-9]{1,4}|[A-Z]{3})L", re.ASCII)
_NTH_WEEKDAY = re.compile(r"([0-9A-Z]+)#([0-9]{1,4})", re.ASCII)
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class CronField:
    """What one field of an expression may hold."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    def refusal(self, text: str, reason: str, *, hint: str = "") -> UserError:
        """The error that names this field."""
        return UserError(
            "INVALID_CRON", f"{reason} in the {self.name} field {shown(text)}", field=self.name, hint=hint
        )


SECOND_FIELD = CronField("second", 0, 59)
MINUTE_FIELD = CronField("minute", 0, 59)
HOUR_FIELD = CronField("hour", 0, 23)
DAY_FIELD = CronField("day-of-month", 1, 31)
MONTH_FIELD = CronField(
    "month", 1, 12, ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
)
#: 0 and 7 are both Sunday; ``*`` and an open ``N/step`` run to 7, as in Vixie cron.
WEEKDAY_FIELD = CronField("day-of-week", 0, 7, ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))


@dataclass(frozen=True, slots=True)
class MonthDays:
    """Days of a day-of-month field: plain ones, and those that depend on the month."""

    plain: frozenset[int]
    #: Days before the last day: ``L`` is 0, ``L-3`` is 3.
    before_last: frozenset[int] = frozenset()
    #: ``15W``: the weekday (Monday to Friday) nearest to the 15th within its month.
    nearest: frozenset[int] = frozenset()
    #: ``LW``: the last weekday (Monday to Friday) of the month.
    last_workday: bool = False


@dataclass(frozen=True, slots=True)
class WeekDays:
    """Days of a day-of-week field, Sunday being 0."""

    plain: frozenset[int]
    #: ``5L``: the last Friday of the month.
    last: frozenset[int] = frozenset()
    #: ``5#3``: the third Friday of the month.
    nth: frozenset[tuple[int, int]] = frozenset()


def shown(text: str) -> str:
    """Foreign text as an error message quotes it: escaped and cut."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")


def read_values(field: CronField, text: str) -> frozenset[int]:
    """Values of a field that has plain items only. Raises ``INVALID_CRON``."""
    values: set[int] = set()
    for item in _items(field, text):
        values.update(_plain_item(field, item, whole=text))
    return frozenset(values)


def read_month_days(text: str) -> MonthDays:
    """Day-of-month field. Raises ``INVALID_CRON``."""
    plain: set[int] = set()
    before_last: set[int] = set()
    nearest: set[int] = set()
    last_workday = False
    for item in _items(DAY_FIELD, text):
        if item == "L":
            before_last.add(0)
        elif item == "LW":
            last_workday = True
        elif match := _LAST_OFFSET.fullmatch(item):
            offset = int(match[1])
            if not 1 <= offset <= 30:
                raise DAY_FIELD.refusal(text, f"{item} is not within L-1 to L-30")
            before_last.add(offset)
        elif match := _NEAREST.fullmatch(item):
            nearest.add(_value(DAY_FIELD, match[1], whole=text))
        else:
            plain.update(_plain_item(DAY_FIELD, item, whole=text))
    return MonthDays(frozenset(plain), frozenset(before_last), frozenset(nearest), last_workday)


def read_week_days(text: str) -> WeekDays:
    """Day-of-week field. Raises ``INVALID_CRON``."""
    plain: set[int] = set()
    last: set[int] = set()
    nth: set[tuple[int, int]] = set()
    for item in _items(WEEKDAY_FIELD, text):
        if item == "L":
            raise WEEKDAY_FIELD.refusal(text, "L needs a weekday", hint="the last Friday is 5L or FRIL")
        if match := _LAST_WEEKDAY.fullmatch(item):
            last.add(_value(WEEKDAY_FIELD, match[1], whole=text) % 7)
        elif match := _NTH_WEEKDAY.fullmatch(item):
            number = int(match[2])
            if not 1 <= number <= 5:
                raise WEEKDAY_FIELD.refusal(text, f"#{number} is not within #1 to #5")
            nth.add((_value(WEEKDAY_FIELD, match[1], whole=text) % 7, number))
        else:
            plain.update(value % 7 for value in _plain_item(WEEKDAY_FIELD, item, whole=text))
    return WeekDays(frozenset(plain), frozenset(last), frozenset(nth))


def _items(field: CronField, text: str) -> list[str]:
    if not text.isascii() or not text.isprintable():
        raise field.refusal(text, "a character that cron does not know")
    items = text.split(",")
    if "" in items:
        raise field.refusal(text, "an empty item")
    return items


def _plain_item(field: CronField, item: str, *, whole: str) -> range:
    base, slash, step_text = item.partition("/")
    step = _step(field, step_text, whole=whole) if slash else 1
    if base == "*":
        return range(field.low, field.high + 1, step)
    if match := _RANGE.fullmatch(base):
        low = _value(field, match[1], whole=whole)
        high = _value(field, match[2], whole=whole)
        if field is WEEKDAY_FIELD and match[2] == "SUN" and low > 0:
            high = 7  # SAT-SUN ends with the Sunday that follows, not with the one before
        if low > high:
            raise _inverted(field, base, whole=whole, step_text=step_text)
        return range(low, high + 1, step)
    value = _value(field, base, whole=whole)
    return range(value, (field.high if slash else value) + 1, step)


def _inverted(field: CronField, base: str, *, whole: str, step_text: str) -> UserError:
    first, last = base.split("-")
    highest = field.names[-1] if field.names and not first.isdigit() else str(field.high)
    lowest = field.names[0] if field.names and not last.isdigit() else str(field.low)
    head = first if first == highest else f"{first}-{highest}"
    tail = last if last == lowest else f"{lowest}-{last}"
    # With a step the two halves would not continue one another, so there is nothing exact to propose.
    hint = "" if step_text else f"write {head},{tail}"
    return field.refusal(whole, f"the range {base} runs backwards", hint=hint)


def _step(field: CronField, text: str, *, whole: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise field.refusal(whole, f"the step {shown(text)} is not a number of at most four digits")
    if int(text) == 0:
        raise field.refusal(whole, "the step is 0")
    return int(text)


def _value(field: CronField, text: str, *, whole: str) -> int:
    if text in field.names:
        return field.names.index(text) + (1 if field is MONTH_FIELD else 0)
    if text.isdigit():
        number = int(text) if len(text) <= 4 else field.high + 1
        if not field.low <= number <= field.high:
            raise field.refusal(whole, f"{shown(text)} is not within {field.low} to {field.high}")
        return number
    if "?" in text:
        raise field.refusal(whole, "? is not known", hint="write * for any")
    raise field.refusal(whole, f"{shown(text)} is not a value")
