"""The checker of fires refuses histories in which one is missing, and lets pass those that keep the rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.histories import EVERY_US, START_US, Story

from ostinato.core.instants import SECOND
from ostinato.simulation.checkers.fires import Fires

Course = Callable[[Story], None]


def _fires_all(story: Story) -> None:
    story.known_task()
    story.wait(3 * EVERY_US)
    due = [START_US + count * EVERY_US for count in (1, 2, 3)]
    story.commit(story.advance(START_US + 4 * EVERY_US), *story.fired(*due))


def _one_fire_is_missing(story: Story) -> None:
    story.known_task()
    story.wait(3 * EVERY_US)
    due = [START_US + count * EVERY_US for count in (1, 3)]
    story.commit(story.advance(START_US + 4 * EVERY_US), *story.fired(*due))


def _moves_on_without_a_fire(story: Story) -> None:
    story.known_task()
    story.wait(EVERY_US)
    story.commit(story.advance(START_US + 2 * EVERY_US))


def _fires_without_moving_on(story: Story) -> None:
    story.known_task()
    story.wait(EVERY_US)
    story.commit(*story.fired(START_US + EVERY_US))


def _resumed_without_the_past(story: Story) -> None:
    story.known_task()
    story.commit(story.flag(paused=True))
    story.wait(5 * EVERY_US)
    story.commit(story.flag(paused=False), story.advance(START_US + 6 * EVERY_US))


def _stands_still(story: Story) -> None:
    story.known_task()
    story.healed()
    story.wait(3 * EVERY_US).tick()


def _stands_still_while_paused(story: Story) -> None:
    story.known_task()
    story.commit(story.flag(paused=True))
    story.healed()
    story.wait(3 * EVERY_US).tick()


def _edited(story: Story, *, at_us: int) -> None:
    """The schedule is another one, as of `at_us`, and the old trigger goes."""
    story.known_task()
    story.wait(2 * EVERY_US)
    switch = story.flag(version=2, scheduled_version=2, updated_us=at_us)
    gone = story.advance(None)
    story.commit(switch, type(gone)(at_us=0, transaction=0, process="p", before=gone.before, after=None))


def _edit_before_the_fire(story: Story) -> None:
    _edited(story, at_us=START_US + EVERY_US - 1)


def _edit_drops_a_fire(story: Story) -> None:
    _edited(story, at_us=START_US + EVERY_US)


def _edited_again_after_the_fire(story: Story) -> None:
    """The first edit comes into force: by it nothing was due, whenever the second one was made."""
    story.known_task()
    story.wait(2 * EVERY_US)
    story.commit(story.flag(version=2, updated_us=START_US + EVERY_US - 1))
    story.commit(story.flag(version=3, updated_us=START_US + 2 * EVERY_US))
    gone = story.advance(None)
    story.commit(
        story.flag(scheduled_version=2),
        type(gone)(at_us=0, transaction=0, process="p", before=gone.before, after=None),
    )


def _edit_dated_by_a_clock_ahead(story: Story) -> None:
    """It is ten seconds ahead, which the owner has not believed: nothing is due by its own time."""
    story.left_us = 11 * SECOND
    _edited(story, at_us=START_US + 2 * EVERY_US)


def _fires_shards(story: Story, *numbers: int) -> None:
    story.known_task()
    story.wait(EVERY_US)
    at_us = START_US + EVERY_US
    shards = [
        story.row(
            None,
            story.instance(
                f"f{number}", due_us=at_us, fire_us=at_us, fire_trigger="g", shard=number, shard_total=3
            ),
        )
        for number in numbers
    ]
    story.commit(story.advance(at_us + EVERY_US), *shards)


def _all_shards_are_made(story: Story) -> None:
    _fires_shards(story, 0, 1, 2)


def _a_shard_is_missing(story: Story) -> None:
    _fires_shards(story, 0, 2)


_REFUSED: list[Course] = [
    _one_fire_is_missing,
    _moves_on_without_a_fire,
    _fires_without_moving_on,
    _stands_still,
    _edit_drops_a_fire,
    _a_shard_is_missing,
]
_PASSING: list[Course] = [
    _fires_all,
    _resumed_without_the_past,
    _stands_still_while_paused,
    _edit_before_the_fire,
    _edited_again_after_the_fire,
    _edit_dated_by_a_clock_ahead,
    _all_shards_are_made,
]


def _name(course: Course) -> str:
    return course.__name__


@pytest.mark.parametrize("course", _REFUSED, ids=_name)
def test_a_history_in_which_fires_are_missing_is_refused(course: Course) -> None:
    story = Story(Fires)
    course(story)
    assert story.verdict()


@pytest.mark.parametrize("course", _PASSING, ids=_name)
def test_a_history_that_keeps_the_rule_of_fires_passes(course: Course) -> None:
    story = Story(Fires)
    course(story)
    assert story.verdict() == []
