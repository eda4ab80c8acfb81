"""What the fires checker allows a trigger after the database's clock has jumped, and what it does not."""

from __future__ import annotations

import msgspec
import pytest
from support.histories import EVERY_US, START_US, Story

from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.simulation.checkers.fires import DOUBT_US, LATE_US, Fires
from ostinato.simulation.history import TriggerCommitted


def _made_anew() -> Story:
    """By a clock that was put back: it has fired thrice, and its next fire is the last of these again."""
    story = Story(Fires)
    story.known_task()
    story.wait(3 * EVERY_US)
    due = [START_US + count * EVERY_US for count in (1, 2, 3)]
    story.commit(story.advance(START_US + 4 * EVERY_US), *story.fired(*due))
    deleted = story.trigger
    story.commit(
        story.flag(disabled=False),
        TriggerCommitted(at_us=0, transaction=0, process="p", before=deleted, after=None),
    )
    story.trigger = msgspec.structs.replace(deleted, next_us=due[-1])
    story.known_task()
    return story


def test_what_has_fired_before_is_not_missing() -> None:
    story = _made_anew()
    story.commit(story.advance(START_US + 4 * EVERY_US))
    story.wait(EVERY_US)
    story.commit(story.advance(START_US + 5 * EVERY_US), *story.fired(START_US + 4 * EVERY_US))
    assert story.verdict() == []


def test_what_has_fired_before_stands_for_no_other_fire() -> None:
    story = _made_anew()
    story.wait(EVERY_US)
    story.commit(story.advance(START_US + 5 * EVERY_US))
    (sentence,) = story.verdict()
    assert sentence.startswith("fire_all, and 1 fires are missing")


@pytest.mark.parametrize(
    ("has_jumped", "late_us", "is_violated"),
    [
        (False, LATE_US - SECOND, False),
        (False, LATE_US + SECOND, True),
        (True, LATE_US + DOUBT_US - SECOND, False),
        (True, LATE_US + DOUBT_US + SECOND, True),
    ],
)
def test_a_trigger_is_held_until_a_jump_is_confirmed_and_no_longer(
    has_jumped: bool, late_us: int, is_violated: bool
) -> None:
    story = Story(Fires)
    story.left_us = MILLISECOND if has_jumped else 0
    story.known_task()
    story.healed()
    story.wait(EVERY_US + late_us).tick()
    assert bool(story.verdict()) == is_violated


@pytest.mark.parametrize("missing_count", [0, 1])
def test_of_fires_beyond_number_the_last_ones_are_made_up(missing_count: int) -> None:
    story = Story(Fires)
    story.known_task()
    story.wait(1_000_000 * EVERY_US)
    last_us = START_US + 1_000_000 * EVERY_US
    made_up = [last_us - number * EVERY_US for number in range(story.trigger.spec.misfire_bound)]
    story.commit(story.advance(last_us + EVERY_US), *story.fired(*made_up[missing_count:]))
    assert len(story.verdict()) == missing_count
