"""Checkers refuse histories that break their rule, and let pass those that keep it: retries, acts, waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.histories import EVERY_US, START_US, Story

from ostinato.core.failure.failure import safe_failure
from ostinato.core.instants import MINUTE, SECOND
from ostinato.core.model import HistoryKind
from ostinato.core.retry.counters import Counters
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.states import Hold, State
from ostinato.observe.records import InvariantBroken, LoopFailed, LoopTurned, Record
from ostinato.simulation.checkers.acts import Acts
from ostinato.simulation.checkers.breakage import Breakage
from ostinato.simulation.checkers.checker import Checker
from ostinato.simulation.checkers.liveness import Liveness
from ostinato.simulation.checkers.retry_times import RetryTimes
from ostinato.simulation.checkers.told import EverythingTold
from ostinato.simulation.history import Observed, RequestAnswered

Course = Callable[[Story], None]


def _fails(story: Story, *, wait_us: int, **fields: object) -> None:
    story.submit()
    story.assign()
    story.wait(SECOND)
    story.fail(wait_us=wait_us, **fields)  # type: ignore[arg-type]  # as `fail` takes them


# ── retry times ──────────────────────────────────────────────────────────────────────────────────────


def _waits_as_the_policy_says(story: Story) -> None:
    _fails(story, wait_us=5 * SECOND)


def _waits_too_little(story: Story) -> None:
    _fails(story, wait_us=5 * SECOND - 1)


def _waits_too_long(story: Story) -> None:
    _fails(story, wait_us=6 * SECOND)


def _lost_and_at_once(story: Story) -> None:
    _fails(story, wait_us=0, code="WORKER_LOST", category="lost")


def _lost_and_by_the_backoff(story: Story) -> None:
    _fails(story, wait_us=5 * SECOND, code="WORKER_LOST", category="lost")


def _asks_for_a_minute(story: Story) -> None:
    failure = safe_failure("ECONNRESET", "later", retry_after_us=MINUTE)
    _fails(story, wait_us=MINUTE, failure=failure)


def _asks_for_a_minute_in_vain(story: Story) -> None:
    failure = safe_failure("ECONNRESET", "later", retry_after_us=MINUTE)
    _fails(story, wait_us=5 * SECOND, failure=failure)


def _decided_before_its_beginning(story: Story) -> None:
    """The attempt began at START_US, the decision was taken 3 s before that, and is written 1 s after it."""
    story.submit()
    story.assign()
    story.wait(5 * SECOND)
    ended_us = START_US - 3 * SECOND
    failure = safe_failure("ECONNRESET", "said so", category="transient")
    told = story.told(
        "i", HistoryKind.RETRY, code="ECONNRESET", category="transient", failure=failure, at_us=ended_us
    )
    story.change(
        "i",
        told,
        state=State.RETRY_WAITING,
        counters=Counters(failures=1, window_opened_us=ended_us),
        due_us=ended_us + 5 * SECOND,
        failure=failure,
    )


def _decided_by_a_clock_that_was_put_back(story: Story) -> None:
    story.submit("other")
    story.put_back_us = 4 * SECOND
    story.at_us = 4 * SECOND
    _decided_before_its_beginning(story)


def _given_up_too_soon(story: Story) -> None:
    _fails(story, wait_us=0, state=State.FAILED)


def _given_up_in_the_end(story: Story) -> None:
    counters = Counters(failures=3, window_opened_us=START_US)
    _fails(story, wait_us=0, state=State.FAILED, counters=counters)


def _given_up_as_permanent(story: Story) -> None:
    _fails(story, wait_us=0, state=State.FAILED, code="EACCES", category="permanent")


_JITTERED = RetryPolicy(
    backoff="exponential",
    interval_us=10 * SECOND,
    multiplier=2.0,
    max_interval_us=15 * SECOND,
    jitter="proportional",
    jitter_factor=0.5,
    max_retry=5,
)


@pytest.mark.parametrize(
    ("failures", "wait_us", "is_lawful"),
    [
        (1, 5 * SECOND, True),
        (1, 5 * SECOND - 1, False),
        (1, 15 * SECOND, True),
        (2, 15 * SECOND, True),
        (2, 7 * SECOND, False),
        (2, 16 * SECOND, False),
    ],
)
def test_a_jittered_wait_is_within_its_bounds(failures: int, wait_us: int, *, is_lawful: bool) -> None:
    story = Story(RetryTimes, policy=_JITTERED)
    _fails(story, wait_us=wait_us, counters=Counters(failures=failures, window_opened_us=START_US))
    assert (story.verdict() == []) is is_lawful


# ── told ─────────────────────────────────────────────────────────────────────────────────────────────


def _fails_in_silence(story: Story) -> None:
    story.submit()
    story.assign()
    story.change("i", state=State.RETRY_WAITING)


def _tells_of_another_attempt(story: Story) -> None:
    story.submit()
    story.assign()
    failure = safe_failure("ECONNRESET", "said so")
    told = story.told(
        "i", HistoryKind.RETRY, code="ECONNRESET", failure=failure, attempt_id="i9", due_us=START_US
    )
    story.change("i", told, state=State.RETRY_WAITING, due_us=START_US)


def _expires_in_silence(story: Story) -> None:
    story.submit()
    story.change("i", state=State.FAILED, finished_us=story.shared_us())


def _expires_and_says_so(story: Story) -> None:
    story.submit()
    story.change("i", story.told("i", HistoryKind.EXPIRED), state=State.FAILED)


def _skipped_in_silence(story: Story) -> None:
    story.submit(state=State.SKIPPED, finished_us=START_US)


def _succeeds_without_a_word(story: Story) -> None:
    story.submit()
    story.assign()
    story.succeed()


# ── acts ─────────────────────────────────────────────────────────────────────────────────────────────


def _asks(story: Story, kind: str, **fields: object) -> None:
    name = "" if kind in ("pause", "disable", "resume") else "i"
    story.commit(story.request(kind, name=name))


def _cancel_wished(story: Story) -> None:
    story.submit()
    story.assign()
    story.begin()
    _asks(story, "cancel")
    told = story.told("i", HistoryKind.CANCEL_REQUESTED)
    answer = story.request("cancel", answer="OK", name="i")
    story.change("i", told, events=(answer,), cancel_requested_us=story.shared_us())


def _cancelled(story: Story) -> None:
    _cancel_wished(story)
    story.end(how="killed")
    failure = safe_failure("CANCELLED", "asked for")
    told = story.told("i", HistoryKind.CANCELLED, code="CANCELLED", failure=failure)
    story.change("i", told, state=State.CANCELLED)


def _cancel_answered_and_forgotten(story: Story) -> None:
    story.submit()
    story.assign()
    _asks(story, "cancel")
    story.commit(story.request("cancel", answer="OK", name="i"))


def _cancelled_and_retried(story: Story) -> None:
    _cancel_wished(story)
    story.fail()


def _cancel_never_reaches_the_worker(story: Story) -> None:
    _cancel_wished(story)
    story.healed()
    story.wait(MINUTE).tick()


def _cancel_takes_its_grace(story: Story) -> None:
    story.healed()
    story.wait(MINUTE)
    _cancel_wished(story)
    story.wait(13 * SECOND).tick()


def _cancel_after_the_healing_is_unheard(story: Story) -> None:
    story.healed()
    story.wait(MINUTE)
    _cancel_wished(story)
    story.wait(14 * SECOND).tick()


def _never_answered(story: Story) -> None:
    story.submit()
    _asks(story, "cancel")
    story.healed()


def _answered_twice(story: Story) -> None:
    _cancelled(story)
    story.commit(story.request("cancel", answer="OK", name="i"))


def _paused(story: Story) -> None:
    story.known_task()
    _asks(story, "pause")
    story.commit(story.flag(paused=True), story.request("pause", answer="OK"))


def _paused_and_assigned(story: Story) -> None:
    _paused(story)
    story.submit()
    story.wait(MINUTE).assign()


def _paused_resumed_and_assigned(story: Story) -> None:
    _paused(story)
    story.submit()
    story.wait(MINUTE).commit(story.flag(paused=False))
    story.assign()


def _paused_and_fired(story: Story) -> None:
    _paused(story)
    story.wait(MINUTE)
    story.commit(story.advance(START_US + 2 * MINUTE), *story.fired(START_US + EVERY_US))


def _pause_answered_and_not_in_force(story: Story) -> None:
    story.known_task()
    _asks(story, "pause")
    story.commit(story.request("pause", answer="OK"))


def _read_what_was_written(story: Story) -> None:
    _cancelled(story)
    _read(story, "OK")


def _read_something_else(story: Story) -> None:
    _cancelled(story)
    _read(story, "INSTANCE_TERMINAL")


def _read(story: Story, code: str) -> None:
    story.judge(
        RequestAnswered(
            at_us=0,
            process="c",
            request_id="cancel-i",
            kind="cancel",
            instance_id="i",
            answer_code=code,
        )
    )


# ── liveness ─────────────────────────────────────────────────────────────────────────────────────────


def _due_and_left(story: Story) -> None:
    story.submit()
    story.healed()
    story.wait(60 * MINUTE)


def _retry_and_left(story: Story) -> None:
    _fails(story, wait_us=MINUTE)
    story.healed()


def _due_later(story: Story) -> None:
    story.submit(due_us=START_US + 60 * MINUTE)
    story.healed()


def _submitted_after_the_healing(story: Story) -> None:
    story.healed()
    story.wait(SECOND).submit()


def _held_by_a_pause(story: Story) -> None:
    story.known_task()
    story.submit()
    story.commit(story.flag(paused=True))
    story.change("i", hold=Hold.PAUSED, reason="task is paused")
    story.healed()


def _held_by_a_pause_that_is_over(story: Story) -> None:
    _held_by_a_pause(story)
    story.commit(story.flag(paused=False))


_REFUSED: list[tuple[type[Checker], Course]] = [
    (RetryTimes, _waits_too_little),
    (RetryTimes, _waits_too_long),
    (RetryTimes, _lost_and_by_the_backoff),
    (RetryTimes, _asks_for_a_minute_in_vain),
    (RetryTimes, _given_up_too_soon),
    (RetryTimes, _decided_before_its_beginning),
    (EverythingTold, _fails_in_silence),
    (EverythingTold, _tells_of_another_attempt),
    (EverythingTold, _expires_in_silence),
    (EverythingTold, _skipped_in_silence),
    (Acts, _cancel_answered_and_forgotten),
    (Acts, _cancelled_and_retried),
    (Acts, _cancel_never_reaches_the_worker),
    (Acts, _cancel_after_the_healing_is_unheard),
    (Acts, _never_answered),
    (Acts, _answered_twice),
    (Acts, _paused_and_assigned),
    (Acts, _paused_and_fired),
    (Acts, _pause_answered_and_not_in_force),
    (Acts, _read_something_else),
    (Liveness, _due_and_left),
    (Liveness, _retry_and_left),
    (Liveness, _held_by_a_pause_that_is_over),
]
_PASSING: list[tuple[type[Checker], Course]] = [
    (RetryTimes, _waits_as_the_policy_says),
    (RetryTimes, _lost_and_at_once),
    (RetryTimes, _decided_by_a_clock_that_was_put_back),
    (RetryTimes, _asks_for_a_minute),
    (RetryTimes, _given_up_in_the_end),
    (RetryTimes, _given_up_as_permanent),
    (EverythingTold, _waits_as_the_policy_says),
    (EverythingTold, _expires_and_says_so),
    (EverythingTold, _succeeds_without_a_word),
    (EverythingTold, _cancelled),
    (Acts, _cancelled),
    (Acts, _cancel_takes_its_grace),
    (Acts, _paused),
    (Acts, _paused_resumed_and_assigned),
    (Acts, _read_what_was_written),
    (Liveness, _due_later),
    (Liveness, _submitted_after_the_healing),
    (Liveness, _held_by_a_pause),
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


@pytest.mark.parametrize(
    ("record", "count"),
    [
        (InvariantBroken(name="trigger", error_message="I5"), 1),
        (LoopFailed(loop="trigger", error_code="INTERNAL", error_message="KeyError"), 1),
        (LoopFailed(loop="trigger", error_code="DATABASE_UNAVAILABLE", error_message="away"), 0),
        (LoopTurned(loop="trigger", lag_us=0), 0),
    ],
)
def test_a_fault_of_ours_in_a_loop_is_a_violation_and_one_of_the_world_is_not(
    record: Record, count: int
) -> None:
    story = Story(Breakage)
    story.judge(Observed(at_us=0, process="p", record=record))
    assert len(story.verdict()) == count


@pytest.mark.parametrize(
    ("due_us", "priority", "is_progress"),
    [
        (START_US, 5, True),
        (START_US + 2 * MINUTE, 5, False),
        (START_US + 2 * MINUTE, 7, True),
        (START_US, 3, False),
    ],
)
def test_what_goes_before_is_progress_for_what_waits_since_the_healing(
    due_us: int, *, priority: int, is_progress: bool
) -> None:
    """As the queue has it: a priority more is worth a minute."""
    story = Story(Liveness)
    story.submit("waiting", due_us=START_US + MINUTE)
    story.healed()
    story.wait(SECOND).submit("other", due_us=due_us, priority=priority)
    story.wait(SECOND).assign("other")
    story.tick()
    (liveness,) = story.judge.checkers
    assert isinstance(liveness, Liveness)
    assert (liveness.moved_us == story.at_us) is is_progress
