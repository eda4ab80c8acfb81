"""A retry budget never lets more start than it says, in any stretch of time, and never blocks for good."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.instants import HOUR, MILLISECOND, MINUTE, SECOND
from ostinato.core.retry.budget import RECENT_US, TOKEN, Bucket
from ostinato.core.retry.budget_words import budget_echo, budget_words, read_budget
from ostinato.core.retry.policy import RetryBudget, RetryPolicy, effective_policy, policy_to_dict
from ostinato.errors import UserError

Step = tuple[int, Literal["fill", "take"], int]

budgets = st.builds(
    RetryBudget,
    share=st.sampled_from([0.0, 0.01, 0.1, 1 / 3, 0.5, 1.0]),
    floor_count=st.sampled_from([1, 2, 30, 1000]),
    floor_period_us=st.sampled_from([SECOND, MINUTE, HOUR]),
)
#: Waits between what happens: from nothing to far beyond what is recent.
waits = st.one_of(st.just(0), st.integers(0, SECOND), st.integers(0, 30 * SECOND), st.just(HOUR))
histories = st.lists(st.tuples(waits, st.sampled_from(["fill", "take"]), st.integers(1, 40)), max_size=60)


@given(budgets, histories)
def test_in_no_stretch_of_time_more_start_than_was_put_in_during_it_and_ten_seconds_before(
    budget: RetryBudget, history: list[Step]
) -> None:
    """And one more: the fractions up to a whole token stay, however old they are."""
    bucket, now_us = Bucket(budget, now_us=0), 0
    firsts: list[int] = []
    retries: list[int] = []
    for wait_us, what, count in history:
        now_us += wait_us
        if what == "fill":
            bucket.fill(count, now_us=now_us)
            firsts += [now_us] * count
            continue
        before = bucket.count(now_us)
        taken = sum(bucket.take(now_us=now_us) for _ in range(count))
        assert taken == min(before, count)
        retries += [now_us] * taken
    share = Fraction(round(budget.share * TOKEN), TOKEN)
    for begin_us in {0, *retries}:
        for end_us in set(retries):
            started = sum(begin_us <= each <= end_us for each in retries)
            filled_us = max(0, begin_us - RECENT_US)
            filled = sum(filled_us <= each <= end_us for each in firsts)
            floor = Fraction(max(0, end_us - filled_us) * budget.floor_per_hour, HOUR)
            assert started <= share * filled + floor + 1


@given(budgets, histories)
def test_a_waiting_retry_gets_its_token_exactly_when_it_is_told(
    budget: RetryBudget, history: list[Step]
) -> None:
    bucket, now_us = Bucket(budget, now_us=0), 0
    for wait_us, what, count in history:
        now_us += wait_us
        if what == "fill":
            bucket.fill(count, now_us=now_us)
        else:
            bucket.take(now_us=now_us)
    next_us = bucket.next_us(now_us)
    assert next_us is not None
    assert now_us <= next_us <= now_us + HOUR
    if next_us > now_us:
        assert bucket.count(next_us - 1) == 0
    assert bucket.count(next_us) >= 1
    assert bucket.take(now_us=next_us)


def test_a_bucket_is_empty_at_first() -> None:
    """A new owner knows nothing of what its task has started, and allows no storm for it."""
    bucket = Bucket(RetryBudget(1.0, floor_count=1, floor_period_us=MINUTE), now_us=5)
    assert (bucket.count(5), bucket.take(now_us=5), bucket.next_us(5)) == (0, False, 5 + MINUTE)


def test_a_task_that_starts_seldom_retries_after_every_tenth_start_without_a_floor() -> None:
    bucket, now_us = Bucket(RetryBudget(0.1, floor_count=0), now_us=0), 0
    allowed: list[int] = []
    for number in range(1, 31):
        now_us += 10 * MINUTE
        bucket.fill(1, now_us=now_us)
        if bucket.take(now_us=now_us):
            allowed.append(number)
    assert allowed == [10, 20, 30]
    assert bucket.next_us(now_us) is None


def test_good_days_save_up_no_storm() -> None:
    """An hour of 100 starts a second at 10 %, then an outage: 100 tokens are left, of ten seconds."""
    bucket = Bucket(RetryBudget(0.1, floor_count=0), now_us=0)
    for second in range(3600):
        bucket.fill(100, now_us=second * SECOND)
    now_us = 3600 * SECOND - 1
    assert bucket.count(now_us) == 100
    assert bucket.count(now_us + 5 * SECOND) == 50
    assert bucket.count(now_us + 10 * SECOND) == 1


def test_a_clock_that_stands_still_or_falls_puts_nothing_in() -> None:
    bucket = Bucket(RetryBudget(0.0, floor_count=10), now_us=10 * SECOND)
    assert bucket.count(5 * SECOND) == 0
    assert bucket.count(10 * SECOND) == 0
    assert bucket.count(10 * SECOND + 100 * MILLISECOND) == 1


def test_another_budget_counts_from_when_it_is_given() -> None:
    bucket = Bucket(RetryBudget(0.0, floor_count=1), now_us=0)
    bucket.change(RetryBudget(0.0, floor_count=100), now_us=5 * SECOND)
    assert bucket.count(5 * SECOND) == 5
    assert bucket.count(6 * SECOND) == 105
    bucket.change(RetryBudget(0.0, floor_count=1), now_us=6 * SECOND)
    assert bucket.count(6 * SECOND) == 10


# ── as people write it ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("10%", RetryBudget(0.1)),
        (" 12.5 % ", RetryBudget(0.125)),
        ("0.2", RetryBudget(0.2)),
        (0.2, RetryBudget(0.2)),
        (1, RetryBudget(1.0)),
        (0, RetryBudget(0.0)),
        ({"share": "10%"}, RetryBudget(0.1)),
        ({"share": "10%", "floor": None}, RetryBudget(0.1)),
        ({"share": 0.1, "floor": "30/m"}, RetryBudget(0.1, 30, MINUTE)),
        ({"share": 0.1, "floor": " 5 / hour "}, RetryBudget(0.1, 5, HOUR)),
        ({"share": 0.1, "floor": "2/second"}, RetryBudget(0.1, 2, SECOND)),
        ({"share": 0.1, "floor": "none"}, RetryBudget(0.1, 0, SECOND)),
        ({"share": 0.1, "floor": "0/m"}, RetryBudget(0.1, 0, SECOND)),
    ],
)
def test_a_budget_is_read_as_it_is_written_and_its_echo_means_the_same(
    said: object, expected: RetryBudget
) -> None:
    policy = effective_policy({"budget": said})
    assert policy.budget == expected
    assert effective_policy(policy_to_dict(policy)) == policy
    assert read_budget(budget_echo(expected), "budget") == expected


def test_none_is_no_budget() -> None:
    assert effective_policy({"budget": "none"}) == effective_policy({"budget": None}) == RetryPolicy()


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("ten", "retry.budget"),
        ("-10%", "retry.budget"),
        (True, "retry.budget"),
        ([], "retry.budget"),
        ("110%", "retry.budget.share"),
        (float("nan"), "retry.budget.share"),
        ({}, "retry.budget.share"),
        ({"floor": "1/s"}, "retry.budget.share"),
        ({"share": -0.1}, "retry.budget.share"),
        ({"share": "10%", "floor": 1}, "retry.budget.floor"),
        ({"share": "10%", "floor": "10"}, "retry.budget.floor"),
        ({"share": "10%", "floor": "10/minuet"}, "retry.budget.floor"),
        ({"share": "10%", "floor": "-1/s"}, "retry.budget.floor"),
        ({"share": "10%", "floor": "1/d"}, "retry.budget.floor"),
        ({"share": "10%", "floor": "1000001/s"}, "retry.budget.floor"),
        ({"share": 0, "floor": "none"}, "retry.budget"),
        ({"share": "10%", "burst": 3}, "retry.budget.burst"),
    ],
)
def test_what_is_no_budget_is_refused_by_the_name_of_its_field(said: object, field: str) -> None:
    with pytest.raises(UserError) as caught:
        effective_policy({"budget": said})
    assert (caught.value.code, caught.value.field) == ("INVALID_POLICY", field)


def test_words_say_share_and_floor() -> None:
    assert budget_words(RetryBudget(0.125, 30, MINUTE)) == "12.5% of first attempts, at least 30/m"
    assert budget_words(RetryBudget(1 / 3, 0)) == "33.3333% of first attempts"
