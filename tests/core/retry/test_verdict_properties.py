"""What holds of every verdict: total, never early, bounded (I3, I4), whatever fails in whatever order."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.failure.categories import CATEGORIES
from ostinato.core.failure.codes import CATALOGUE
from ostinato.core.failure.failure import Cause, Failure, safe_failure
from ostinato.core.instants import DURATION_MAX_US, INSTANT_MAX_US
from ostinato.core.retry.counters import Counters
from ostinato.core.retry.policy import (
    RetryPolicy,
    RetryRule,
    effective_policy,
    policy_to_dict,
    validate_policy,
)
from ostinato.core.retry.policy_model import DELAY_MAX_US
from ostinato.core.retry.verdict import GiveUp, RetryAt, decide, window_end_us
from ostinato.errors import UserError

DELAYS_US = st.integers(0, DELAY_MAX_US) | st.integers(0, 10**8)
CODES = st.sampled_from([*sorted(CATALOGUE), "HTTP_503", "HTTP_404", "EXIT_137", "EXIT_1", "OWN_CODE"])
CLASSES = st.sampled_from(["OSError", "ConnectionError", "ValueError", "app.Rejected", "ostinato.RetryLater"])
PATTERNS = (
    CODES
    | CLASSES
    | st.sampled_from(["HTTP_5*", "E*", "*", "W*", "transient", "permanent", "lost", "resource"])
)
PATTERN_LISTS = st.lists(PATTERNS, max_size=3).map(tuple)


@st.composite
def schedules(draw: st.DrawFn) -> dict[str, object]:
    backoff = draw(st.sampled_from(["fixed", "linear", "exponential", "delays"]))
    jitter = draw(st.sampled_from(["none", "full", "equal", "decorrelated", "proportional"]))
    fields: dict[str, object] = {
        "backoff": backoff,
        "interval_us": draw(DELAYS_US),
        "multiplier": draw(st.floats(1, 1e308)),
        "max_interval_us": draw(st.none() | DELAYS_US),
        "jitter": jitter if backoff != "delays" or jitter != "decorrelated" else "full",
        "jitter_factor": draw(st.floats(0.001, 1)) if jitter == "proportional" else 0.0,
    }
    if backoff == "delays":
        fields["delays_us"] = tuple(draw(st.lists(DELAYS_US, min_size=1, max_size=4)))
    return fields


RULES = st.builds(
    RetryRule,
    match=st.lists(PATTERNS, min_size=1, max_size=2).map(tuple),
    action=st.just("retry"),
    interval_us=st.none() | DELAYS_US,
    max_retry=st.none() | st.integers(0, 6),
) | st.builds(RetryRule, match=st.lists(PATTERNS, min_size=1, max_size=2).map(tuple), action=st.just("fail"))


@st.composite
def policies(draw: st.DrawFn) -> RetryPolicy:
    policy = RetryPolicy(
        **draw(schedules()),  # type: ignore[arg-type]  # the fields of one schedule
        max_retry=draw(st.integers(0, 6)),
        max_lost=draw(st.integers(0, 4)),
        window_us=draw(st.none() | st.integers(0, 10**9) | st.integers(0, DURATION_MAX_US)),
        retry_on=draw(PATTERN_LISTS),
        no_retry_on=draw(PATTERN_LISTS),
        rules=draw(st.lists(RULES, max_size=2).map(tuple)),
    )
    return policy if _is_valid(policy) else RetryPolicy(max_retry=policy.max_retry, max_lost=policy.max_lost)


def _is_valid(policy: RetryPolicy) -> bool:
    try:
        validate_policy(policy)
    except UserError:
        return False
    return True


@st.composite
def failures(draw: st.DrawFn) -> Failure:
    chain = [Cause(name, "", (name, "Exception")) for name in draw(st.lists(CLASSES, max_size=2))]
    return safe_failure(
        draw(CODES),
        "m",
        category=draw(st.none() | st.sampled_from(CATEGORIES)),
        classes=draw(st.lists(CLASSES, max_size=2)),
        chain=chain,
        retry_after_us=draw(st.none() | st.integers(0, 10**12)),
        retry_at_us=draw(st.none() | st.integers()),
    )


COUNTS = st.integers(0, 10) | st.integers(0, 10**12)
COUNTERS = st.builds(
    Counters,
    failures=COUNTS,
    lost=COUNTS,
    refusals=COUNTS,
    hand_backs=COUNTS,
    previous_delay_us=DELAYS_US,
    window_opened_us=st.none() | st.integers(-(10**16), 10**17),
)


@given(
    policies(), failures(), COUNTERS, st.integers(-(10**17), 10**18), st.integers(), st.none() | st.integers()
)
def test_decide_is_total_never_early_and_inside_the_window(
    policy: RetryPolicy,
    failure: Failure,
    counters: Counters,
    now_us: int,
    seed: int,
    failed_us: int | None,
) -> None:
    verdict = decide(policy, failure, counters, now_us=now_us, rng=Random(seed), failed_us=failed_us)
    assert verdict.why
    assert verdict.rule
    if isinstance(verdict, RetryAt):
        assert now_us <= verdict.due_us <= INSTANT_MAX_US
        end_us = window_end_us(policy, verdict.counters)
        assert end_us is None or verdict.due_us <= end_us
        assert "next at" in verdict.why
    else:
        assert isinstance(verdict, GiveUp)


@given(policies(), st.lists(failures(), min_size=1, max_size=30), st.integers(), st.integers(0, 10**10))
def test_i3_attempts_of_one_generation_are_bounded(
    policy: RetryPolicy, happening: list[Failure], seed: int, run_us: int
) -> None:
    """Failures in any order, for ever: the generation ends by its counters, never after its window."""
    rng, counters, now_us = Random(seed), Counters(), 10**15
    own = lost = uncounted = 0
    while uncounted <= 60:
        failure = happening[(own + lost + uncounted) % len(happening)]
        end_us = window_end_us(policy, counters)
        assert end_us is None or now_us <= end_us, "an attempt started after the window"
        verdict = decide(policy, failure, counters, now_us=now_us + run_us, rng=rng)
        if failure.category == "lost" and failure.code in ("REFUSED", "HANDED_BACK", "COLLATERAL"):
            uncounted += 1
        elif failure.category == "lost":
            lost += 1
        elif failure.category != "cancelled":
            own += 1
        assert own <= policy.max_retry + 1
        assert lost <= policy.max_lost + 1
        counters = verdict.counters
        assert (counters.failures, counters.lost) == (own, lost)
        assert counters.refusals + counters.hand_backs == uncounted
        if isinstance(verdict, GiveUp):
            return
        now_us = verdict.due_us


@given(policies())
def test_what_an_echo_says_is_what_it_is_read_back_as(policy: RetryPolicy) -> None:
    echo = policy_to_dict(policy)
    assert policy_to_dict(effective_policy(echo)) == echo
