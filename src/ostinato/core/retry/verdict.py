"""Where it is decided to retry: ``decide(policy, failure, counters, now, rng)``, pure and total.

In this order, the first that speaks decides:

1. category ``cancelled``: never retried.
2. category ``lost``: by the lost counter (``core/retry/lost.py``), not by the policy's backoff.
3. rules, then ``no_retry_on``, then ``retry_on``: is this failure one to retry at all?
4. ``max_retry``: is one left? There is no wait after the last attempt (C055).
5. a wait that the failure itself asks for; else the policy's backoff, spread by its jitter.
6. the window, and the end of the calendar.

Every verdict says in words what decided it, and carries the counters as they are after this failure. Which
counter drives what is defined here and nowhere else: backoff and ``max_retry`` go by failures of the task
itself in this generation, so that refusals, losses and hand-backs never lengthen a backoff.
Design section 4.
"""

from __future__ import annotations

from random import Random

import msgspec

from ostinato.core.failure.failure import Failure
from ostinato.core.instants import (
    INSTANT_MAX_US,
    INSTANT_MIN_US,
    MILLISECOND,
    SECOND,
    format_duration,
    format_instant,
)
from ostinato.core.retry.backoff import backoff_delay, delay_cap_us
from ostinato.core.retry.counters import Counters
from ostinato.core.retry.jitter import added_jitter_us, jittered_delay_us
from ostinato.core.retry.lost import HAND_BACK_CODES, REFUSAL_CODES, lost_delay_us, uncounted_delay_us
from ostinato.core.retry.policy_model import RETRY_AFTER_MAX_US, RetryPolicy
from ostinato.core.retry.selection import Selection, code_words, select, stops_after_loss


class RetryAt(msgspec.Struct, frozen=True, tag=True):
    """Retry, not before `due_us`. `why` is the sentence for the history, `rule` names what decided."""

    due_us: int
    why: str
    rule: str
    counters: Counters


class GiveUp(msgspec.Struct, frozen=True, tag=True):
    """No further attempt. `why` is the sentence for the history, `rule` names what decided."""

    why: str
    rule: str
    counters: Counters


Verdict = RetryAt | GiveUp


def decide(
    policy: RetryPolicy,
    failure: Failure,
    counters: Counters,
    *,
    now_us: int,
    rng: Random,
    failed_us: int | None = None,
) -> Verdict:
    """Verdict on one failure. Total for every valid policy, every failure and all counters.

    `counters` are those before this failure. `now_us` is the instant of the decision; the window opens then,
    and no retry is due before it. `failed_us`, where known, is when the attempt ended: a delay that the
    failure asks for counts from it (None or a later instant: from `now_us`). Source: design section 4.
    """
    if failure.category == "cancelled":
        words = f"not retried: what was cancelled never is ({code_words(failure)})"
        return GiveUp(words, "cancelled", counters)
    if failure.category == "lost":
        return _decide_lost(policy, failure, counters=counters, now_us=now_us)
    opened_us = now_us if counters.window_opened_us is None else counters.window_opened_us
    counters = msgspec.structs.replace(counters, failures=counters.failures + 1, window_opened_us=opened_us)
    selection = select(policy, failure)
    if not selection.retried:
        return GiveUp(f"not retried: {selection.words}", selection.rule, counters)
    chosen = selection.policy
    if counters.failures > chosen.max_retry:
        words = f"not retried: {_used_up(chosen.max_retry)} ({selection.cause})"
        return GiveUp(words, "max_retry", counters)
    asked_us = _asked_us(failure, now_us=now_us, failed_us=failed_us)
    if asked_us is not None:
        return _decide_asked(selection, counters, asked_us=asked_us, now_us=now_us, rng=rng)
    return _decide_backoff(selection, counters, now_us=now_us, rng=rng)


def window_end_us(policy: RetryPolicy, counters: Counters) -> int | None:
    """Last instant at which a retry may start, or None: no window, or not opened by a failure yet."""
    if policy.window_us is None or counters.window_opened_us is None:
        return None
    return counters.window_opened_us + policy.window_us


def _decide_backoff(selection: Selection, counters: Counters, *, now_us: int, rng: Random) -> Verdict:
    policy = selection.policy
    delay = backoff_delay(policy, counters.failures)
    wait_us = jittered_delay_us(
        policy,
        delay.delay_us,
        cap_us=delay_cap_us(policy),
        previous_delay_us=counters.previous_delay_us,
        rng=rng,
    )
    counters = msgspec.structs.replace(counters, previous_delay_us=wait_us)
    waits = f"waits {_wait_words(wait_us)}"
    if delay.limited_by:
        waits += f" ({delay.limited_by})"
    return _schedule(selection, counters, due_us=now_us + wait_us, waits=waits)


def _decide_asked(
    selection: Selection, counters: Counters, *, asked_us: int, now_us: int, rng: Random
) -> Verdict:
    """The failure asks not to be run before `asked_us`: this beats the backoff, not the window."""
    asked = f"the failure asks to wait {_wait_words(asked_us - now_us)} (Retry-After)"
    if asked_us - now_us > RETRY_AFTER_MAX_US:
        words = f"not retried: {asked}, which is more than 24h ({selection.cause})"
        return GiveUp(words, "retry_after", counters)
    policy = selection.policy
    added_us = added_jitter_us(policy, backoff_delay(policy, counters.failures).delay_us, rng=rng)
    if added_us:
        asked += f", jitter adds {_wait_words(added_us)}"
    return _schedule(selection, counters, due_us=asked_us + added_us, waits=asked)


def _asked_us(failure: Failure, *, now_us: int, failed_us: int | None) -> int | None:
    """Instant before which the failure asks not to be run again, never in the past; None if it does not ask.

    An instant wins over a delay.
    """
    if failure.retry_at_us is not None:
        return max(failure.retry_at_us, now_us)
    if failure.retry_after_us is None:
        return None
    start_us = now_us if failed_us is None else min(failed_us, now_us)
    return max(start_us + failure.retry_after_us, now_us)


def _schedule(selection: Selection, counters: Counters, *, due_us: int, waits: str) -> Verdict:
    policy = selection.policy
    retry = f"retry {counters.failures} of {policy.max_retry}"
    refusal = _out_of_range(policy, counters, due_us=due_us)
    if refusal is not None:
        rule, words = refusal
        return GiveUp(f"not retried: {retry} {words} ({waits}; {selection.cause})", rule, counters)
    why = f"{selection.words}; {retry}; {waits}; next at {_instant(due_us)}"
    return RetryAt(due_us, why, selection.rule, counters)


def _decide_lost(policy: RetryPolicy, failure: Failure, *, counters: Counters, now_us: int) -> Verdict:
    words = code_words(failure)
    if failure.code in REFUSAL_CODES:
        counters = msgspec.structs.replace(counters, refusals=counters.refusals + 1)
        return _schedule_uncounted(policy, counters, count=counters.refusals, now_us=now_us, words=words)
    stopped = stops_after_loss(policy, failure)
    if failure.code in HAND_BACK_CODES:
        counters = msgspec.structs.replace(counters, hand_backs=counters.hand_backs + 1)
        if stopped is not None:
            return GiveUp(f"not retried: {stopped[1]}", stopped[0], counters)
        return _schedule_uncounted(policy, counters, count=counters.hand_backs, now_us=now_us, words=words)
    counters = msgspec.structs.replace(counters, lost=counters.lost + 1)
    if stopped is not None:
        return GiveUp(f"not retried: {stopped[1]}", stopped[0], counters)
    if counters.lost > policy.max_lost:
        return GiveUp(
            f"not retried: attempt lost {counters.lost} times, and max_lost allows {policy.max_lost}: "
            f"it may be what takes its workers down ({words})",
            "max_lost",
            counters,
        )
    wait_us = lost_delay_us(counters.lost)
    count = f"lost {counters.lost} of at most {policy.max_lost}"
    return _schedule_lost(policy, counters, now_us=now_us, wait_us=wait_us, words=f"{words}; {count}")


def _schedule_uncounted(
    policy: RetryPolicy, counters: Counters, *, count: int, now_us: int, words: str
) -> Verdict:
    words = f"{words}; uses up no retry, {count} so far"
    return _schedule_lost(policy, counters, now_us=now_us, wait_us=uncounted_delay_us(count), words=words)


def _schedule_lost(
    policy: RetryPolicy, counters: Counters, *, now_us: int, wait_us: int, words: str
) -> Verdict:
    due_us = now_us + wait_us
    waits = f"waits {_wait_words(wait_us)}"
    refusal = _out_of_range(policy, counters, due_us=due_us)
    if refusal is not None:
        return GiveUp(f"not retried: the next attempt {refusal[1]} ({waits}; {words})", refusal[0], counters)
    return RetryAt(due_us, f"{words}; {waits}; next at {_instant(due_us)}", "lost", counters)


def _out_of_range(policy: RetryPolicy, counters: Counters, *, due_us: int) -> tuple[str, str] | None:
    end_us = window_end_us(policy, counters)
    if end_us is not None and due_us > end_us:
        return "window", f"would pass the window that ends at {_instant(end_us)}"
    if due_us > INSTANT_MAX_US:
        return "calendar", "would be due beyond the last instant that there is"
    return None


def _used_up(max_retry: int) -> str:
    if max_retry == 0:
        return "max_retry is 0"
    return "its one retry is used up" if max_retry == 1 else f"all {max_retry} retries are used up"


def _wait_words(wait_us: int) -> str:
    """From a second on, microseconds of a jittered wait only make a sentence hard to read."""
    if wait_us >= SECOND:
        wait_us = (wait_us + MILLISECOND // 2) // MILLISECOND * MILLISECOND
    return format_duration(wait_us)


def _instant(instant_us: int) -> str:
    return format_instant(min(max(instant_us, INSTANT_MIN_US), INSTANT_MAX_US))
