"""The Retry-After header in every form, and in forms that it must survive (C063)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.failure.retry_after import parse_retry_after
from ostinato.core.instants import DURATION_MAX_US, HOUR, SECOND, parse_instant

NOW_US = parse_instant("1994-11-06T08:49:07Z")


@pytest.mark.parametrize(
    ("value", "delay_us"),
    [
        ("120", 120 * SECOND),
        (" 120 ", 120 * SECOND),
        ("\t120\r\n", 120 * SECOND),
        ("0", 0),
        ("000", 0),
        ("0000000000000000000007", 7 * SECOND),
        ("86400", 24 * HOUR),
        ("99999999999999999999", DURATION_MAX_US),
        ("9" * 10_000, DURATION_MAX_US),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 30 * SECOND),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 30 * SECOND),
        ("Sun Nov  6 08:49:37 1994", 30 * SECOND),
        ("Sun, 06 Nov 1994 08:49:07 GMT", 0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0),
        ("Fri, 01 Jan 1960 00:00:00 GMT", 0),
        ("Sat, 31 Dec 9999 23:59:59 GMT", DURATION_MAX_US),
        # Two digits: 43 is 49 years ahead, 45 would be 51 ahead and so is the past.
        ("Friday, 06-Nov-43 08:49:37 GMT", 49 * 365 * 24 * HOUR + 12 * 24 * HOUR + 30 * SECOND),
        ("Monday, 06-Nov-45 08:49:37 GMT", 0),
        # A leap second, which datetime does not know.
        ("Sun, 06 Nov 1994 08:49:60 GMT", 53 * SECOND),
    ],
)
def test_c063_seconds_and_the_three_forms_of_a_date_are_read(value: str, delay_us: int) -> None:
    assert parse_retry_after(value, NOW_US) == delay_us


@pytest.mark.parametrize(
    "value",
    [
        *("-5", "+3", "1.5", "abc", "", "   ", "1e3", "0x10", "120 s", "120, 60", "٣", "1_000", "NaN"),
        "Sun, 30 Feb 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 25:00:00 GMT",
        "Sun, 06 Foo 1994 08:49:37 GMT",
        "Sun, 06 Nov 0000 08:49:37 GMT",
        "06 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 CET",
        "1994-11-06T08:49:37Z",
    ],
)
def test_c063_anything_else_is_ignored(value: str) -> None:
    assert parse_retry_after(value, NOW_US) is None


@given(
    st.text() | st.from_regex(r"[A-Za-z]{3,9},? \d\d[ -][A-Z][a-z]{2}[ -]\d{2,4} [\d:]{8} GMT"), st.integers()
)
def test_c063_no_value_raises_or_gives_a_negative_delay(value: str, now_us: int) -> None:
    delay_us = parse_retry_after(value, now_us)
    assert delay_us is None or 0 <= delay_us <= DURATION_MAX_US
