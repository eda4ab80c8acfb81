"""The delay before retry n: exact at any n, capped, never negative (C049, C051)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.instants import DAY, MILLISECOND, MINUTE, SECOND
from ostinato.core.retry.backoff import backoff_delay
from ostinato.core.retry.lost import lost_delay_us, uncounted_delay_us
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.retry.policy_model import DELAY_MAX_US


def delays(policy: RetryPolicy, count: int) -> list[float]:
    return [backoff_delay(policy, number).delay_us / SECOND for number in range(1, count + 1)]


def test_exponential_waits_5_10_20() -> None:
    assert delays(RetryPolicy(interval_us=5 * SECOND), 4) == [5, 10, 20, 40]


def test_c051_the_exponent_is_taken_of_the_multiplier_alone() -> None:
    assert delays(RetryPolicy(interval_us=300 * SECOND), 3) == [300, 600, 1200]


def test_fixed_waits_the_same() -> None:
    assert delays(RetryPolicy(backoff="fixed", interval_us=30 * SECOND), 3) == [30, 30, 30]


def test_linear_waits_multiples() -> None:
    assert delays(RetryPolicy(backoff="linear", interval_us=30 * SECOND), 3) == [30, 60, 90]


def test_a_list_of_delays_repeats_its_last() -> None:
    policy = RetryPolicy(backoff="delays", delays_us=(SECOND, 0, 10 * SECOND))
    assert delays(policy, 5) == [1, 0, 10, 10, 10]


def test_zero_is_zero_not_unset() -> None:
    assert delays(RetryPolicy(interval_us=0), 3) == [0, 0, 0]
    assert delays(RetryPolicy(max_interval_us=0), 3) == [0, 0, 0]
    assert delays(RetryPolicy(backoff="fixed", interval_us=0), 2) == [0, 0]


def test_max_interval_caps_and_says_so() -> None:
    policy = RetryPolicy(interval_us=5 * SECOND, max_interval_us=15 * SECOND)
    assert delays(policy, 4) == [5, 10, 15, 15]
    assert backoff_delay(policy, 2).limited_by == ""
    assert backoff_delay(policy, 3).limited_by == "capped by max_interval"


@pytest.mark.parametrize("number", [19, 2000, 10**6, 10**18])
def test_c049_without_a_cap_a_delay_stops_at_a_year(number: int) -> None:
    delay = backoff_delay(RetryPolicy(interval_us=300 * SECOND), number)
    assert delay == (365 * DAY, "the longest delay there is")
    assert backoff_delay(RetryPolicy(backoff="linear", interval_us=DAY), 2000).delay_us == DELAY_MAX_US


def test_a_multiplier_means_the_decimal_that_was_written() -> None:
    policy = RetryPolicy(interval_us=10 * SECOND, multiplier=1.1)
    assert [backoff_delay(policy, number).delay_us for number in (1, 2, 3, 4)] == [
        10_000_000,
        11_000_000,
        12_100_000,
        13_310_000,
    ]


@given(
    st.integers(0, DELAY_MAX_US),
    st.floats(1, 100).map(lambda value: round(value, 4)),
    st.integers(1, 300),
)
def test_exponential_is_exact_to_the_microsecond(interval_us: int, multiplier: float, number: int) -> None:
    policy = RetryPolicy(interval_us=interval_us, multiplier=multiplier)
    exact = interval_us * Fraction(repr(multiplier)) ** (number - 1)
    expected = DELAY_MAX_US if exact > DELAY_MAX_US else round(exact)
    assert backoff_delay(policy, number).delay_us == expected


@given(st.sampled_from(["fixed", "linear", "exponential"]), st.integers(0, DELAY_MAX_US), st.floats(1, 1e300))
def test_delays_never_shrink_with_n(backoff: str, interval_us: int, multiplier: float) -> None:
    policy = RetryPolicy(backoff=backoff, interval_us=interval_us, multiplier=multiplier)  # type: ignore[arg-type]  # a sampled literal
    got = [backoff_delay(policy, number).delay_us for number in (1, 2, 3, 10, 1000, 10**12)]
    assert got == sorted(got)
    assert 0 <= got[0] <= got[-1] <= DELAY_MAX_US


def test_a_lost_attempt_waits_0_1_2_4_up_to_a_minute() -> None:
    waits = [lost_delay_us(count) / SECOND for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10**9)]
    assert waits == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_refusals_and_hand_backs_slow_down_after_a_hundred() -> None:
    assert [uncounted_delay_us(count) // SECOND for count in (1, 100, 101, 10**9)] == [0, 0, 30, 30]


def test_small_intervals_survive() -> None:
    policy = RetryPolicy(interval_us=100 * MILLISECOND, max_interval_us=MINUTE)
    assert backoff_delay(policy, 1).delay_us == 100 * MILLISECOND
