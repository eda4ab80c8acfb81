"""What the parser accepts, what it makes of it, and how it refuses the rest."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.core.schedule.cron_expression import MACROS, parse_cron
from ostinato.errors import UserError

FIELDS = {"cron", "second", "minute", "hour", "day-of-month", "month", "day-of-week"}


@pytest.mark.parametrize(
    ("minute", "expected"),
    [
        ("*", set(range(60))),
        ("*/15", {0, 15, 30, 45}),
        ("5/15", {5, 20, 35, 50}),
        ("59/2", {59}),
        ("*/40", {0, 40}),
        ("*/90", {0}),
        ("1-10/3", {1, 4, 7, 10}),
        ("7,3,3", {3, 7}),
        ("05", {5}),
        ("10-10", {10}),
        ("0-5,*/30", {0, 1, 2, 3, 4, 5, 30}),
    ],
)
def test_plain_items_mean_what_cron_means(minute: str, expected: set[int]) -> None:
    assert parse_cron(f"{minute} 0 * * *").minutes == expected


@pytest.mark.parametrize(
    ("weekday", "expected"),
    [
        ("0", {0}),
        ("7", {0}),
        ("0-7", {0, 1, 2, 3, 4, 5, 6}),
        ("0-7/2", {0, 2, 4, 6}),
        ("1-7/2", {0, 1, 3, 5}),
        ("*/7", {0}),
        ("*/2", {0, 2, 4, 6}),
        ("1/2", {0, 1, 3, 5}),
        ("5-7", {0, 5, 6}),
        ("sat-sun", {0, 6}),
        ("Mon-SUN", {0, 1, 2, 3, 4, 5, 6}),
        ("sun-tue", {0, 1, 2}),
        ("sun", {0}),
        ("MON,wed,Fri", {1, 3, 5}),
    ],
)
def test_weekdays_run_from_sunday_as_0_to_sunday_as_7(weekday: str, expected: set[int]) -> None:
    # A month of 28 days that begins with a Sunday: day 1 is Sunday, day 2 Monday, …
    days = parse_cron(f"0 0 * * {weekday}").days(length=28, first_weekday=0)
    assert {(day - 1) % 7 for day in days} == expected


@pytest.mark.parametrize(
    ("month", "expected"),
    [
        ("jan-MAR/2", {1, 3}),
        ("Dec", {12}),
        ("*/5", {1, 6, 11}),
        ("2/4", {2, 6, 10}),
        ("11-12,1", {1, 11, 12}),
    ],
)
def test_months_have_names_in_any_case(month: str, expected: set[int]) -> None:
    assert parse_cron(f"0 0 1 {month} *").months == expected


@pytest.mark.parametrize(
    ("day", "length", "first_weekday", "expected"),
    [
        ("L", 28, 0, {28}),
        ("L", 31, 3, {31}),
        ("l-3", 30, 0, {27}),
        ("L-30", 31, 0, {1}),
        ("L-30", 30, 0, set()),
        ("LW", 31, 4, {30}),  # begins on Thursday, so the 31st is a Saturday
        ("LW", 28, 1, {26}),  # begins on Monday, so the 28th is a Sunday
        ("15W", 30, 0, {16}),  # begins on Sunday, so the 15th is a Sunday
        ("15W", 30, 6, {14}),  # the 15th is a Saturday
        ("15w", 30, 3, {15}),
        ("1W", 30, 6, {3}),  # the 1st is a Saturday: not into the month before
        ("1W", 30, 0, {2}),
        ("30W", 30, 6, {28}),  # the 30th is a Sunday and the last day: not into the month after
        ("31W", 30, 0, set()),
        ("1,L", 30, 0, {1, 30}),
        ("LW,15W,10-12", 30, 0, {10, 11, 12, 16, 30}),
    ],
)
def test_day_of_month_specials_stay_in_their_month(
    day: str, length: int, first_weekday: int, expected: set[int]
) -> None:
    assert parse_cron(f"0 0 {day} * *").days(length=length, first_weekday=first_weekday) == expected


@pytest.mark.parametrize(
    ("weekday", "expected"),
    [
        ("5L", {27}),  # begins on Sunday: Fridays are 6, 13, 20, 27
        ("fril", {27}),
        ("0L", {29}),
        ("7L", {29}),
        ("5#3", {20}),
        ("FRI#1", {6}),
        ("7#5", {29}),
        ("5#5", set()),
        ("5#3,1", {2, 9, 16, 20, 23, 30}),
        ("1#1,3#2", {2, 11}),
        ("5L,1-2", {2, 3, 9, 10, 16, 17, 23, 24, 27, 30}),
    ],
)
def test_weekday_specials_restrict(weekday: str, expected: set[int]) -> None:
    assert parse_cron(f"0 0 * * {weekday}").days(length=30, first_weekday=0) == expected


@pytest.mark.parametrize(
    ("day", "weekday", "expected"),
    [
        ("13", "5", {6, 13, 20, 27}),
        ("*/2", "1", {9, 23}),
        ("1-30", "1", set(range(1, 31))),
        ("13", "*/5", {13}),
        ("14", "*/5", set()),
        ("13", "*", {13}),
        ("*", "1", {2, 9, 16, 23, 30}),
        ("15W", "5#1", {6, 16}),
    ],
)
def test_c017_days_combine_by_or_unless_a_day_field_begins_with_a_star(
    day: str, weekday: str, expected: set[int]
) -> None:
    # Begins on Sunday, so the 13th is a Friday; `*/5` is Sunday and Friday.
    expression = parse_cron(f"0 0 {day} * {weekday}")
    assert expression.days(length=30, first_weekday=0) == expected


@pytest.mark.parametrize(
    ("text", "wildcard"),
    [
        ("* * * * *", True),
        ("*/15 2 * * *", True),
        ("0 */2 * * *", True),
        ("*,5 2 * * *", True),
        ("@hourly", True),
        ("0 * * * *", True),
        ("0 0-23 * * *", False),
        ("0-59 2 * * *", False),
        ("30 2 * * *", False),
        ("@daily", False),
        ("* 30 2 * * *", False),
        ("0 * 2 * * *", True),
    ],
)
def test_a_star_at_the_head_of_minute_or_hour_makes_a_wildcard_job(text: str, wildcard: bool) -> None:
    assert parse_cron(text).is_wildcard is wildcard


def test_six_fields_put_seconds_first() -> None:
    expression = parse_cron("*/20 30 4 * * *")
    assert expression.has_seconds
    assert expression.seconds == {0, 20, 40}
    assert expression.minutes == {30}
    assert expression.hours == {4}
    assert parse_cron("30 4 * * *").seconds == {0}


@pytest.mark.parametrize("name", sorted(MACROS))
def test_at_names_equal_their_fields(name: str) -> None:
    assert parse_cron(name.lower()) == parse_cron(MACROS[name])


def test_texts_that_differ_in_blanks_and_case_are_one_expression() -> None:
    assert parse_cron(" \t0 0\t*  jan Mon ") == parse_cron("0 0 * JAN MON")


@pytest.mark.parametrize(
    "text",
    [
        "0 0 30 2,3 *",
        "0 0 31 2 1",
        "0 0 29 2 *",
        "0 0 29 2 */7",
        "0 0 */7 2 5#5",
        "0 0 L-28 2 *",
        "0 0 29W 2 *",
        "0 0 31 2 5#5",
    ],
)
def test_c015_rare_dates_are_accepted(text: str) -> None:
    assert parse_cron(text).text == text


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("0 0 31 2 *", "day-of-month"),
        ("0 0 30 2 *", "day-of-month"),
        ("0 0 31 4,6,9,11 *", "day-of-month"),
        ("0 0 30W 2 *", "day-of-month"),
        ("0 0 L-29 2 *", "day-of-month"),
        ("0 0 31 feb */2", "day-of-month"),
        ("0 0 */3 2 5#5", "day-of-week"),
        ("0 0 0 30 2 *", "day-of-month"),
    ],
)
def test_c015_impossible_dates_are_refused_at_once(text: str, field: str) -> None:
    began = time.perf_counter()
    with pytest.raises(UserError) as caught:
        parse_cron(text)
    assert time.perf_counter() - began < 0.05
    assert (caught.value.code, caught.value.field) == ("INVALID_CRON", field)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "cron"),
        (" ", "cron"),
        ("* * * *", "cron"),
        ("* * * * * * *", "cron"),
        ("*" * 1025, "cron"),
        ("@reboot", "cron"),
        ("@every 5m", "cron"),
        ("@", "cron"),
        ("@dailyx", "cron"),
        ("@daily *", "cron"),
        ("60 * * * *", "minute"),
        ("-1 * * * *", "minute"),
        ("+5 * * * *", "minute"),
        ("1.5 * * * *", "minute"),
        ("1e1 * * * *", "minute"),
        ("0x5 * * * *", "minute"),
        ("1_0 * * * *", "minute"),
        ("٣ * * * *", "minute"),
        ("５ * * * *", "minute"),  # noqa: RUF001 - a digit of full width is the point
        ("²  * * * *", "minute"),
        ("99999999999999999999 * * * *", "minute"),
        ("9" * 1000 + " * * * *", "minute"),
        ("*/0 * * * *", "minute"),
        ("*/-5 * * * *", "minute"),
        ("*/ * * * *", "minute"),
        ("/5 * * * *", "minute"),
        ("*/7/2 * * * *", "minute"),
        ("** * * * *", "minute"),
        ("*5 * * * *", "minute"),
        ("*-5 * * * *", "minute"),
        ("1-* * * * *", "minute"),
        ("1--5 * * * *", "minute"),
        ("1-2-3 * * * *", "minute"),
        ("1, * * * *", "minute"),
        (",1 * * * *", "minute"),
        ("1,,2 * * * *", "minute"),
        ("MON * * * *", "minute"),
        ("L * * * *", "minute"),
        ("5\x00 * * * *", "minute"),
        ("0 24 * * *", "hour"),
        ("0 22-2 * * *", "hour"),
        ("0 0\n * * *", "hour"),
        ("0 0 \u00a01 * *", "day-of-month"),
        ("0 0 0 * *", "day-of-month"),
        ("0 0 32 * *", "day-of-month"),
        ("0 0 W * *", "day-of-month"),
        ("0 0 32W * *", "day-of-month"),
        ("0 0 1-15W * *", "day-of-month"),
        ("0 0 L/2 * *", "day-of-month"),
        ("0 0 LL * *", "day-of-month"),
        ("0 0 WL * *", "day-of-month"),
        ("0 0 L-0 * *", "day-of-month"),
        ("0 0 L-31 * *", "day-of-month"),
        ("0 0 1#2 * *", "day-of-month"),
        ("0 0 ? * *", "day-of-month"),
        ("0 0 * 0 *", "month"),
        ("0 0 * 13 *", "month"),
        ("0 0 * FOO *", "month"),
        ("0 0 * JANUARY *", "month"),
        ("0 0 * NOV-FEB *", "month"),
        ("0 0 * * 8", "day-of-week"),
        ("0 0 * * L", "day-of-week"),
        ("0 0 * * 8L", "day-of-week"),
        ("0 0 * * L5", "day-of-week"),
        ("0 0 * * 1#0", "day-of-week"),
        ("0 0 * * 1#6", "day-of-week"),
        ("0 0 * * 1#1#2", "day-of-week"),
        ("0 0 * * 1-5#2", "day-of-week"),
        ("0 0 * * #2", "day-of-week"),
        ("0 0 * * 1#", "day-of-week"),
        ("0 0 * * FRI-MON", "day-of-week"),
        ("0 0 * * ſun", "day-of-week"),  # noqa: RUF001 - the upper case of the long s is S
        ("60 0 0 * * *", "second"),
        ("x 0 0 * * *", "second"),
    ],
)
def test_wrong_texts_are_refused_with_the_field_named(text: str, field: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_cron(text)
    assert (caught.value.code, caught.value.field) == ("INVALID_CRON", field)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "proposal"),
    [
        ("0 22-2 * * *", "22-23,0-2"),
        ("0 23-0 * * *", "23,0"),
        ("0 0 * NOV-FEB *", "NOV-DEC,JAN-FEB"),
        ("0 0 * * FRI-MON", "FRI-SAT,SUN-MON"),
        ("0 0 * * 6-0", "6-7,0"),
    ],
)
def test_inverted_ranges_are_refused_with_the_right_spelling(text: str, proposal: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_cron(text)
    assert caught.value.hint == f"write {proposal}"
    parts = text.split()
    position = next(index for index, part in enumerate(parts) if "-" in part)
    parts[position] = proposal
    assert parse_cron(" ".join(parts))


def test_the_callers_field_is_named_when_no_single_field_is_wrong() -> None:
    with pytest.raises(UserError) as caught:
        parse_cron("nonsense", field="schedule")
    assert caught.value.field == "schedule"


@given(st.one_of(st.text(max_size=60), st.text(alphabet="0123456789*/-,#LW? MONJAN@\t\n", max_size=40)))
@settings(max_examples=400, deadline=None)
def test_any_text_is_an_expression_or_a_user_error(text: str) -> None:
    refusal = None
    try:
        expression = parse_cron(text)
    except UserError as error:
        refusal = error
    if refusal is not None:
        assert refusal.code == "INVALID_CRON"
        assert refusal.field in FIELDS
        return
    assert expression.minute_mask
    assert expression.hour_mask
    assert expression.month_mask
    assert any(expression.day_masks)
