"""Attempts end: results, verdicts, cancels, late reports."""

from __future__ import annotations

import pytest
from support.partition_facts import NOW_US, instance, outcome, refused_connection, rng, running, task

from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.instants import SECOND
from ostinato.core.model import HistoryKind, Outcome
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.ended import end_attempt, lose_attempt, refuse_outcome
from ostinato.core.partition.state import Memory, settle
from ostinato.core.retry.counters import Counters
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.states import State

POLICY = RetryPolicy(backoff="fixed", interval_us=30 * SECOND, max_retry=2)


def test_a_success_is_one_move_and_leaves_no_history() -> None:
    effects = Effects()
    end_attempt(running(), outcome(), now_us=NOW_US + SECOND, rng=rng(), into=effects)
    (success,) = effects.batch.successes
    assert (success.instance_id, success.attempt_id, success.result) == ("i1", "a1", b"1")
    assert effects.batch.history == []
    assert effects.ended[0].outcome == "success"
    assert effects.ended[0].run_us == SECOND


def test_a_failure_carries_its_verdict_in_the_same_batch() -> None:
    effects = Effects()
    attempt = running(task(retry=POLICY))
    end_attempt(attempt, outcome(refused_connection()), now_us=NOW_US, rng=rng(), into=effects)
    (ended,) = effects.batch.ended_attempts
    assert ended.state is State.RETRY_WAITING
    assert ended.due_us == NOW_US + 30 * SECOND
    assert ended.counters.failures == 1
    assert ended.finished_us is None
    (history,) = effects.batch.history
    assert history.kind is HistoryKind.RETRY
    assert history.code == "ECONNREFUSED"
    assert history.due_us == ended.due_us
    assert "retry 1 of 2" in history.sentence
    assert ended.reason == history.sentence


def test_the_last_failure_gives_up_at_once() -> None:
    """C055: no further wait after the last permitted attempt."""
    effects = Effects()
    attempt = running(task(retry=POLICY), counters=Counters(failures=2, window_opened_us=NOW_US))
    end_attempt(attempt, outcome(refused_connection()), now_us=NOW_US + SECOND, rng=rng(), into=effects)
    (ended,) = effects.batch.ended_attempts
    assert ended.state is State.FAILED
    assert ended.finished_us == NOW_US + SECOND
    assert effects.batch.history[0].kind is HistoryKind.GAVE_UP
    assert effects.batch.history[0].due_us is None


def test_a_failure_after_a_cancel_is_cancelled_and_never_retried() -> None:
    effects = Effects()
    attempt = running(task(retry=POLICY), cancel_requested=True, cancel_reason="by ada")
    end_attempt(attempt, outcome(refused_connection()), now_us=NOW_US, rng=rng(), into=effects)
    assert effects.batch.ended_attempts[0].state is State.CANCELLED
    assert effects.batch.history[0].kind is HistoryKind.CANCELLED
    assert "by ada" in effects.batch.history[0].sentence


def test_a_success_that_was_received_wins_over_a_cancel() -> None:
    effects = Effects()
    end_attempt(running(cancel_requested=True), outcome(), now_us=NOW_US, rng=rng(), into=effects)
    assert len(effects.batch.successes) == 1


def test_a_lost_attempt_counts_as_lost_and_is_retried_at_once() -> None:
    effects = Effects()
    lose_attempt(
        running(task(retry=POLICY)),
        code="WORKER_LOST",
        message="gone",
        now_us=NOW_US,
        rng=rng(),
        into=effects,
    )
    (ended,) = effects.batch.ended_attempts
    assert (ended.state, ended.due_us) == (State.RETRY_WAITING, NOW_US)
    assert (ended.counters.failures, ended.counters.lost) == (0, 1)


def test_a_refusal_counts_nothing_and_leaves_the_failure_before_it() -> None:
    effects = Effects()
    refused = outcome(unstarted_reason="lease was over", result=None, started_us=None)
    end_attempt(running(task(retry=POLICY)), refused, now_us=NOW_US, rng=rng(), into=effects)
    (ended,) = effects.batch.ended_attempts
    assert ended.state is State.RETRY_WAITING
    assert (ended.counters.failures, ended.counters.lost, ended.counters.refusals) == (0, 0, 1)
    assert ended.failure is None
    assert effects.batch.history[0].kind is HistoryKind.REFUSED


def test_a_task_s_own_code_named_like_a_refusal_counts_as_its_failure() -> None:
    effects = Effects()
    own = safe_failure("REFUSED", "the bank refused", category="transient")
    end_attempt(running(task(retry=POLICY)), outcome(own), now_us=NOW_US, rng=rng(), into=effects)
    (ended,) = effects.batch.ended_attempts
    assert ended.counters.failures == 1
    assert ended.failure == own
    assert effects.batch.history[0].kind is HistoryKind.RETRY
    assert effects.ended[0].outcome == "failed"


def test_a_success_that_comes_after_the_attempt_was_lost_for_good_is_not_called_counted() -> None:
    effects = Effects()
    given_up = instance(state=State.FAILED, attempt=1, attempt_id="a1")
    refuse_outcome(outcome(), given_up, now_us=NOW_US, into=effects)
    assert effects.batch.history[0].sentence == (
        "the success reported for attempt 1 was refused: the attempt is no longer running; "
        "the instance is failed"
    )


def test_a_retry_expires_at_the_end_of_its_window() -> None:
    window = RetryPolicy(backoff="fixed", interval_us=SECOND, window_us=60 * SECOND)
    effects = Effects()
    end_attempt(
        running(task(retry=window)), outcome(refused_connection()), now_us=NOW_US, rng=rng(), into=effects
    )
    assert effects.batch.ended_attempts[0].expires_us == NOW_US + 60 * SECOND


def test_a_late_outcome_is_kept_and_changes_nothing() -> None:
    """I6."""
    effects = Effects()
    now_running = instance(state=State.RUNNING, attempt=2, attempt_id="a2")
    refuse_outcome(outcome(), now_running, now_us=NOW_US, into=effects)
    (history,) = effects.batch.history
    assert history.kind is HistoryKind.LATE_RESULT
    assert history.unconditional
    assert history.sentence == (
        "the success reported for attempt 1 was refused: attempt 2 has begun since; the instance is running"
    )
    assert effects.batch.successes == []


def test_memory_changes_only_by_what_was_written() -> None:
    memory = Memory(epochs={3: 1}, running={"i1": running(), "i2": running(instance_id="i2")})
    effects = Effects()
    for attempt in memory.running.values():
        end_attempt(
            attempt,
            outcome(instance_id=attempt.instance_id),
            now_us=NOW_US,
            rng=rng(),
            into=effects,
        )
    settle(memory, effects, dropped=frozenset({"i2"}), kept=frozenset({"i2"}))
    assert list(memory.running) == ["i2"]


def test_own_code_on_retry_on_is_named_in_the_sentence() -> None:
    policy = RetryPolicy(backoff="fixed", interval_us=SECOND, max_retry=4, retry_on=("ECONNREFUSED",))
    effects = Effects()
    attempt = running(task(retry=policy), counters=Counters(failures=1, window_opened_us=NOW_US))
    end_attempt(attempt, outcome(refused_connection()), now_us=NOW_US, rng=rng(), into=effects)
    assert "ECONNREFUSED is on retry_on; retry 2 of 4" in effects.batch.history[0].sentence


def test_a_code_not_on_retry_on_fails_at_once() -> None:
    policy = RetryPolicy(retry_on=("HTTP_5*",))
    effects = Effects()
    failure = safe_failure("ECONNREFUSED", "refused")
    end_attempt(running(task(retry=policy)), outcome(failure), now_us=NOW_US, rng=rng(), into=effects)
    assert effects.batch.ended_attempts[0].state is State.FAILED
    assert "retry_on" in effects.batch.ended_attempts[0].reason


@pytest.mark.parametrize("failure", [refused_connection(), None])
def test_a_retry_of_what_was_withdrawn_is_cancelled(failure: Failure | None) -> None:
    effects = Effects()
    reported = outcome(failure) if failure is not None else outcome(result=None, unstarted_reason="drains")
    _end_withdrawn(POLICY, reported, into=effects)
    (ended,) = effects.batch.ended_attempts
    assert (ended.state, ended.finished_us) == (State.CANCELLED, NOW_US + SECOND)
    assert "task default/t was deleted" in ended.reason
    assert effects.batch.history[0].kind is HistoryKind.CANCELLED
    assert effects.ended[0].due_us is None


@pytest.mark.parametrize(
    ("policy", "failure"),
    [
        (RetryPolicy(max_retry=0), refused_connection()),
        (POLICY, safe_failure("ValueError", "bad", category="permanent")),
    ],
)
def test_what_was_withdrawn_and_fails_for_good_has_failed(policy: RetryPolicy, failure: Failure) -> None:
    """Whoever is told of failures must hear of it."""
    effects = Effects()
    _end_withdrawn(policy, outcome(failure), into=effects)
    (ended,) = effects.batch.ended_attempts
    assert (ended.state, ended.finished_us) == (State.FAILED, NOW_US + SECOND)
    assert effects.batch.history[0].kind is HistoryKind.GAVE_UP


def _end_withdrawn(policy: RetryPolicy, reported: Outcome, *, into: Effects) -> None:
    end_attempt(
        running(task(retry=policy)),
        reported,
        now_us=NOW_US + SECOND,
        rng=rng(),
        into=into,
        withdrawn="task default/t was deleted",
    )


def test_a_loss_of_what_was_withdrawn_is_cancelled() -> None:
    effects = Effects()
    lose_attempt(
        running(task(retry=POLICY)),
        code="WORKER_LOST",
        message="gone",
        now_us=NOW_US,
        rng=rng(),
        into=effects,
        withdrawn="task default/t is disabled",
    )
    assert effects.batch.ended_attempts[0].state is State.CANCELLED
    assert (
        effects.batch.history[0].sentence
        == "cancelled: task default/t is disabled; the attempt ended with WORKER_LOST"
    )


def test_a_success_of_what_was_withdrawn_counts_and_a_wish_to_cancel_says_who_wanted_it() -> None:
    effects = Effects()
    end_attempt(running(), outcome(), now_us=NOW_US, rng=rng(), into=effects, withdrawn="deleted")
    assert len(effects.batch.successes) == 1
    end_attempt(
        running(cancel_requested=True, cancel_reason="ada wants it"),
        outcome(refused_connection()),
        now_us=NOW_US,
        rng=rng(),
        into=effects,
        withdrawn="deleted",
    )
    assert "ada wants it" in effects.batch.ended_attempts[0].reason
