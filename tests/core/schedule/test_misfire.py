"""What fires after the scheduler was late or away: once, never early, bounded, and told in words."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.core.instants import DAY, HOUR, MINUTE, SECOND, format_instant, parse_instant
from ostinato.core.schedule.misfire import BUSY_US, ON_TIME_US, FirePlan, plan_fires
from ostinato.core.schedule.trigger import CronTrigger, DateTrigger, IntervalTrigger, Trigger

START_US = parse_instant("2026-01-01T00:00:00+00:00")


def plan(trigger: Trigger, *, next_fire_us: int = START_US, now_us: int) -> FirePlan:
    return plan_fires(trigger, next_fire_us=next_fire_us, now_us=now_us, created_us=START_US, spread_key="t")


def minutely(misfire: str) -> CronTrigger:
    return CronTrigger(cron="* * * * *", misfire=misfire, misfire_bound=10)


def test_nothing_fires_early_and_the_next_fire_stays() -> None:
    assert plan(minutely("fire_all"), now_us=START_US - 1) == FirePlan((), 0, None, None, None, START_US, "")


@pytest.mark.parametrize("misfire", ["fire_once", "fire_all", "skip"])
def test_a_fire_at_its_time_is_no_misfire(misfire: str) -> None:
    result = plan(minutely(misfire), now_us=START_US)
    assert [(fire.scheduled_us, fire.late_us, fire.made_up) for fire in result.fires] == [
        (START_US, 0, False)
    ]
    assert (result.missed_count, result.skipped_reason, result.note) == (0, None, "")
    assert result.next_fire_us == START_US + MINUTE


def test_a_plan_that_ends_at_an_edit_leaves_what_is_due_after_it_to_the_next_version() -> None:
    def until(edited_us: int) -> FirePlan:
        return plan_fires(
            minutely("fire_all"),
            next_fire_us=START_US,
            now_us=START_US + 5 * MINUTE,
            created_us=START_US,
            spread_key="t",
            until_us=edited_us,
        )

    result = until(START_US + MINUTE + 1)
    assert [(fire.scheduled_us, fire.late_us) for fire in result.fires] == [
        (START_US, 5 * MINUTE),
        (START_US + MINUTE, 4 * MINUTE),
    ]
    assert (result.missed_count, result.next_fire_us) == (2, START_US + 2 * MINUTE)
    assert until(START_US - 1) == FirePlan((), 0, None, None, None, START_US, "")
    # An edit of the future ends nothing.
    whole = plan(minutely("fire_all"), now_us=START_US + 5 * MINUTE)
    assert until(START_US + DAY) == whole


@pytest.mark.parametrize("down_us", [101 * MINUTE, 1000 * MINUTE, 400 * DAY])
@pytest.mark.parametrize(("misfire", "made_up"), [("fire_once", 1), ("fire_all", 10), ("skip", 0)])
def test_c027_no_cliff_at_any_number_of_missed_fires(down_us: int, misfire: str, made_up: int) -> None:
    now_us = START_US + down_us + 30 * SECOND
    began = time.perf_counter()
    result = plan(minutely(misfire), now_us=now_us)
    assert time.perf_counter() - began < 0.5
    assert [fire.scheduled_us for fire in result.fires] == [
        START_US + down_us - back * MINUTE for back in range(made_up - 1, -1, -1)
    ]
    assert all(fire.made_up for fire in result.fires)
    assert result.next_fire_us == START_US + down_us + MINUTE
    assert (result.missed_first_us, result.missed_last_us) == (START_US, START_US + down_us)
    assert (result.skipped_reason is None) == (made_up > 0)
    exact = down_us // MINUTE + 1
    if result.missed_is_at_least:
        assert result.missed_count <= exact
        assert result.note.startswith("at least 2000 fires missed")
    else:
        assert result.missed_count == exact
        assert result.note.startswith(f"{exact} fires missed")
    # Then one per minute.
    after = plan(
        minutely(misfire), next_fire_us=START_US + down_us + MINUTE, now_us=START_US + down_us + MINUTE
    )
    assert len(after.fires) == 1
    assert after.missed_count == 0


@pytest.mark.parametrize(("misfire", "total"), [("fire_once", 1), ("fire_all", 10), ("skip", 1)])
def test_a_start_exactly_at_a_fire_fires_it_as_an_ordinary_one(misfire: str, total: int) -> None:
    result = plan(minutely(misfire), now_us=START_US + 101 * MINUTE)
    assert len(result.fires) == total
    assert [fire.made_up for fire in result.fires] == [True] * (total - 1) + [False]
    assert result.missed_count == 101


@pytest.mark.parametrize("misfire", ["skip", "fire_once"])
def test_c023_a_stale_next_fire_beyond_the_grace_fires_nothing(misfire: str) -> None:
    trigger = CronTrigger(cron="0 5 1 * *", misfire=misfire, misfire_grace_us=HOUR)
    result = plan(
        trigger,
        next_fire_us=parse_instant("2015-06-01T05:00:00+00:00"),
        now_us=parse_instant("2016-05-17T16:00:00+00:00"),
    )
    assert result.fires == ()
    assert result.next_fire_us == parse_instant("2016-06-01T05:00:00+00:00")
    assert result.missed_last_us == parse_instant("2016-05-01T05:00:00+00:00")
    assert result.missed_count == 12
    assert result.skipped_reason is not None
    assert "16d11h late" in result.skipped_reason
    if misfire == "fire_once":
        assert "beyond the grace of 1h" in result.skipped_reason


def test_c031_a_loop_blocked_for_seconds_fires_late_and_says_so() -> None:
    trigger = CronTrigger(cron="0 3 * * *")
    due_us = START_US + 3 * HOUR
    for misfire in ("fire_once", "fire_all", "skip"):
        result = plan(
            CronTrigger(cron=trigger.cron, misfire=misfire), next_fire_us=due_us, now_us=due_us + 3 * SECOND
        )
        assert [(fire.late_us, fire.made_up) for fire in result.fires] == [(3 * SECOND, False)]
        assert result.note == "fired 3s late"


def test_a_single_fire_up_to_a_minute_late_is_a_busy_scheduler_not_a_misfire() -> None:
    trigger = CronTrigger(cron="0 3 * * *", misfire="skip")
    assert len(plan(trigger, now_us=START_US + BUSY_US).fires) == 1
    beyond = plan(trigger, now_us=START_US + BUSY_US + 1)
    assert beyond.fires == ()
    assert beyond.skipped_reason is not None


def test_within_the_grace_the_last_missed_fire_stands_for_all() -> None:
    trigger = CronTrigger(cron="*/20 * * * *", misfire_grace_us=10 * MINUTE)
    at_grace = plan(trigger, now_us=START_US + 50 * MINUTE)
    assert [(fire.scheduled_us, fire.late_us, fire.made_up) for fire in at_grace.fires] == [
        (START_US + 40 * MINUTE, 10 * MINUTE, True)
    ]
    assert at_grace.missed_count == 3
    assert at_grace.note == (
        "3 fires missed, 2026-01-01T00:00:00Z to 2026-01-01T00:40:00Z; "
        "misfire fire_once makes up the last one, 10m late"
    )
    assert plan(trigger, now_us=START_US + 50 * MINUTE + 1).fires == ()


def test_c033_catch_up_makes_every_fire_once() -> None:
    trigger = CronTrigger(cron="0 0 * * *", misfire="fire_all", misfire_bound=100)
    result = plan(trigger, now_us=START_US + 59 * DAY + 7 * HOUR)
    assert [fire.scheduled_us for fire in result.fires] == [START_US + day * DAY for day in range(60)]
    assert result.skipped_reason is None


def test_a_one_off_fires_within_the_grace_only() -> None:
    trigger = DateTrigger(at_us=START_US)
    within = plan(trigger, now_us=START_US + HOUR)
    assert [fire.made_up for fire in within.fires] == [True]
    assert within.next_fire_us is None
    beyond = plan(trigger, now_us=START_US + HOUR + 1)
    assert beyond.fires == ()
    assert beyond.skipped_reason is not None


def test_an_interval_counts_what_it_missed_exactly_whatever_the_gap() -> None:
    trigger = IntervalTrigger(every_us=SECOND, misfire="fire_all", misfire_bound=5)
    result = plan(trigger, next_fire_us=START_US + SECOND, now_us=START_US + 400 * DAY + SECOND // 2)
    assert result.missed_count + 6 == 400 * 86_400 + 1
    assert not result.missed_is_at_least
    on_time = [fire for fire in result.fires if not fire.made_up]
    assert len(on_time) == ON_TIME_US // SECOND


def test_c165_years_of_bursts_are_planned_in_bounded_work() -> None:
    # Every second of one hour a year: the burst that a doubled look-back meets all at once.
    trigger = CronTrigger(cron="* * 3 1 1 *", misfire="fire_all", misfire_bound=1000)
    began = time.perf_counter()
    result = plan(trigger, now_us=START_US + 10 * 365 * DAY)
    assert time.perf_counter() - began < 1.0
    last_us = parse_instant("2035-01-01T03:59:59+00:00")
    assert [fire.scheduled_us for fire in result.fires] == [
        last_us - back * SECOND for back in range(999, -1, -1)
    ]


@given(
    trigger=st.one_of(
        st.builds(
            CronTrigger,
            cron=st.sampled_from(
                ["* * * * *", "*/7 * * * *", "30 2 * * *", "0 0 1 * *", "*/10 * * * * *", "0 0 29 2 *"]
            ),
            timezone=st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe"]),
            misfire=st.sampled_from(["fire_once", "fire_all", "skip"]),
            misfire_bound=st.integers(min_value=1, max_value=20),
            spread_us=st.sampled_from([0, 90 * SECOND]),
        ),
        st.builds(
            IntervalTrigger,
            every_us=st.sampled_from([SECOND // 10, SECOND, 7 * MINUTE, 3 * DAY]),
            misfire=st.sampled_from(["fire_once", "fire_all", "skip"]),
            misfire_bound=st.integers(min_value=1, max_value=20),
        ),
    ),
    gaps=st.lists(
        st.one_of(
            st.integers(min_value=0, max_value=10 * SECOND),
            st.integers(min_value=0, max_value=3 * HOUR),
            st.integers(min_value=0, max_value=30 * DAY),
        ),
        min_size=1,
        max_size=6,
    ),
)
@settings(max_examples=120, deadline=None)
def test_no_instant_fires_twice_none_early_and_nothing_vanishes(trigger: Trigger, gaps: list[int]) -> None:
    next_us: int | None = plan(trigger, next_fire_us=START_US, now_us=START_US).next_fire_us
    now_us = START_US
    seen: list[int] = []
    for gap_us in gaps:
        now_us += gap_us
        if next_us is None:
            break
        result = plan(trigger, next_fire_us=next_us, now_us=now_us)
        scheduled = [fire.scheduled_us for fire in result.fires]
        assert all(next_us <= at_us <= now_us for at_us in scheduled), format_instant(now_us)
        assert all(fire.late_us == now_us - fire.scheduled_us for fire in result.fires)
        assert result.next_fire_us is None or result.next_fire_us > now_us
        if next_us <= now_us:
            assert scheduled or result.skipped_reason
            assert bool(result.missed_count) == (result.missed_last_us is not None)
        seen.extend(scheduled)
        next_us = result.next_fire_us
    assert seen == sorted(set(seen))
