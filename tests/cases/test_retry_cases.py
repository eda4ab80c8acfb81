"""Hard cases of groups D and E as far as the pure core shows them: delays, window, Retry-After, failures.

What needs a whole scheduler or worker (a storm of 10,000, a killed process) is told elsewhere, under the same
id.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from ostinato.core.failure.classify import failure_from_exception
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.failure.retry_after import parse_retry_after
from ostinato.core.instants import DAY, INSTANT_MAX_US, MINUTE, SECOND, parse_instant
from ostinato.core.retry.counters import Counters
from ostinato.core.retry.policy import RetryPolicy, effective_policy, policy_notes, policy_to_dict
from ostinato.core.retry.verdict import GiveUp, RetryAt, decide
from ostinato.errors import UserError

START_US = parse_instant("2026-01-01T00:00:00Z")
BROKEN = safe_failure("EXIT_1", "exit status 1")


class Story:
    """One generation of a task whose attempts all fail, each `run_us` after it started."""

    def __init__(
        self,
        retry: dict[str, object],
        failure: Failure = BROKEN,
        *,
        run_us: int = 0,
        start_us: int = START_US,
    ) -> None:
        policy = effective_policy(retry)
        rng, counters, now_us = Random(1), Counters(), start_us
        #: When each attempt started, in µs after the first.
        self.starts_us: list[int] = []
        while True:
            self.starts_us.append(now_us - start_us)
            ended_us = now_us + run_us
            verdict = decide(policy, failure, counters, now_us=ended_us, rng=rng)
            counters = verdict.counters
            if isinstance(verdict, GiveUp):
                self.end, self.ended_us = verdict, ended_us - start_us
                return
            now_us = verdict.due_us

    @property
    def starts(self) -> list[float]:
        return [start_us / SECOND for start_us in self.starts_us]


def test_c049_uncapped_backoff_never_leaves_the_calendar() -> None:
    policy: dict[str, object] = {"interval": "300s", "multiplier": 2, "max_retry": 1000}
    assert policy_notes(effective_policy(policy)) == (
        "from retry 18 on every delay is 365d, the longest there is; set max_interval",
    )
    story = Story(policy)
    assert len(story.starts) == 1001
    assert story.end.rule == "max_retry"
    longest_us = max(
        after - before for before, after in zip(story.starts_us, story.starts_us[1:], strict=False)
    )
    assert longest_us == 365 * DAY


def test_c049_at_the_end_of_the_calendar_the_task_gives_up_with_that_reason() -> None:
    story = Story({"interval": "300s", "max_retry": 1000}, start_us=INSTANT_MAX_US - 10 * 365 * DAY)
    assert story.end.rule == "calendar"
    assert story.end.why.startswith("not retried: retry 26 of 1000 would be due beyond the last instant")
    assert len(story.starts) < 40


def test_c051_the_exponent_is_not_taken_of_the_interval() -> None:
    assert Story({"interval": "300s", "multiplier": 2}).starts == [0, 300, 900, 2100]


@pytest.mark.parametrize("jitter", ["full", 0.2])
def test_c053_a_thousand_retries_at_the_cap_do_not_land_together(jitter: object) -> None:
    policy = effective_policy({"jitter": jitter, "max_interval": "60s", "max_retry": 100})
    seconds: Counter[int] = Counter()
    for seed in range(1000):
        verdict = decide(policy, BROKEN, Counters(failures=19), now_us=START_US, rng=Random(seed))
        assert isinstance(verdict, RetryAt)
        wait_us = verdict.due_us - START_US
        assert 0 <= wait_us <= 60 * SECOND
        seconds[wait_us // SECOND] += 1
    # 60 seconds to spread over for full, 12 for ±20 %.
    assert max(seconds.values()) <= (50 if jitter == "full" else 140)


def test_c053_a_cap_below_the_jitter_is_no_negative_wait() -> None:
    policy = effective_policy({"jitter": 0.5, "max_interval": "100ms"})
    for seed in range(1000):
        verdict = decide(policy, BROKEN, Counters(), now_us=START_US, rng=Random(seed))
        assert isinstance(verdict, RetryAt)
        assert 50_000 <= verdict.due_us - START_US <= 100_000


def test_c055_after_the_last_permitted_attempt_there_is_no_further_wait() -> None:
    story = Story({"interval": "3m", "max_retry": 2})
    assert story.starts == [0, 180, 540]
    assert story.ended_us == story.starts_us[-1]
    assert story.end.why == "not retried: all 2 retries are used up (code EXIT_1, transient)"


@pytest.mark.parametrize("combination", range(16))
def test_c057_a_partly_written_policy_behaves_as_its_echo_says(combination: int) -> None:
    fields = [("max_retry", 2), ("interval", "10s"), ("multiplier", 3), ("window", "25s")]
    said = {name: value for bit, (name, value) in enumerate(fields) if combination >> bit & 1}
    echo = policy_to_dict(effective_policy(said))
    interval = 10 if "interval" in said else 5
    multiplier = 3 if "multiplier" in said else 2
    retries = 2 if "max_retry" in said else 3
    assert echo["interval"] == f"{interval}s"
    assert echo["multiplier"] == multiplier
    assert echo["max_retry"] == retries
    assert echo["window"] == said.get("window", "none")
    starts = [0]
    for number in range(retries):
        starts.append(starts[-1] + interval * multiplier**number)
    if "window" in said:
        starts = [start for start in starts if start <= 25]
    assert Story(said).starts == Story(echo).starts == starts


def test_c059_exactly_at_the_end_of_the_window_is_in() -> None:
    story = Story({"backoff": "fixed", "interval": "20s", "window": "60s", "max_retry": 10})
    assert story.starts == [0, 20, 40, 60]
    assert story.ended_us == 60 * SECOND
    assert story.end.why.startswith(
        "not retried: retry 4 of 10 would pass the window that ends at 2026-01-01T00:01:00Z"
    )


def test_c059_a_microsecond_later_is_out() -> None:
    retry: dict[str, object] = {"backoff": "delays", "delays": ["60s1us"], "window": "60s"}
    assert Story(retry).starts == [0]
    assert Story({**retry, "window": "60s1us"}).starts == [0, 60.000001]


def test_c061_a_timed_out_task_is_retried_whatever_its_time_out() -> None:
    story = Story(
        {"backoff": "fixed", "interval": "500ms", "max_retry": 2},
        safe_failure("TIMEOUT", "ran longer than 2s"),
        run_us=2 * SECOND,
    )
    assert story.starts == [0, 2.5, 5]
    assert story.ended_us == 7 * SECOND


@pytest.mark.parametrize(
    ("header", "wait_us"),
    [
        *((junk, 5 * SECOND) for junk in ("-5", "+3", "1.5", "abc", "", "120, 60")),
        (" 120 ", 2 * MINUTE),
        ("0", 0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30 * SECOND),
        ("99999999999999999999", None),
    ],
)
def test_c063_a_retry_after_header_never_breaks_the_wait(header: str, wait_us: int | None) -> None:
    failure = safe_failure("HTTP_503", "busy", retry_after_us=parse_retry_after(header, START_US))
    verdict = decide(RetryPolicy(), failure, Counters(), now_us=START_US, rng=Random(1))
    if wait_us is None:
        assert isinstance(verdict, GiveUp)
        assert verdict.why.endswith("which is more than 24h (code HTTP_503, transient)")
    else:
        assert isinstance(verdict, RetryAt)
        assert verdict.due_us == START_US + wait_us


class Rejected(Exception):
    """An exception that must not be retried."""


REJECTED = f"{__name__}.Rejected"


def failure_of(error: BaseException, *, cause: BaseException | None = None) -> Failure:
    error.__cause__ = cause
    return failure_from_exception(error)


@pytest.mark.parametrize(
    "failure",
    [
        failure_of(RuntimeError("wrapped"), cause=Rejected("no")),
        failure_of(ExceptionGroup("several", [ValueError("other"), Rejected("no")])),
    ],
    ids=["cause", "group"],
)
def test_c067_a_refusal_is_found_below_its_wrapping(failure: Failure) -> None:
    story = Story({"no_retry_on": [REJECTED]}, failure)
    assert story.starts == [0]
    assert story.end.why == f"not retried: cause {REJECTED} is on no_retry_on"


class Awkward(Exception):
    """Everything that C069 lists, in one exception."""

    def __init__(self, needed: object, *, also: object) -> None:
        super().__init__(needed)
        self.also = also

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_c069_an_exception_that_cannot_be_told_is_still_a_failure() -> None:
    error = Awkward(object(), also=lambda: None)
    failure = failure_of(error, cause=error)
    assert failure.message == "Awkward: <its __str__ raised RuntimeError>"
    assert Story({}, failure).starts == [0, 5, 15, 35]


def test_c069_long_and_broken_text_is_cut_and_made_safe() -> None:
    failure = failure_of(ValueError("\ud800\0" + "m" * 50_000_000))
    assert failure.message.startswith("ValueError: \ufffd␀mmm")
    assert failure.message.endswith("[cut, 50000014 characters in all]")
    assert len(failure.message.encode()) <= 8192


@pytest.mark.parametrize("code", ["EXIT_137", "OOM", "SIGNAL_9"])
def test_c071_killed_by_the_kernel_is_the_task_s_own_failure_of_category_resource(code: str) -> None:
    failure = safe_failure(code, "killed")
    assert failure.category == "resource"
    story = Story({"max_retry": 2}, failure)
    assert len(story.starts) == 3
    assert story.end.counters.failures == 3
    assert story.end.counters.lost == 0


def test_c073_no_retry_on_wins_and_the_history_says_which_entry() -> None:
    failure = failure_of(ConnectionRefusedError("refused"))
    story = Story({"retry_on": [OSError], "no_retry_on": [ConnectionRefusedError]}, failure)
    assert story.starts == [0]
    assert story.end.why == "not retried: class ConnectionRefusedError is on no_retry_on"
    assert story.end.rule == "no_retry_on: ConnectionRefusedError"
    assert Story(
        {"retry_on": [OSError], "no_retry_on": [ConnectionRefusedError]}, failure_of(BrokenPipeError())
    ).starts == [0, 5, 15, 35]


def test_c073_the_reverse_can_never_apply_and_is_refused() -> None:
    with pytest.raises(UserError) as refused:
        effective_policy({"retry_on": [ConnectionRefusedError], "no_retry_on": [OSError]})
    assert refused.value.code == "INVALID_POLICY"
    assert refused.value.field == "retry.retry_on[0]"
    assert refused.value.message == (
        "ConnectionRefusedError can never be retried, because OSError is on no_retry_on, which wins"
    )
