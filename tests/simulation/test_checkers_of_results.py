"""Each checker refuses histories that break its rule, and lets those pass that keep it: I6 to I9."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.histories import START_US, Story

from ostinato.core.instants import MINUTE, SECOND
from ostinato.core.model import HistoryKind
from ostinato.core.states import State
from ostinato.simulation.checkers.checker import Checker
from ostinato.simulation.checkers.i06_results_count_once import ResultsCountOnce
from ostinato.simulation.checkers.i07_terminal_is_final import TerminalIsFinal
from ostinato.simulation.checkers.i08_one_instance_per_fire import OneInstancePerFire
from ostinato.simulation.checkers.i09_nothing_hangs import NothingHangs
from ostinato.simulation.history import SubmissionAnswered

Course = Callable[[Story], None]


def _running(story: Story) -> None:
    story.submit()
    story.assign()
    story.begin()


def _success(story: Story) -> None:
    _running(story)
    story.wait(SECOND)
    story.end()
    story.succeed()


def _retried(story: Story) -> None:
    _running(story)
    story.end(how="raised")
    story.fail()
    story.wait(5 * SECOND).assign()


# ── I6 ───────────────────────────────────────────────────────────────────────────────────────────────


def _success_of_nothing(story: Story) -> None:
    story.submit()
    story.assign()
    story.succeed()


def _success_of_another_attempt(story: Story) -> None:
    _retried(story)
    story.begin("i2")
    story.end("i2")
    story.succeed(result=b'"i1"')


def _success_while_it_runs(story: Story) -> None:
    _running(story)
    story.succeed()


def _failure_of_nothing(story: Story) -> None:
    story.submit()
    story.assign()
    story.fail()


def _loss_of_nothing(story: Story) -> None:
    story.submit()
    story.assign()
    story.fail(code="WORKER_LOST", category="lost")


def _lost_though_it_had_ended(story: Story) -> None:
    _running(story)
    story.end()
    story.wait(MINUTE).fail(code="WORKER_LOST", category="lost")


def _lost_then_refused(story: Story) -> None:
    _lost_though_it_had_ended(story)
    told = story.told("i", HistoryKind.LATE_RESULT, attempt=1, attempt_id="i1")
    story.change("i", told)


def _lost_with_its_disk(story: Story) -> None:
    _running(story)
    story.end()
    story.wait(SECOND).fault("machine_lost")
    story.wait(MINUTE).fail(code="WORKER_LOST", category="lost")


def _lost_while_its_supervisor_is_frozen(story: Story) -> None:
    """Its disk had been slow, and is not any more."""
    _running(story)
    story.fault("supervisor_frozen")
    story.fault("disk_slow")
    story.fault("disk_slow", ends=True)
    story.end()
    story.wait(MINUTE).fail(code="WORKER_LOST", category="lost")


def _lost_after_its_supervisor_was_frozen(story: Story) -> None:
    _running(story)
    story.fault("supervisor_frozen")
    story.fault("supervisor_frozen", ends=True)
    story.end()
    story.wait(MINUTE).fail(code="WORKER_LOST", category="lost")


def _ended_and_never_heard_of(story: Story) -> None:
    _running(story)
    story.end()
    story.wait(MINUTE)


def _ended_at_the_very_end(story: Story) -> None:
    _running(story)
    story.end()
    story.wait(SECOND)


def _refused_while_it_runs(story: Story) -> None:
    _running(story)
    story.change("i", story.told("i", HistoryKind.LATE_RESULT))
    story.end()
    story.succeed()


# ── I7 ───────────────────────────────────────────────────────────────────────────────────────────────


def _replayed(story: Story) -> None:
    _success(story)
    story.change(
        "i",
        story.told("i", HistoryKind.REPLAYED),
        events=(story.request("replay", answer="OK", name="i"),),
        state=State.PENDING,
        generation=2,
    )


def _back_to_work(story: Story) -> None:
    _success(story)
    story.change("i", state=State.RETRY_WAITING)


def _replayed_by_nobody(story: Story) -> None:
    _success(story)
    story.change("i", state=State.PENDING, generation=2)


def _success_becomes_failure(story: Story) -> None:
    _success(story)
    story.change("i", state=State.FAILED)


def _result_written_again(story: Story) -> None:
    _success(story)
    story.change("i", result=b"2")


def _success_without_running(story: Story) -> None:
    story.submit()
    story.change("i", state=State.SUCCESS)


# ── I8 ───────────────────────────────────────────────────────────────────────────────────────────────


def _fired_twice(story: Story) -> None:
    story.wait(MINUTE)
    (row,) = story.fired(START_US)
    story.commit(row)
    again = story.instance("other", fire_us=START_US, fire_trigger="g")
    story.commit(story.row(None, again))


def _two_fires(story: Story) -> None:
    story.wait(MINUTE)
    story.commit(*story.fired(START_US, START_US + SECOND))


def _key_twice(story: Story) -> None:
    story.submit("i", key="k")
    story.submit("j", key="k")


def _key_again_a_day_later(story: Story) -> None:
    story.submit("i", key="k")
    story.wait(25 * 60 * MINUTE).submit("j", key="k")


def _key_ended_by_a_clock_ahead(story: Story) -> None:
    """The clock was a minute ahead a moment ago, and showed that it had ended: it is no more."""
    story.submit("i", key="k")
    story.left_us = MINUTE
    story.wait(24 * 60 * MINUTE - SECOND).submit("j", key="k")


def _key_answered_with_another(story: Story) -> None:
    story.submit("i", key="k")
    story.submit("j", key="l")
    story.judge(SubmissionAnswered(at_us=0, process="c", instance_id="j", task="t", key="k"))


# ── I9 ───────────────────────────────────────────────────────────────────────────────────────────────


def _hangs(story: Story, *, is_executing: bool, wait_us: int) -> None:
    story.submit()
    story.assign()
    if is_executing:
        story.begin()
    story.healed()
    story.wait(wait_us).tick()


def _hangs_too_long(story: Story) -> None:
    _hangs(story, is_executing=False, wait_us=14 * SECOND + 1)


def _hangs_a_while(story: Story) -> None:
    _hangs(story, is_executing=False, wait_us=14 * SECOND)


def _executes_for_long(story: Story) -> None:
    _hangs(story, is_executing=True, wait_us=60 * MINUTE)


def _result_never_counts(story: Story) -> None:
    _hangs(story, is_executing=True, wait_us=MINUTE)
    story.end()
    story.wait(15 * SECOND).tick()


_REFUSED: list[tuple[type[Checker], Course]] = [
    (ResultsCountOnce, _success_of_nothing),
    (ResultsCountOnce, _success_of_another_attempt),
    (ResultsCountOnce, _success_while_it_runs),
    (ResultsCountOnce, _failure_of_nothing),
    (ResultsCountOnce, _lost_though_it_had_ended),
    (ResultsCountOnce, _ended_and_never_heard_of),
    (ResultsCountOnce, _lost_after_its_supervisor_was_frozen),
    (ResultsCountOnce, _refused_while_it_runs),
    (TerminalIsFinal, _back_to_work),
    (TerminalIsFinal, _replayed_by_nobody),
    (TerminalIsFinal, _success_becomes_failure),
    (TerminalIsFinal, _result_written_again),
    (TerminalIsFinal, _success_without_running),
    (OneInstancePerFire, _fired_twice),
    (OneInstancePerFire, _key_twice),
    (OneInstancePerFire, _key_answered_with_another),
    (NothingHangs, _hangs_too_long),
    (NothingHangs, _result_never_counts),
]
_PASSING: list[tuple[type[Checker], Course]] = [
    (ResultsCountOnce, _success),
    (ResultsCountOnce, _retried),
    (ResultsCountOnce, _loss_of_nothing),
    (ResultsCountOnce, _lost_then_refused),
    (ResultsCountOnce, _lost_with_its_disk),
    (ResultsCountOnce, _lost_while_its_supervisor_is_frozen),
    (ResultsCountOnce, _ended_at_the_very_end),
    (TerminalIsFinal, _replayed),
    (TerminalIsFinal, _retried),
    (OneInstancePerFire, _two_fires),
    (OneInstancePerFire, _key_again_a_day_later),
    (OneInstancePerFire, _key_ended_by_a_clock_ahead),
    (NothingHangs, _hangs_a_while),
    (NothingHangs, _executes_for_long),
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
