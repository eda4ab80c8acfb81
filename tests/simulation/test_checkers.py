"""Each checker refuses histories that break its rule, and lets those pass that keep it: I1 to I5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from support.histories import START_US, Story

from ostinato.core.changes import Proof
from ostinato.core.definition import PythonSpec
from ostinato.core.instants import MILLISECOND, MINUTE, SECOND
from ostinato.core.retry.counters import Counters
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.states import Hold, State
from ostinato.simulation.checkers.checker import Checker
from ostinato.simulation.checkers.i01_single_execution import SingleExecution
from ostinato.simulation.checkers.i02_nothing_lost import NothingLost
from ostinato.simulation.checkers.i03_bounded_attempts import BoundedAttempts
from ostinato.simulation.checkers.i04_never_early import NeverEarly
from ostinato.simulation.checkers.i05_one_decision_maker import OneDecisionMaker
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


# ── I1 ───────────────────────────────────────────────────────────────────────────────────────────────


def _two_at_once(story: Story) -> None:
    story.begin("i1")
    story.wait(SECOND).begin("i2", machine="n")


def _one_after_the_other(story: Story) -> None:
    story.begin("i1")
    story.wait(SECOND).end("i1")
    story.begin("i2", machine="n")


def _twice(story: Story) -> None:
    story.begin("i1")
    story.end("i1")
    story.begin("i1")


def _relaxed(story: Story) -> None:
    story.begin("i1", is_strict=False)
    story.wait(SECOND).begin("i2", machine="n", is_strict=False)


def _frozen(story: Story, *, went_on_us: int) -> None:
    story.begin("i1")
    story.fault("machine_frozen")
    story.wait(MINUTE).begin("i2", machine="n")
    story.wait(SECOND).fault("machine_frozen", ends=True)
    story.wait(went_on_us).end("i1", how="killed")


def _frozen_ended_soon(story: Story) -> None:
    _frozen(story, went_on_us=100 * MILLISECOND)


def _frozen_went_on(story: Story) -> None:
    _frozen(story, went_on_us=SECOND)


def _woken_and_never_ended(story: Story) -> None:
    story.begin("i1")
    story.fault("machine_frozen")
    story.wait(MINUTE).begin("i2", machine="n")
    story.fault("machine_frozen", ends=True)
    story.wait(MINUTE)


def _begun_on_a_woken_machine(story: Story) -> None:
    story.fault("machine_frozen")
    story.wait(MINUTE).begin("i2", machine="n")
    story.fault("machine_frozen", ends=True)
    story.begin("i1")


def _supervisor_frozen(story: Story) -> None:
    """Its tasks run on, so a guardian must have ended them."""
    story.begin("i1")
    story.fault("supervisor_frozen")
    story.wait(MINUTE).begin("i2", machine="n")


def _both_guards_frozen(story: Story, *, went_on_us: int) -> None:
    """Each would have acted for the other; the supervisor wakes."""
    _running(story)
    story.fault("guardian_frozen")
    story.wait(SECOND).fault("supervisor_frozen")
    story.wait(MINUTE).fail(code="WORKER_LOST", category="lost")
    story.fault("supervisor_frozen", ends=True)
    story.wait(went_on_us).end(how="killed")


def _both_guards_frozen_ended_soon(story: Story) -> None:
    _both_guards_frozen(story, went_on_us=100 * MILLISECOND)


def _both_guards_frozen_went_on(story: Story) -> None:
    _both_guards_frozen(story, went_on_us=SECOND)


def _one_guard_woken_in_time(story: Story) -> None:
    _running(story)
    story.fault("guardian_frozen")
    story.fault("supervisor_frozen")
    story.wait(SECOND).fault("guardian_frozen", ends=True)
    story.wait(MINUTE).fail(code="WORKER_LOST", category="lost")


def _lost_while_it_executes(story: Story) -> None:
    _running(story)
    story.wait(MINUTE).fail(code="WORKER_LOST", category="lost")


def _lost_once_it_was_killed(story: Story) -> None:
    _running(story)
    story.wait(MINUTE).end(how="killed")
    story.fail(code="WORKER_LOST", category="lost")


# ── I2 ───────────────────────────────────────────────────────────────────────────────────────────────


def _answered(story: Story, name: str) -> None:
    story.judge(SubmissionAnswered(at_us=story.at_us, process="c", instance_id=name, task="t"))


def _accepted_and_there(story: Story) -> None:
    _success(story)
    _answered(story, "i")


def _accepted_and_not_there(story: Story) -> None:
    _answered(story, "i")


def _refused_and_not_there(story: Story) -> None:
    story.judge(
        SubmissionAnswered(at_us=0, process="c", instance_id="i", task="t", error_code="DATABASE_UNAVAILABLE")
    )


def _deleted_alive(story: Story) -> None:
    story.submit()
    story.commit(story.row(story.rows["i"], None))


def _deleted_ended(story: Story) -> None:
    _success(story)
    story.commit(story.row(story.rows["i"], None))


def _waits_in_silence(story: Story) -> None:
    story.submit()
    story.wait(60 * MINUTE)


def _waits_visibly(story: Story) -> None:
    story.submit()
    story.change("i", hold=Hold.NO_WORKER, reason="no worker can run t")
    story.wait(60 * MINUTE)


def _waits_behind(story: Story, *, wait_us: int = MINUTE, **fields: Any) -> None:
    """It is due for an hour, and another that was due earlier was assigned a while ago."""
    story.submit("before", due_us=START_US - SECOND, **fields)
    story.submit()
    story.wait(60 * MINUTE - wait_us).assign("before")
    story.wait(wait_us).tick()


def _waits_behind_what_was_due_earlier(story: Story) -> None:
    _waits_behind(story)


def _waits_behind_what_is_more_urgent(story: Story) -> None:
    story.submit(priority=4)
    story.wait(MINUTE - SECOND).submit("before", priority=5)
    story.wait(60 * MINUTE).assign("before")


def _waits_and_nothing_went_before_for_long(story: Story) -> None:
    _waits_behind(story, wait_us=10 * MINUTE)


def _overtaken(story: Story) -> None:
    _waits_behind(story, priority=4)


def _waits_behind_another_pool(story: Story) -> None:
    task = story.task
    story.task = msgspec.structs.replace(task, executor=PythonSpec("m:t", is_async=True))
    _waits_behind(story)
    story.task = task


def _waits_behind_what_other_workers_run(story: Story) -> None:
    _waits_behind(story)
    story.task = msgspec.structs.replace(story.task, labels={"zone": "b"})


def _changed_unseen(story: Story) -> None:
    story.submit()
    story.rows["i"] = story.instance(state=State.RUNNING, attempt=1)
    story.succeed()


# ── I3 ───────────────────────────────────────────────────────────────────────────────────────────────


def _fails(story: Story, count: int) -> None:
    story.submit()
    for _ in range(count):
        story.assign()
        story.fail()
        story.wait(5 * SECOND)


def _two_retries(story: Story) -> None:
    _fails(story, 2)
    story.assign()
    story.fail(state=State.FAILED)


def _three_retries(story: Story) -> None:
    _fails(story, 3)


def _lost_twice(story: Story) -> None:
    story.submit()
    for state in (State.RETRY_WAITING, State.FAILED):
        story.assign()
        story.fail(code="WORKER_LOST", category="lost", state=state)


def _lost_twice_and_retried(story: Story) -> None:
    story.submit()
    for _ in range(2):
        story.assign()
        story.fail(code="WORKER_LOST", category="lost")


def _counters_forget(story: Story) -> None:
    _fails(story, 1)
    story.assign()
    story.fail(counters=Counters(failures=1, window_opened_us=START_US))


def _loss_uncounted(story: Story) -> None:
    story.submit()
    story.assign()
    story.fail(code="WORKER_LOST", category="lost", counters=Counters())


def _refused_often(story: Story) -> None:
    story.submit()
    for count in range(5):
        story.assign()
        story.fail(code="REFUSED", category="lost", counters=Counters(refusals=count + 1))


def _starts_at_the_end_of_the_window(story: Story) -> None:
    _fails(story, 1)
    story.wait(2 * SECOND).assign()


def _starts_after_the_window(story: Story) -> None:
    _fails(story, 1)
    story.wait(2 * SECOND + 1).assign()


def _window_opened_anew(story: Story) -> None:
    _fails(story, 1)
    story.assign()
    story.fail(counters=Counters(failures=2, window_opened_us=story.shared_us()))


_WINDOW = RetryPolicy(backoff="fixed", interval_us=5 * SECOND, max_retry=9, window_us=7 * SECOND)


# ── I4 ───────────────────────────────────────────────────────────────────────────────────────────────


def _assigned_early_by_its_own_words(story: Story) -> None:
    story.submit(due_us=story.shared_us() + SECOND)
    story.wait(SECOND).assign(assigned_us=START_US)


def _assigned_early_by_a_wrong_clock(story: Story) -> None:
    story.submit(due_us=story.shared_us() + SECOND)
    story.assign(assigned_us=story.shared_us() + SECOND)


def _assigned_in_time(story: Story) -> None:
    story.submit(due_us=story.shared_us() + SECOND)
    story.wait(SECOND).assign()


def _fired_early(story: Story) -> None:
    story.commit(*story.fired(START_US + SECOND))


def _fired_late(story: Story) -> None:
    story.wait(MINUTE)
    story.commit(*story.fired(START_US + SECOND))


# ── I5 ───────────────────────────────────────────────────────────────────────────────────────────────


def _taken(story: Story, epoch: int, owner: str = "b") -> None:
    before = story.owner
    story.owner = Proof(0, owner, epoch)
    story.own(story.owner, before=before)


def _moved_by_the_next_owner(story: Story) -> None:
    story.submit()
    _taken(story, 2)
    story.assign()


def _moved_by_a_former_owner(story: Story) -> None:
    story.submit()
    former = story.owner
    _taken(story, 2)
    story.change("i", state=State.RUNNING, attempt=1, attempt_id="i1", proof=former)


def _moved_at_a_former_epoch(story: Story) -> None:
    story.submit()
    _taken(story, 2)
    _taken(story, 3, "a")
    story.change("i", state=State.RUNNING, attempt=1, attempt_id="i1", proof=Proof(0, "a", 1))


def _moved_under_another_partition(story: Story) -> None:
    story.submit(partition=1)
    story.assign()


def _same_epoch_twice(story: Story) -> None:
    _taken(story, 1)


def _handed_over_and_taken(story: Story) -> None:
    before = story.owner
    story.own(Proof(0, "", 1), before=before)
    story.own(Proof(0, "b", 2), before=Proof(0, "", 1))


def _executed_before_written(story: Story) -> None:
    story.submit()
    story.begin("i1")


def _attempt_skipped(story: Story) -> None:
    story.submit()
    story.assign("i", attempt=2, attempt_id="i2")


_REFUSED: list[tuple[type[Checker], Course]] = [
    (SingleExecution, _two_at_once),
    (SingleExecution, _twice),
    (SingleExecution, _frozen_went_on),
    (SingleExecution, _woken_and_never_ended),
    (SingleExecution, _begun_on_a_woken_machine),
    (SingleExecution, _supervisor_frozen),
    (SingleExecution, _both_guards_frozen_went_on),
    (SingleExecution, _one_guard_woken_in_time),
    (SingleExecution, _lost_while_it_executes),
    (NothingLost, _accepted_and_not_there),
    (NothingLost, _deleted_alive),
    (NothingLost, _waits_in_silence),
    (NothingLost, _waits_and_nothing_went_before_for_long),
    (NothingLost, _overtaken),
    (NothingLost, _waits_behind_another_pool),
    (NothingLost, _waits_behind_what_other_workers_run),
    (NothingLost, _changed_unseen),
    (BoundedAttempts, _three_retries),
    (BoundedAttempts, _lost_twice_and_retried),
    (BoundedAttempts, _counters_forget),
    (BoundedAttempts, _loss_uncounted),
    (NeverEarly, _assigned_early_by_its_own_words),
    (NeverEarly, _assigned_early_by_a_wrong_clock),
    (NeverEarly, _fired_early),
    (OneDecisionMaker, _moved_by_a_former_owner),
    (OneDecisionMaker, _moved_at_a_former_epoch),
    (OneDecisionMaker, _moved_under_another_partition),
    (OneDecisionMaker, _same_epoch_twice),
    (OneDecisionMaker, _executed_before_written),
    (OneDecisionMaker, _attempt_skipped),
]
_PASSING: list[tuple[type[Checker], Course]] = [
    (SingleExecution, _one_after_the_other),
    (SingleExecution, _relaxed),
    (SingleExecution, _lost_once_it_was_killed),
    (SingleExecution, _frozen_ended_soon),
    (SingleExecution, _both_guards_frozen_ended_soon),
    (NothingLost, _accepted_and_there),
    (NothingLost, _refused_and_not_there),
    (NothingLost, _deleted_ended),
    (NothingLost, _waits_visibly),
    (NothingLost, _waits_behind_what_was_due_earlier),
    (NothingLost, _waits_behind_what_is_more_urgent),
    (BoundedAttempts, _two_retries),
    (BoundedAttempts, _lost_twice),
    (BoundedAttempts, _refused_often),
    (NeverEarly, _assigned_in_time),
    (NeverEarly, _fired_late),
    (OneDecisionMaker, _moved_by_the_next_owner),
    (OneDecisionMaker, _handed_over_and_taken),
    (OneDecisionMaker, _retried),
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


def test_an_attempt_may_start_at_the_end_of_the_retry_window_and_not_later() -> None:
    in_time, late, anew = (Story(BoundedAttempts, policy=_WINDOW) for _ in range(3))
    _starts_at_the_end_of_the_window(in_time)
    _starts_after_the_window(late)
    _window_opened_anew(anew)
    assert in_time.verdict() == []
    assert [len(story.verdict()) for story in (late, anew)] == [1, 1]
