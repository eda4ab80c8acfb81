"""Checkers refuse histories that break their rule, and let pass those that keep it: places, reasons, belief.

Also what other rules say where the database's clock has jumped, and where keys and retries are particular.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from support.histories import POLICY, Story

from ostinato.core.changes import Proof
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.instants import DAY, MILLISECOND, SECOND
from ostinato.core.retry.counters import Counters
from ostinato.core.retry.policy import RetryPolicy, RetryRule
from ostinato.core.states import Hold, State
from ostinato.simulation.checkers.acts import Acts
from ostinato.simulation.checkers.belief import BeliefEnds
from ostinato.simulation.checkers.checker import Checker
from ostinato.simulation.checkers.i04_never_early import NeverEarly
from ostinato.simulation.checkers.i08_one_instance_per_fire import OneInstancePerFire
from ostinato.simulation.checkers.places import RightPlaces
from ostinato.simulation.checkers.reasons import TrueReasons
from ostinato.simulation.checkers.retry_times import RetryTimes
from ostinato.simulation.history import SubmissionAnswered

Course = Callable[[Story], None]


# ── places ───────────────────────────────────────────────────────────────────────────────────────────


def _given(story: Story, count: int) -> None:
    for number in range(count):
        story.submit(f"i{number}")
        story.assign(f"i{number}", worker_id="w-1")


def _given_more_than_it_has_slots(story: Story) -> None:
    _given(story, 3)


def _given_what_it_has_slots_for(story: Story) -> None:
    _given(story, 2)
    story.succeed("i0")
    story.submit("j")
    story.assign("j", worker_id="w-1")


def _short_ones(story: Story, count: int) -> None:
    for number in range(count):
        story.submit(f"s{number}")
        story.assign(f"s{number}", worker_id="w-1")
        story.begin(f"s{number}1")
        story.wait(MILLISECOND)
        story.end(f"s{number}1")
        story.succeed(f"s{number}")


def _given_what_its_queue_has_room_for(story: Story) -> None:
    _short_ones(story, 10)
    _given(story, 2 + 8)


def _given_more_than_its_queue_has_room_for(story: Story) -> None:
    _short_ones(story, 10)
    _given(story, 2 + 8 + 1)


def _given_more_after_a_second(story: Story) -> None:
    """What did not begin is on its way back, as its row will say."""
    _given(story, 2)
    story.begin("i01")
    story.wait(SECOND)
    story.submit("j")
    story.assign("j", worker_id="w-1")


def _given_more_before_a_second_is_over(story: Story) -> None:
    _given(story, 2)
    story.begin("i01")
    story.wait(SECOND - MILLISECOND)
    story.submit("j")
    story.assign("j", worker_id="w-1")


def _given_more_while_all_are_executed(story: Story) -> None:
    _given(story, 2)
    story.begin("i01")
    story.begin("i11")
    story.wait(2 * SECOND)
    story.submit("j")
    story.assign("j", worker_id="w-1")


def _given_a_queue_of_long_ago(story: Story) -> None:
    _short_ones(story, 10)
    story.wait(6 * SECOND)
    _given(story, 3)


def _given_too_much_after_a_fault(story: Story) -> None:
    story.fault("stream_broken")
    _given(story, 3)


def _executes_more_than_it_has_slots(story: Story) -> None:
    story.fault("stream_broken")
    _given(story, 3)
    for number in range(3):
        story.begin(f"i{number}1")


def _given_by_other_labels(story: Story) -> None:
    story.task = msgspec.structs.replace(story.task, labels={"zone": "b"})
    _given(story, 1)


def _given_by_its_labels(story: Story) -> None:
    story.task = msgspec.structs.replace(story.task, labels={"zone": "a"})
    _given(story, 1)


# ── reasons ──────────────────────────────────────────────────────────────────────────────────────────


def _held(story: Story, cause: Hold) -> None:
    story.submit()
    story.change("i", hold=cause, reason="it says so")


def _busy_while_paused(story: Story, *, wait_us: int = 7 * SECOND) -> None:
    _held(story, Hold.BUSY)
    story.commit(story.flag(paused=True))
    story.wait(wait_us).submit("j")


def _busy_for_a_while_while_paused(story: Story) -> None:
    _busy_while_paused(story, wait_us=6 * SECOND)


def _busy_while_paused_and_something_is_broken(story: Story) -> None:
    story.fault("database_silent")
    _busy_while_paused(story)


def _busy_long_after_the_fault(story: Story) -> None:
    story.fault("database_silent")
    _busy_while_paused(story)
    story.fault("database_silent", ends=True)
    story.wait(7 * SECOND).submit("k")


def _busy_after_the_answers_were_lost(story: Story, *, wait_us: int = 16 * SECOND) -> None:
    """A call that heard nothing holds up its loop until the deadline of 10 s."""
    story.fault("answers_lost")
    _busy_while_paused(story)
    story.fault("answers_lost", ends=True)
    story.fault("database_silent")
    story.fault("database_silent", ends=True)
    story.wait(wait_us).submit("k")


def _busy_long_after_the_answers_were_lost(story: Story) -> None:
    _busy_after_the_answers_were_lost(story, wait_us=17 * SECOND)


def _paused_while_resumed(story: Story) -> None:
    story.commit(story.flag(paused=True))
    _held(story, Hold.PAUSED)
    story.commit(story.flag(paused=False))
    story.wait(7 * SECOND).submit("j")


def _paused_while_paused(story: Story) -> None:
    _busy_while_paused(story, wait_us=SECOND)
    story.change("i", hold=Hold.PAUSED, reason="it is paused")
    story.wait(60 * SECOND).submit("k")


# ── belief ───────────────────────────────────────────────────────────────────────────────────────────


def _taken(story: Story) -> None:
    story.own(Proof(0, "b", 2), before=Proof(0, "a", 1))


def _believes_in_what_was_taken(story: Story) -> None:
    story.believes = [Proof(0, "a", 1)]
    _taken(story)


def _believes_where_locks_tell_earlier(story: Story) -> None:
    story.has_session_locks = True
    _believes_in_what_was_taken(story)


def _believes_in_its_own(story: Story) -> None:
    _taken(story)
    story.believes = [Proof(0, "b", 2)]
    story.submit()


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────


def _told(story: Story, *, after_us: int, chosen_id: str = "j") -> None:
    story.submit("i", key="k")
    story.wait(after_us)
    story.judge(
        SubmissionAnswered(
            at_us=story.at_us,
            process="c",
            instance_id="i",
            task="t",
            key="k",
            asked_us=story.at_us,
            chosen_id=chosen_id,
        )
    )


def _told_of_an_ended_key(story: Story) -> None:
    _told(story, after_us=DAY + SECOND)


def _told_of_a_live_key(story: Story) -> None:
    _told(story, after_us=DAY - SECOND)


def _told_the_same_submission_again(story: Story) -> None:
    _told(story, after_us=DAY + SECOND, chosen_id="i")


# ── a database's clock that has jumped ───────────────────────────────────────────────────────────────


def _early_by_both_times(story: Story) -> None:
    story.left_us = SECOND
    story.submit(due_us=story.shared_us() + 2 * SECOND)
    story.assign(assigned_us=story.shared_us() + 2 * SECOND)


def _early_by_the_time_after_the_jump(story: Story) -> None:
    story.left_us = 3 * SECOND
    story.submit(due_us=story.shared_us() + 2 * SECOND)
    story.assign(assigned_us=story.shared_us() + 2 * SECOND)


def _assigned_by_a_clock_ahead_of_the_pause(story: Story) -> None:
    story.left_us = 4 * SECOND
    story.submit()
    story.commit(story.flag(paused=True))
    story.assign(assigned_us=story.shared_us() + 9 * SECOND)


def _assigned_far_ahead_of_the_pause(story: Story) -> None:
    story.left_us = 4 * SECOND
    story.submit()
    story.commit(story.flag(paused=True))
    story.assign(assigned_us=story.shared_us() + 18 * SECOND)


_REFUSED: list[tuple[type[Checker], Course]] = [
    (RightPlaces, _given_more_than_it_has_slots),
    (RightPlaces, _given_more_than_its_queue_has_room_for),
    (RightPlaces, _given_a_queue_of_long_ago),
    (RightPlaces, _given_more_before_a_second_is_over),
    (RightPlaces, _given_more_while_all_are_executed),
    (RightPlaces, _executes_more_than_it_has_slots),
    (RightPlaces, _given_by_other_labels),
    (TrueReasons, _busy_while_paused),
    (TrueReasons, _busy_long_after_the_fault),
    (TrueReasons, _busy_long_after_the_answers_were_lost),
    (TrueReasons, _paused_while_resumed),
    (BeliefEnds, _believes_in_what_was_taken),
    (OneInstancePerFire, _told_of_an_ended_key),
    (NeverEarly, _early_by_both_times),
    (Acts, _assigned_far_ahead_of_the_pause),
]
_PASSING: list[tuple[type[Checker], Course]] = [
    (RightPlaces, _given_what_it_has_slots_for),
    (RightPlaces, _given_what_its_queue_has_room_for),
    (RightPlaces, _given_more_after_a_second),
    (RightPlaces, _given_too_much_after_a_fault),
    (RightPlaces, _given_by_its_labels),
    (TrueReasons, _busy_for_a_while_while_paused),
    (TrueReasons, _busy_while_paused_and_something_is_broken),
    (TrueReasons, _busy_after_the_answers_were_lost),
    (TrueReasons, _paused_while_paused),
    (BeliefEnds, _believes_where_locks_tell_earlier),
    (BeliefEnds, _believes_in_its_own),
    (OneInstancePerFire, _told_of_a_live_key),
    (OneInstancePerFire, _told_the_same_submission_again),
    (NeverEarly, _early_by_the_time_after_the_jump),
    (Acts, _assigned_by_a_clock_ahead_of_the_pause),
]


def _name(value: object) -> str:
    return getattr(value, "__name__", "")


@pytest.mark.parametrize(("checker", "course"), _REFUSED, ids=_name)
def test_a_history_that_breaks_the_rule_is_refused(checker: type[Checker], course: Course) -> None:
    story = Story(checker)
    course(story)
    assert story.verdict()


@pytest.mark.parametrize(("checker", "course"), _PASSING, ids=_name)
def test_a_history_that_keeps_the_rule_passes(checker: type[Checker], course: Course) -> None:
    story = Story(checker)
    course(story)
    assert story.verdict() == []


# ── rules of retries ─────────────────────────────────────────────────────────────────────────────────

_RULES = msgspec.structs.replace(
    POLICY,
    rules=(
        RetryRule(("ConnectionError",), backoff="delays", delays_us=(SECOND, 3 * SECOND)),
        RetryRule(("MY_*",), max_retry=1),
        RetryRule(("resource",), action="fail"),
    ),
)
_LISTS = msgspec.structs.replace(POLICY, retry_on=("ConnectionError",), no_retry_on=("WORKER_LOST",))
_RESET = safe_failure("ECONNRESET", "reset", classes=("ConnectionResetError", "ConnectionError", "OSError"))
_MINE = safe_failure("MY_CODE", "mine")
_FULL = safe_failure("OOM", "nothing left")
_LOST = safe_failure("WORKER_LOST", "gone")


@pytest.mark.parametrize(
    ("policy", "failure", "failures", "state", "wait_us", "is_lawful"),
    [
        (_RULES, _RESET, 1, State.RETRY_WAITING, SECOND, True),
        (_RULES, _RESET, 2, State.RETRY_WAITING, 3 * SECOND, True),
        (_RULES, _RESET, 1, State.RETRY_WAITING, 5 * SECOND, False),
        (_RULES, _RESET, 1, State.FAILED, 0, False),
        (_RULES, _MINE, 1, State.RETRY_WAITING, 5 * SECOND, True),
        (_RULES, _MINE, 2, State.RETRY_WAITING, 5 * SECOND, False),
        (_RULES, _MINE, 2, State.FAILED, 0, True),
        (_RULES, _FULL, 1, State.RETRY_WAITING, 5 * SECOND, False),
        (_RULES, _FULL, 1, State.FAILED, 0, True),
        (_LISTS, _RESET, 1, State.RETRY_WAITING, 5 * SECOND, True),
        (_LISTS, _RESET, 1, State.FAILED, 0, False),
        (_LISTS, _MINE, 1, State.RETRY_WAITING, 5 * SECOND, False),
        (_LISTS, _MINE, 1, State.FAILED, 0, True),
        (_LISTS, _LOST, 0, State.RETRY_WAITING, 0, False),
        (_LISTS, _LOST, 0, State.FAILED, 0, True),
    ],
)
def test_a_retry_is_judged_by_the_rule_that_matches_its_failure(
    *,
    policy: RetryPolicy,
    failure: Failure,
    failures: int,
    state: State,
    wait_us: int,
    is_lawful: bool,
) -> None:
    story = Story(RetryTimes, policy=policy)
    story.submit()
    story.assign()
    story.wait(SECOND)
    lost = 1 if failure is _LOST else 0
    counters = Counters(failures=failures, lost=lost)
    story.fail(
        wait_us=wait_us,
        state=state,
        failure=failure,
        code=failure.code,
        category=failure.category,
        counters=counters,
    )
    assert (story.verdict() == []) is is_lawful
