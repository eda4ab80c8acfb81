"""The verdict: which rule decides, in which words, with which counters."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from ostinato.core.failure.failure import Cause, Failure, safe_failure
from ostinato.core.instants import DAY, HOUR, INSTANT_MAX_US, MINUTE, SECOND, format_instant, parse_instant
from ostinato.core.retry.counters import Counters
from ostinato.core.retry.policy import DEFAULT_POLICY, RetryPolicy, RetryRule, effective_policy
from ostinato.core.retry.verdict import GiveUp, RetryAt, Verdict, decide, window_end_us

NOW_US = parse_instant("2026-01-01T00:00:00Z")
REFUSED = safe_failure("ECONNREFUSED", "connection refused")
FRESH = Counters()


def verdict_on(
    policy: RetryPolicy,
    failure: Failure = REFUSED,
    *,
    counters: Counters = FRESH,
    now_us: int = NOW_US,
    seed: int = 1,
    failed_us: int | None = None,
) -> Verdict:
    return decide(policy, failure, counters, now_us=now_us, rng=Random(seed), failed_us=failed_us)


def waits(policy: RetryPolicy, failure: Failure = REFUSED) -> list[float]:
    """Seconds before each retry of a task that always fails at once."""
    counters, now_us, found = FRESH, NOW_US, []
    while isinstance(verdict := verdict_on(policy, failure, counters=counters, now_us=now_us), RetryAt):
        found.append((verdict.due_us - now_us) / SECOND)
        counters, now_us = verdict.counters, verdict.due_us
    return found


def test_the_acceptance_waits() -> None:
    assert waits(effective_policy({"backoff": "exponential", "interval": "5s"})) == [5, 10, 20]
    assert waits(effective_policy({"backoff": "fixed", "interval": "30s"})) == [30, 30, 30]
    assert waits(effective_policy({"backoff": "linear", "interval": "30s"})) == [30, 60, 90]
    assert waits(effective_policy({"backoff": "delays", "delays": ["1s", "0s"]})) == [1, 0]


def test_a_retry_says_the_rule_the_count_the_wait_and_the_instant() -> None:
    policy = effective_policy({"interval": "5s", "max_retry": 4, "retry_on": ["ECONNREFUSED"]})
    verdict = verdict_on(policy, counters=Counters(failures=1, window_opened_us=NOW_US - SECOND))
    assert verdict == RetryAt(
        due_us=NOW_US + 10 * SECOND,
        why="code ECONNREFUSED is on retry_on; retry 2 of 4; waits 10s; next at 2026-01-01T00:00:10Z",
        rule="retry_on: ECONNREFUSED",
        counters=Counters(failures=2, previous_delay_us=10 * SECOND, window_opened_us=NOW_US - SECOND),
    )


def rejected_below(code: str = "PYTHON_ERROR") -> Failure:
    return safe_failure(
        code,
        "wrapped",
        classes=("RuntimeError", "Exception"),
        chain=[Cause("RuntimeError", "", ("RuntimeError",)), Cause("app.Rejected", "", ("app.Rejected",))],
    )


def raised_refusal() -> Failure:
    classes = ("ConnectionRefusedError", "ConnectionError", "OSError", "Exception")
    return safe_failure("ECONNREFUSED", "refused", classes=classes)


@pytest.mark.parametrize(
    ("partial", "failure", "start"),
    [
        ({}, REFUSED, "code ECONNREFUSED (transient) may be retried; retry 1 of 3; waits 5s; next at 2026"),
        ({"no_retry_on": []}, REFUSED, "code ECONNREFUSED (transient) may be retried; retry 1 of 3;"),
        ({"retry_on": ["ECONN*"]}, REFUSED, "code ECONNREFUSED (ECONN*) is on retry_on; retry 1 of 3;"),
        ({"retry_on": ["transient"]}, REFUSED, "code ECONNREFUSED of category transient is on retry_on;"),
        (
            {"retry_on": ["OSError"]},
            raised_refusal(),
            "class ConnectionRefusedError (subclass of OSError) is on retry_on; retry 1 of 3;",
        ),
        (
            {"interval": "1h", "max_interval": "90s"},
            REFUSED,
            "code ECONNREFUSED (transient) may be retried; retry 1 of 3; "
            "waits 1m30s (capped by max_interval);",
        ),
        (
            {"rules": [{"match": ["E*"], "action": "retry", "interval": "7s"}]},
            REFUSED,
            "code ECONNREFUSED (E*) matches rules[0]; retry 1 of 3; waits 7s;",
        ),
        (
            {"retry_on": ["HTTP_5*"]},
            safe_failure("RETRY_LATER", "m", retry_after_us=MINUTE),
            "the task asked to be run again (RetryLater); retry 1 of 3; the failure asks to wait 1m "
            "(Retry-After); next at 2026-01-01T00:01:00Z",
        ),
    ],
)
def test_the_sentence_of_a_retry(partial: dict[str, object], failure: Failure, start: str) -> None:
    verdict = verdict_on(effective_policy(partial), failure)
    assert isinstance(verdict, RetryAt)
    assert verdict.why.startswith(start)


@pytest.mark.parametrize(
    ("partial", "failure", "why", "rule"),
    [
        (
            {"retry_on": ["HTTP_5*"]},
            REFUSED,
            "not retried: code ECONNREFUSED of category transient is not on retry_on",
            "retry_on",
        ),
        (
            {},
            safe_failure("BAD_PAYLOAD", "m"),
            "not retried: code BAD_PAYLOAD of category permanent is on no_retry_on",
            "no_retry_on: permanent",
        ),
        (
            {"no_retry_on": ["app.Rejected"]},
            rejected_below(),
            "not retried: cause app.Rejected is on no_retry_on",
            "no_retry_on: app.Rejected",
        ),
        (
            {"rules": [{"match": ["ECONNREFUSED"], "action": "fail"}]},
            REFUSED,
            "not retried: code ECONNREFUSED matches rules[0], which says fail",
            "rules[0]",
        ),
        (
            {"max_retry": 0},
            REFUSED,
            "not retried: max_retry is 0 (code ECONNREFUSED, transient)",
            "max_retry",
        ),
        (
            {"max_retry": 0, "retry_on": ["ECONN*"]},
            REFUSED,
            "not retried: max_retry is 0 (code ECONNREFUSED (ECONN*) is on retry_on)",
            "max_retry",
        ),
        (
            {"max_retry": 0, "rules": [{"match": ["ECONNREFUSED"], "action": "retry"}]},
            REFUSED,
            "not retried: max_retry is 0 (code ECONNREFUSED matches rules[0])",
            "max_retry",
        ),
        (
            {"max_retry": 0, "retry_on": ["HTTP_5*"]},
            safe_failure("RETRY_LATER", "m"),
            "not retried: max_retry is 0 (the task asked to be run again (RetryLater))",
            "max_retry",
        ),
        (
            {},
            safe_failure("CANCELLED", "m"),
            "not retried: what was cancelled never is (code CANCELLED)",
            "cancelled",
        ),
        (
            {"max_lost": 0},
            safe_failure("WORKER_LOST", "m"),
            "not retried: max_lost is 0, so the task runs at most once (code WORKER_LOST)",
            "max_lost",
        ),
        (
            {"no_retry_on": ["WORKER_LOST"]},
            safe_failure("WORKER_LOST", "m"),
            "not retried: code WORKER_LOST is on no_retry_on",
            "no_retry_on: WORKER_LOST",
        ),
        (
            {"window": "4s"},
            REFUSED,
            "not retried: retry 1 of 3 would pass the window that ends at 2026-01-01T00:00:04Z "
            "(waits 5s; code ECONNREFUSED, transient)",
            "window",
        ),
        (
            {},
            safe_failure("HTTP_503", "m", retry_after_us=2 * DAY),
            "not retried: the failure asks to wait 2d (Retry-After), which is more than 24h "
            "(code HTTP_503, transient)",
            "retry_after",
        ),
    ],
)
def test_the_sentence_of_giving_up(partial: dict[str, object], failure: Failure, why: str, rule: str) -> None:
    verdict = verdict_on(effective_policy(partial), failure)
    assert isinstance(verdict, GiveUp)
    assert (verdict.why, verdict.rule) == (why, rule)


@pytest.mark.parametrize(
    ("max_retry", "words"), [(1, "its one retry is used up"), (3, "all 3 retries are used up")]
)
def test_used_up_retries_are_counted_in_words(max_retry: int, words: str) -> None:
    verdict = verdict_on(RetryPolicy(max_retry=max_retry), counters=Counters(failures=max_retry))
    assert isinstance(verdict, GiveUp)
    assert verdict.why == f"not retried: {words} (code ECONNREFUSED, transient)"
    assert verdict.counters.failures == max_retry + 1


def test_only_failures_of_the_task_itself_drive_the_backoff() -> None:
    """Trap: a retry number counted two ways grows with what the task did not do."""
    counters = Counters(failures=1, lost=7, refusals=50, hand_backs=9)
    verdict = verdict_on(RetryPolicy(), counters=counters)
    assert isinstance(verdict, RetryAt)
    assert verdict.due_us == NOW_US + 10 * SECOND
    assert verdict.counters == msgspec.structs.replace(
        counters, failures=2, previous_delay_us=10 * SECOND, window_opened_us=NOW_US
    )


def test_decorrelated_jitter_remembers_its_last_delay() -> None:
    policy = RetryPolicy(jitter="decorrelated", max_retry=50)
    counters, previous_us = FRESH, 0
    for seed in range(20):
        verdict = verdict_on(policy, counters=counters, seed=seed)
        assert isinstance(verdict, RetryAt)
        wait_us = verdict.due_us - NOW_US
        assert 5 * SECOND <= wait_us <= max(5 * SECOND, 3 * previous_us)
        assert verdict.counters.previous_delay_us == wait_us
        counters, previous_us = verdict.counters, wait_us


# The window


def test_the_window_opens_at_the_first_failure_and_no_retry_restarts_it() -> None:
    policy = RetryPolicy(window_us=MINUTE)
    first = verdict_on(policy)
    assert first.counters.window_opened_us == NOW_US
    second = verdict_on(policy, counters=first.counters, now_us=NOW_US + 10 * SECOND)
    assert second.counters.window_opened_us == NOW_US
    assert window_end_us(policy, second.counters) == NOW_US + MINUTE
    assert window_end_us(policy, FRESH) is None
    assert window_end_us(RetryPolicy(), second.counters) is None


def test_a_loss_does_not_open_the_window_but_is_bound_by_it() -> None:
    policy = RetryPolicy(window_us=MINUTE)
    lost = safe_failure("WORKER_LOST", "gone")
    assert verdict_on(policy, lost).counters.window_opened_us is None
    opened = Counters(failures=1, window_opened_us=NOW_US - MINUTE)
    assert isinstance(verdict_on(policy, lost, counters=opened), RetryAt)
    late = verdict_on(policy, lost, counters=opened, now_us=NOW_US + 1)
    assert isinstance(late, GiveUp)
    assert late.rule == "window"
    assert late.why == (
        "not retried: the next attempt would pass the window that ends at 2026-01-01T00:00:00Z "
        "(waits 0s; code WORKER_LOST; lost 1 of at most 3)"
    )


def test_a_window_of_zero_allows_only_a_retry_at_once() -> None:
    assert isinstance(verdict_on(RetryPolicy(interval_us=0, window_us=0)), RetryAt)
    assert isinstance(verdict_on(RetryPolicy(interval_us=1, window_us=0)), GiveUp)


# A wait that the failure asks for


def asked(after_us: int | None = None, *, at_us: int | None = None) -> Failure:
    return safe_failure("HTTP_503", "busy", retry_after_us=after_us, retry_at_us=at_us)


@pytest.mark.parametrize("after_us", [0, SECOND, 2 * MINUTE, 24 * HOUR])
def test_an_asked_wait_beats_the_backoff_and_its_cap(after_us: int) -> None:
    policy = RetryPolicy(interval_us=MINUTE, max_interval_us=MINUTE)
    verdict = verdict_on(policy, asked(after_us))
    assert isinstance(verdict, RetryAt)
    assert verdict.due_us == NOW_US + after_us
    assert "(Retry-After)" in verdict.why


def test_an_asked_instant_in_the_past_is_now() -> None:
    verdict = verdict_on(RetryPolicy(), asked(at_us=NOW_US - DAY))
    assert isinstance(verdict, RetryAt)
    assert verdict.due_us == NOW_US
    dated = verdict_on(RetryPolicy(), asked(at_us=NOW_US + HOUR))
    assert isinstance(dated, RetryAt)
    assert dated.due_us == NOW_US + HOUR


def test_an_asked_wait_of_more_than_24_hours_gives_up_saying_so() -> None:
    for failure in (asked(DAY + 1), asked(at_us=NOW_US + DAY + SECOND), asked(10**30)):
        verdict = verdict_on(RetryPolicy(), failure)
        assert isinstance(verdict, GiveUp)
        assert verdict.rule == "retry_after"
        assert verdict.why.endswith("which is more than 24h (code HTTP_503, transient)")


def test_an_asked_wait_does_not_beat_the_window() -> None:
    policy = RetryPolicy(window_us=MINUTE)
    assert isinstance(verdict_on(policy, asked(MINUTE)), RetryAt)
    late = verdict_on(policy, asked(MINUTE + 1))
    assert isinstance(late, GiveUp)
    assert late.rule == "window"


def test_an_asked_wait_uses_up_a_retry_like_any_other() -> None:
    assert isinstance(verdict_on(RetryPolicy(), asked(0), counters=Counters(failures=3)), GiveUp)


def test_an_asked_delay_counts_from_the_end_of_the_attempt() -> None:
    verdict = verdict_on(RetryPolicy(), asked(MINUTE), failed_us=NOW_US - 40 * SECOND)
    assert isinstance(verdict, RetryAt)
    assert verdict.due_us == NOW_US + 20 * SECOND
    over = verdict_on(RetryPolicy(), asked(MINUTE), failed_us=NOW_US - DAY)
    assert isinstance(over, RetryAt)
    assert over.due_us == NOW_US
    ahead = verdict_on(RetryPolicy(), asked(MINUTE), failed_us=NOW_US + DAY)
    assert isinstance(ahead, RetryAt)
    assert ahead.due_us == NOW_US + MINUTE


@pytest.mark.parametrize("jitter", ["full", "equal", "decorrelated", "proportional"])
def test_jitter_only_adds_to_an_asked_wait(jitter: str) -> None:
    factor = 0.1 if jitter == "proportional" else 0.0
    policy = RetryPolicy(jitter=jitter, jitter_factor=factor)  # type: ignore[arg-type]  # sampled literal
    dues = []
    for seed in range(200):
        verdict = verdict_on(policy, asked(MINUTE), seed=seed)
        assert isinstance(verdict, RetryAt)
        dues.append(verdict.due_us - NOW_US)
    assert min(dues) >= MINUTE
    assert max(dues) <= MINUTE + 5 * SECOND
    assert len(set(dues)) > 150


def test_an_asked_wait_does_not_disturb_what_decorrelated_remembers() -> None:
    policy = RetryPolicy(jitter="decorrelated")
    verdict = verdict_on(policy, asked(HOUR), counters=Counters(failures=1, previous_delay_us=7 * SECOND))
    assert verdict.counters.previous_delay_us == 7 * SECOND


# Lists and rules


def test_retry_later_is_honoured_beside_a_list_but_not_against_no_retry_on() -> None:
    later = safe_failure("BUSY", "m", classes=("ostinato.RetryLater", "ostinato.TaskError", "Exception"))
    assert isinstance(verdict_on(effective_policy({"retry_on": ["HTTP_5*"]}), later), RetryAt)
    refused = effective_policy({"retry_on": ["HTTP_5*"], "no_retry_on": ["BUSY"]})
    assert isinstance(verdict_on(refused, later), GiveUp)


def test_a_task_s_own_permanent_is_respected_beside_a_list_that_its_cause_is_on() -> None:
    failure = safe_failure(
        "PERMANENT",
        "m",
        classes=("ostinato.Permanent", "ostinato.TaskError", "Exception"),
        chain=[Cause("ostinato.Permanent", "", ("ostinato.Permanent",)), Cause("OSError", "", ("OSError",))],
    )
    verdict = verdict_on(effective_policy({"retry_on": ["OSError"]}), failure)
    assert isinstance(verdict, GiveUp)
    assert verdict.why == "not retried: class ostinato.Permanent is on no_retry_on"


def test_the_first_rule_that_matches_wins_and_brings_its_own_schedule() -> None:
    policy = effective_policy(
        {
            "interval": "5s",
            "max_retry": 5,
            "rules": [
                {
                    "match": ["HTTP_503"],
                    "action": "retry",
                    "backoff": "fixed",
                    "interval": "1m",
                    "max_retry": 2,
                },
                {"match": ["HTTP_*"], "action": "fail"},
            ],
        }
    )
    assert waits(policy, safe_failure("HTTP_503", "m")) == [60, 60]
    assert waits(policy, safe_failure("HTTP_502", "m")) == []
    assert waits(policy) == [5, 10, 20, 40, 80]


def test_a_rule_may_cut_an_exception_out_of_no_retry_on() -> None:
    policy = effective_policy({"rules": [{"match": ["HTTP_404"], "action": "retry"}]})
    assert waits(policy, safe_failure("HTTP_404", "m")) == [5, 10, 20]
    assert waits(policy, safe_failure("HTTP_403", "m")) == []


def test_a_rule_cannot_allow_more_retries_than_the_policy() -> None:
    policy = RetryPolicy(max_retry=1, rules=(RetryRule(match=("*",), max_retry=100),))
    assert waits(policy) == [5]


# Losses


@pytest.mark.parametrize("code", ["WORKER_LOST", "LEASE_EXPIRED", "NOT_ACKNOWLEDGED", "SUPERVISOR_GONE"])
def test_losses_have_their_own_counter_waits_cap_and_reason(code: str) -> None:
    lost = safe_failure(code, "gone")
    assert waits(effective_policy({"max_lost": 5, "max_retry": 0, "retry_on": ["HTTP_5*"]}), lost) == [
        0,
        1,
        2,
        4,
        8,
    ]
    verdict = verdict_on(DEFAULT_POLICY, lost, counters=Counters(failures=2, lost=3))
    assert isinstance(verdict, GiveUp)
    assert (verdict.rule, verdict.counters.failures, verdict.counters.lost) == ("max_lost", 2, 4)
    assert verdict.why == (
        "not retried: attempt lost 4 times, and max_lost allows 3: it may be what takes its workers down "
        f"(code {code})"
    )


def test_a_retry_after_a_loss_says_so() -> None:
    verdict = verdict_on(DEFAULT_POLICY, safe_failure("WORKER_LOST", "gone"), counters=Counters(lost=1))
    assert isinstance(verdict, RetryAt)
    assert verdict.rule == "lost"
    assert verdict.why == ("code WORKER_LOST; lost 2 of at most 3; waits 1s; next at 2026-01-01T00:00:01Z")


@pytest.mark.parametrize("code", ["WORKER_LOST", "HANDED_BACK", "COLLATERAL", "NOT_ACKNOWLEDGED"])
def test_max_lost_0_never_runs_a_started_attempt_again(code: str) -> None:
    verdict = verdict_on(RetryPolicy(max_lost=0), safe_failure(code, "m"))
    assert isinstance(verdict, GiveUp)
    assert verdict.rule == "max_lost"
    assert verdict.why == f"not retried: max_lost is 0, so the task runs at most once (code {code})"


def test_max_lost_0_still_retries_what_never_started() -> None:
    assert isinstance(verdict_on(RetryPolicy(max_lost=0), safe_failure("REFUSED", "full")), RetryAt)


def test_losses_stop_where_no_retry_on_or_a_rule_says_so() -> None:
    lost = safe_failure("WORKER_LOST", "gone")
    assert isinstance(verdict_on(effective_policy({"no_retry_on": ["lost"]}), lost), GiveUp)
    fail = effective_policy({"rules": [{"match": ["WORKER_*"], "action": "fail"}]})
    verdict = verdict_on(fail, lost)
    assert isinstance(verdict, GiveUp)
    assert verdict.why == "not retried: code WORKER_LOST (WORKER_*) matches rules[0], which says fail"


@pytest.mark.parametrize(
    ("code", "counter"),
    [("REFUSED", "refusals"), ("HANDED_BACK", "hand_backs"), ("COLLATERAL", "hand_backs")],
)
def test_uncounted_returns_use_nothing_up_and_slow_down_visibly(code: str, counter: str) -> None:
    failure = safe_failure(code, "m")
    policy = RetryPolicy(max_retry=0, max_lost=1)
    counters, gaps = FRESH, []
    for _ in range(103):
        verdict = verdict_on(policy, failure, counters=counters)
        assert isinstance(verdict, RetryAt)
        gaps.append((verdict.due_us - NOW_US) // SECOND)
        counters = verdict.counters
    assert gaps == [0] * 100 + [30] * 3
    assert msgspec.structs.asdict(counters) == {**msgspec.structs.asdict(FRESH), counter: 103}
    assert verdict.why == (
        f"code {code}; uses up no retry, 103 so far; waits 30s; next at 2026-01-01T00:00:30Z"
    )


# The ends of time


def test_the_end_of_the_calendar_gives_up() -> None:
    late_us = INSTANT_MAX_US - SECOND
    verdict = verdict_on(RetryPolicy(), now_us=late_us)
    assert isinstance(verdict, GiveUp)
    assert verdict.rule == "calendar"
    assert verdict.why.startswith("not retried: retry 1 of 3 would be due beyond the last instant")
    assert isinstance(verdict_on(RetryPolicy(interval_us=SECOND), now_us=late_us), RetryAt)


def test_the_same_seed_gives_the_same_verdict() -> None:
    assert verdict_on(DEFAULT_POLICY, seed=5) == verdict_on(DEFAULT_POLICY, seed=5)
    assert verdict_on(DEFAULT_POLICY, seed=5) != verdict_on(DEFAULT_POLICY, seed=6)


def test_a_jittered_wait_is_told_in_milliseconds_and_due_in_microseconds() -> None:
    verdict = verdict_on(DEFAULT_POLICY, seed=5)
    assert isinstance(verdict, RetryAt)
    assert f"next at {format_instant(verdict.due_us)}" in verdict.why
    words = verdict.why.split("; ")[2]
    assert words.startswith("waits ")
    assert words.endswith("ms")
