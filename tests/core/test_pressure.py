"""Levels of backpressure and the delays of submissions, as properties of any limits and counts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.pressure import DELAY_US_MAX, DELAY_US_MIN, Level, Limits, level_of
from ostinato.errors import UserError

COUNTS = st.integers(0, 3_000)
LEVELS = st.sampled_from(Level)


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    """Any that the settings take: none, one of them, or both."""
    yellow = draw(st.none() | st.integers(1, 1_000))
    above = 1 if yellow is None else yellow + 1
    return Limits(yellow=yellow, red=draw(st.none() | st.integers(above, 2_000)))


@given(limits(), COUNTS, LEVELS)
def test_a_limit_that_is_reached_holds_whatever_was_before(bounds: Limits, count: int, before: Level) -> None:
    level = level_of(count, bounds, before=before)
    if bounds.red is not None and count >= bounds.red:
        assert level is Level.RED
    elif bounds.yellow is not None and count >= bounds.yellow:
        assert level >= Level.YELLOW
    if not bounds.is_set or count == 0:
        assert level is Level.GREEN


@given(limits(), COUNTS)
def test_from_green_a_level_begins_at_its_limit_and_not_before(bounds: Limits, count: int) -> None:
    level = level_of(count, bounds, before=Level.GREEN)
    assert (level is Level.RED) == (bounds.red is not None and count >= bounds.red)
    if level is not Level.RED:
        assert (level is Level.YELLOW) == (bounds.yellow is not None and count >= bounds.yellow)


@given(limits(), COUNTS, LEVELS)
def test_a_level_is_left_once_a_tenth_of_its_limit_is_gone(bounds: Limits, count: int, before: Level) -> None:
    level = level_of(count, bounds, before=before)
    if bounds.red is not None and count <= bounds.red - max(1, bounds.red // 10):
        assert level is not Level.RED
    if bounds.yellow is not None and count <= bounds.yellow - max(1, bounds.yellow // 10):
        assert level is not Level.YELLOW


@given(limits(), COUNTS, COUNTS, LEVELS)
def test_more_never_makes_it_better(bounds: Limits, few: int, more: int, before: Level) -> None:
    few, more = sorted((few, more))
    assert level_of(few, bounds, before=before) <= level_of(more, bounds, before=before)
    assert bounds.delay_us(few) <= bounds.delay_us(more)


@given(limits(), COUNTS, LEVELS)
def test_the_same_count_again_changes_nothing(bounds: Limits, count: int, before: Level) -> None:
    level = level_of(count, bounds, before=before)
    assert level_of(count, bounds, before=level) is level


@given(st.integers(20, 2_000), LEVELS, st.data())
def test_a_count_that_moves_by_less_than_a_tenth_about_a_limit_does_not_flap(
    red: int, before: Level, data: st.DataObject
) -> None:
    bounds = Limits(red=red)
    counts = data.draw(st.lists(st.integers(red - red // 10 + 1, red + 5), min_size=2))
    levels = [before]
    for count in counts:
        levels.append(level_of(count, bounds, before=levels[-1]))
    assert sum(one is not other for one, other in pairwise(levels[1:])) <= 1


@given(limits(), COUNTS, LEVELS)
def test_nothing_depends_on_what_is_beyond_the_most_that_is_counted(
    bounds: Limits, count: int, before: Level
) -> None:
    counted = min(count, bounds.count_max) if bounds.is_set else count
    assert level_of(counted, bounds, before=before) is level_of(count, bounds, before=before)
    assert bounds.delay_us(counted) == bounds.delay_us(count)


@given(limits(), COUNTS)
def test_a_delay_is_far_below_what_clients_wait_for(bounds: Limits, count: int) -> None:
    delay_us = bounds.delay_us(count)
    assert delay_us <= DELAY_US_MAX <= 1_000_000
    assert (delay_us == 0) == (bounds.yellow is None)


def test_the_delay_grows_evenly_from_the_yellow_limit_to_the_red() -> None:
    bounds = Limits(yellow=100, red=200)
    assert [bounds.delay_us(count) for count in (90, 100, 150, 200, 900)] == [
        DELAY_US_MIN,
        DELAY_US_MIN,
        (DELAY_US_MIN + DELAY_US_MAX) // 2,
        DELAY_US_MAX,
        DELAY_US_MAX,
    ]
    assert Limits(yellow=100).delay_us(200) == DELAY_US_MAX


def test_a_tenth_of_a_small_limit_is_one() -> None:
    assert level_of(0, Limits(red=1), before=Level.RED) is Level.GREEN
    assert level_of(1, Limits(red=2), before=Level.RED) is Level.GREEN
    assert level_of(1, Limits(red=1), before=Level.GREEN) is Level.RED


@pytest.mark.parametrize("yellow", [200, 201])
def test_a_yellow_limit_that_is_not_below_the_red_is_refused(yellow: int) -> None:
    with pytest.raises(UserError) as caught:
        Limits(yellow=yellow, red=200).validate()
    assert (caught.value.code, caught.value.field) == ("INVALID_SETTING", "pressure_yellow")
    Limits(yellow=199, red=200).validate()
