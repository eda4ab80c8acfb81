"""A trigger that was deleted and made anew while the clock was back comes again to what has fired."""

from __future__ import annotations

import msgspec
from support.histories import EVERY_US, START_US, Story

from ostinato.simulation.checkers.fires import Fires
from ostinato.simulation.history import TriggerCommitted


def _made_anew() -> Story:
    """It has fired three times, and its next fire is the last of these again."""
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
