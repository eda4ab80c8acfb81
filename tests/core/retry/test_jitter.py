"""Jitter by its distribution, not only its bounds: 20,000 draws each against the law they follow."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.retry.jitter import added_jitter_us, jittered_delay_us
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.retry.policy_model import JITTERS

DRAWS = 20_000
#: Kolmogorov–Smirnov: a wrong law of these shapes is off by 0.05 and more; the right one passes this
#: bound in all but about one of 10⁶ seeds, and the seeds here are fixed.
KS_MAX = 2.7 / math.sqrt(DRAWS)


def policy_of(jitter: str, *, factor: float = 0.0, interval_us: int = 5 * SECOND) -> RetryPolicy:
    return RetryPolicy(jitter=jitter, jitter_factor=factor, interval_us=interval_us)  # type: ignore[arg-type]  # a sampled literal


def draws(
    policy: RetryPolicy, delay_us: int, *, cap_us: int = 3600 * SECOND, previous_us: int = 0
) -> list[int]:
    rng = Random(7)
    return [
        jittered_delay_us(policy, delay_us, cap_us=cap_us, previous_delay_us=previous_us, rng=rng)
        for _ in range(DRAWS)
    ]


def distance_from_uniform(values: list[int], low: float, *, high: float) -> float:
    """Kolmogorov–Smirnov distance of `values` from U(low, high)."""
    worst = 0.0
    for index, value in enumerate(sorted(values)):
        expected = min(max((value - low) / (high - low), 0), 1)
        worst = max(worst, abs(expected - index / len(values)), abs(expected - (index + 1) / len(values)))
    return worst


def test_none_is_the_delay_itself() -> None:
    assert set(draws(policy_of("none"), 10 * SECOND)) == {10 * SECOND}


def test_full_is_uniform_from_zero_to_the_delay() -> None:
    assert distance_from_uniform(draws(policy_of("full"), 10 * SECOND), 0, high=10 * SECOND) < KS_MAX


def test_equal_is_uniform_over_the_upper_half() -> None:
    values = draws(policy_of("equal"), 10 * SECOND)
    assert distance_from_uniform(values, 5 * SECOND, high=10 * SECOND) < KS_MAX


def test_proportional_is_uniform_and_unbiased_around_the_delay() -> None:
    values = draws(policy_of("proportional", factor=0.1), 10 * SECOND)
    assert distance_from_uniform(values, 9 * SECOND, high=11 * SECOND) < KS_MAX
    # One draw used for both size and sign leaves gaps next to the delay, and a bias.
    mean = sum(values) / len(values)
    assert abs(mean - 10 * SECOND) < 0.005 * 10 * SECOND
    tenths = [0] * 10
    for value in values:
        tenths[min((value - 9 * SECOND) * 10 // (2 * SECOND), 9)] += 1
    assert min(tenths) > 0.9 * DRAWS / 10


def test_proportional_at_the_cap_is_drawn_from_below_it_not_clamped() -> None:
    values = draws(policy_of("proportional", factor=0.2), 60 * SECOND, cap_us=60 * SECOND)
    assert distance_from_uniform(values, 48 * SECOND, high=60 * SECOND) < KS_MAX
    assert sum(value == 60 * SECOND for value in values) < 5


def test_proportional_just_below_the_cap_ends_at_the_cap() -> None:
    values = draws(policy_of("proportional", factor=0.2), 55 * SECOND, cap_us=60 * SECOND)
    assert distance_from_uniform(values, 44 * SECOND, high=60 * SECOND) < KS_MAX


def test_decorrelated_is_uniform_up_to_three_times_the_previous() -> None:
    values = draws(policy_of("decorrelated"), 40 * SECOND, previous_us=20 * SECOND)
    assert distance_from_uniform(values, 5 * SECOND, high=60 * SECOND) < KS_MAX


def test_decorrelated_starts_with_the_interval() -> None:
    assert set(draws(policy_of("decorrelated"), 5 * SECOND)) == {5 * SECOND}
    assert set(draws(policy_of("decorrelated"), 5 * SECOND, previous_us=SECOND)) == {5 * SECOND}


def test_decorrelated_alone_is_clamped_to_the_cap() -> None:
    values = draws(policy_of("decorrelated"), 9, previous_us=20 * SECOND, cap_us=30 * SECOND)
    at_cap = sum(value == 30 * SECOND for value in values) / DRAWS
    assert max(values) == 30 * SECOND
    assert abs(at_cap - 30 / 55) < 0.02


def test_c053_at_the_cap_waits_stay_spread() -> None:
    full = draws(policy_of("full"), 60 * SECOND, cap_us=60 * SECOND)[:1000]
    per_second = [0] * 61
    for value in full:
        per_second[value // SECOND] += 1
    assert max(per_second) <= 50


def test_c053_a_cap_below_the_jitter_gives_no_negative_wait() -> None:
    values = draws(policy_of("proportional", factor=0.5), 100 * MILLISECOND, cap_us=100 * MILLISECOND)
    assert 50 * MILLISECOND <= min(values) <= max(values) <= 100 * MILLISECOND


@given(
    st.sampled_from(JITTERS),
    st.floats(0, 1),
    st.integers(0, 10**13),
    st.integers(0, 10**13),
    st.integers(0, 10**14),
    st.integers(),
)
def test_no_draw_is_negative_or_above_the_cap(
    jitter: str, factor: float, interval_us: int, delay_us: int, previous_us: int, seed: int
) -> None:
    policy = policy_of(jitter, factor=factor, interval_us=interval_us)
    cap_us = max(delay_us, interval_us)
    wait_us = jittered_delay_us(
        policy, delay_us, cap_us=cap_us, previous_delay_us=previous_us, rng=Random(seed)
    )
    assert 0 <= wait_us <= cap_us
    assert added_jitter_us(policy, delay_us, rng=Random(seed)) >= 0


@pytest.mark.parametrize(
    ("jitter", "factor", "width_us"),
    [
        ("full", 0, 20 * SECOND),
        ("equal", 0, 10 * SECOND),
        ("proportional", 0.1, 2 * SECOND),
        ("decorrelated", 0, 5 * SECOND),
    ],
)
def test_what_is_added_to_an_asked_wait_is_uniform(jitter: str, factor: float, width_us: int) -> None:
    rng = Random(3)
    policy = policy_of(jitter, factor=factor)
    values = [added_jitter_us(policy, 20 * SECOND, rng=rng) for _ in range(DRAWS)]
    assert distance_from_uniform(values, 0, high=width_us) < KS_MAX


def test_without_jitter_nothing_is_added() -> None:
    assert added_jitter_us(policy_of("none"), 20 * SECOND, rng=Random(3)) == 0


def test_one_delay_takes_one_draw() -> None:
    for jitter in ("full", "equal", "decorrelated", "proportional"):
        rng, twin = Random(11), Random(11)
        policy = policy_of(jitter, factor=0.1 if jitter == "proportional" else 0)
        low, high = {
            "full": (0, 8 * SECOND),
            "equal": (0, 4 * SECOND),
            "decorrelated": (5 * SECOND, 24 * SECOND),
            "proportional": (8 * SECOND - 800_000, 8 * SECOND + 800_000),
        }[jitter]
        jittered_delay_us(policy, 8 * SECOND, cap_us=3600 * SECOND, previous_delay_us=8 * SECOND, rng=rng)
        twin.randint(low, high)
        assert rng.getstate() == twin.getstate()
