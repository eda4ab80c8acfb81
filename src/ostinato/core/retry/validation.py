"""What no retry policy may say; each refusal names the field as people write it (``INVALID_POLICY``)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ostinato.core.failure.categories import category_of, is_category
from ostinato.core.failure.codes import CATALOGUE
from ostinato.core.failure.coverage import covers
from ostinato.core.failure.match import validate_pattern
from ostinato.core.instants import DURATION_MAX_US, HOUR, MINUTE, SECOND, format_duration
from ostinato.core.retry.backoff import backoff_delay
from ostinato.core.retry.policy_model import (
    BACKOFFS,
    DELAY_MAX_US,
    DELAYS_COUNT_MAX,
    FLOOR_COUNT_MAX,
    JITTERS,
    PATTERNS_COUNT_MAX,
    RETRY_COUNT_MAX,
    RULE_ACTIONS,
    RULES_COUNT_MAX,
    RetryBudget,
    RetryPolicy,
    RetryRule,
)
from ostinato.core.retry.selection import policy_for_rule
from ostinato.errors import UserError

JITTER_HINT = "write none, full, equal, decorrelated, or a fraction of the delay such as 0.1 or 10%"


def validate_policy(policy: RetryPolicy, *, field: str = "retry") -> None:
    """Refuse a policy that contradicts itself or exceeds a bound. Raises ``INVALID_POLICY``.

    The error's field is `field` and the name from ``tasks.yaml``, as ``retry.interval`` or
    ``retry.rules[0].match[1]``. Source: design sections 4 and 11, C049, C073.
    """
    _validate_delays(policy, field)
    _validate_jitter(policy, field)
    _validate_count(policy.max_retry, f"{field}.max_retry")
    _validate_count(policy.max_lost, f"{field}.max_lost")
    if policy.window_us is not None and not 0 <= policy.window_us <= DURATION_MAX_US:
        raise refusal("is between 0s and 100 years, or none", f"{field}.window")
    _validate_patterns(policy.retry_on, f"{field}.retry_on", retried=True)
    _validate_patterns(policy.no_retry_on, f"{field}.no_retry_on", retried=False)
    _refuse_contradiction(policy, field)
    _validate_rules(policy, field)
    if isinstance(policy.budget, RetryBudget):
        _validate_budget(policy.budget, f"{field}.budget")


def policy_notes(policy: RetryPolicy) -> tuple[str, ...]:
    """What a person should be told of a valid policy: its delays reach the hard ceiling (C049)."""
    # Delays never shrink with n under any backoff but a list, so the first that is limited can be bisected.
    if policy.backoff == "delays" or policy.max_interval_us is not None:
        return ()
    low, high = 1, policy.max_retry + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if backoff_delay(policy, middle).limited_by else (middle + 1, high)
    if low > policy.max_retry:
        return ()
    ceiling = format_duration(DELAY_MAX_US)
    return (f"from retry {low} on every delay is {ceiling}, the longest there is; set max_interval",)


def refusal(message: str, field: str, *, hint: str = "") -> UserError:
    """The error of every refused policy."""
    return UserError("INVALID_POLICY", message, field=field, hint=hint)


def _validate_delays(policy: RetryPolicy, field: str) -> None:
    if policy.backoff not in BACKOFFS:
        raise refusal(
            f"{policy.backoff!r} is no backoff", f"{field}.backoff", hint=f"use one of {', '.join(BACKOFFS)}"
        )
    _validate_delay(policy.interval_us, f"{field}.interval")
    if policy.max_interval_us is not None:
        _validate_delay(policy.max_interval_us, f"{field}.max_interval")
    if not (math.isfinite(policy.multiplier) and policy.multiplier >= 1):
        raise refusal(f"{policy.multiplier!r} is not a number of at least 1", f"{field}.multiplier")
    if policy.backoff != "delays":
        if policy.delays_us:
            raise refusal(f"has no meaning with backoff {policy.backoff}", f"{field}.delays")
        return
    if not 1 <= len(policy.delays_us) <= DELAYS_COUNT_MAX:
        raise refusal(f"holds 1 to {DELAYS_COUNT_MAX} delays", f"{field}.delays")
    for index, delay_us in enumerate(policy.delays_us):
        _validate_delay(delay_us, f"{field}.delays[{index}]")


def _validate_delay(delay_us: int, field: str) -> None:
    if not 0 <= delay_us <= DELAY_MAX_US:
        raise refusal(
            f"one delay lies between 0s and {format_duration(DELAY_MAX_US)}, not {format_duration(delay_us)}",
            field,
        )


def _validate_jitter(policy: RetryPolicy, field: str) -> None:
    factor = policy.jitter_factor
    if policy.jitter not in JITTERS:
        raise refusal(f"{policy.jitter!r} is no jitter", f"{field}.jitter", hint=JITTER_HINT)
    if policy.jitter == "proportional":
        if not 0 < factor <= 1:
            raise refusal(
                f"±{factor!r} is not more than 0 and at most 1", f"{field}.jitter", hint=JITTER_HINT
            )
    elif factor != 0:
        raise refusal(f"jitter {policy.jitter} takes no factor", f"{field}.jitter")
    if policy.jitter == "decorrelated" and policy.backoff == "delays":
        raise refusal("decorrelated draws from the interval, which delays do not have", f"{field}.jitter")


def _validate_count(count: int, field: str) -> None:
    if not 0 <= count <= RETRY_COUNT_MAX:
        raise refusal(f"lies between 0 and {RETRY_COUNT_MAX}, not {count}", field)


def _validate_budget(budget: RetryBudget, field: str) -> None:
    if not 0 <= budget.share <= 1:
        raise refusal(f"is between 0 and 100%, not {budget.share!r}", f"{field}.share")
    if budget.floor_period_us not in (SECOND, MINUTE, HOUR) or not 0 <= budget.floor_count <= FLOOR_COUNT_MAX:
        raise refusal(f"is 0 to {FLOOR_COUNT_MAX} retries a second, minute or hour", f"{field}.floor")
    if budget.share == 0 and budget.floor_count == 0:
        raise refusal("a share of 0 without a floor lets no retry start", field, hint="write max_retry: 0")


def _validate_patterns(patterns: Sequence[str], field: str, *, retried: bool) -> None:
    if len(patterns) > PATTERNS_COUNT_MAX:
        raise refusal(f"holds at most {PATTERNS_COUNT_MAX} entries", field)
    for index, pattern in enumerate(patterns):
        entry = f"{field}[{index}]"
        validate_pattern(pattern, field=entry)
        category = pattern if is_category(pattern) else category_of(pattern)
        if retried and (is_category(pattern) or pattern in CATALOGUE):
            if category == "cancelled":
                raise refusal(f"{pattern} is never retried", entry)
            if category == "lost":
                raise refusal(f"{pattern} is not governed by patterns", entry, hint="use max_lost")


def _refuse_contradiction(policy: RetryPolicy, field: str) -> None:
    for index, retried in enumerate(policy.retry_on):
        for refused in policy.no_retry_on:
            if covers(refused, retried):
                raise refusal(
                    f"{retried} can never be retried, because {refused} is on no_retry_on, which wins",
                    f"{field}.retry_on[{index}]",
                    hint="take one of the two away",
                )


def _validate_rules(policy: RetryPolicy, field: str) -> None:
    if len(policy.rules) > RULES_COUNT_MAX:
        raise refusal(f"holds at most {RULES_COUNT_MAX} rules", f"{field}.rules")
    for index, rule in enumerate(policy.rules):
        name = f"{field}.rules[{index}]"
        if rule.action not in RULE_ACTIONS:
            raise refusal(f"{rule.action!r} is no action", f"{name}.action", hint="use retry or fail")
        if not rule.match:
            raise refusal("names no failure, so the rule never applies", f"{name}.match")
        _validate_patterns(rule.match, f"{name}.match", retried=rule.action == "retry")
        _validate_overrides(policy, rule, name=name)
        _refuse_unreachable(policy.rules[:index], rule, name=name)


def _validate_overrides(policy: RetryPolicy, rule: RetryRule, *, name: str) -> None:
    if rule.action == "fail":
        if rule != RetryRule(match=rule.match, action="fail"):
            raise refusal("a rule that says fail has no delays or counts", f"{name}.action")
        return
    merged = policy_for_rule(policy, rule)
    if rule.multiplier is not None and merged.backoff != "exponential":
        raise refusal(f"has no meaning with backoff {merged.backoff}", f"{name}.multiplier")
    if rule.interval_us is not None and merged.backoff == "delays":
        raise refusal("has no meaning with backoff delays", f"{name}.interval")
    _validate_delays(merged, name)
    _validate_jitter(merged, name)
    if rule.max_retry is not None and not 0 <= rule.max_retry <= policy.max_retry:
        raise refusal(
            f"lies between 0 and the policy's max_retry {policy.max_retry}, not {rule.max_retry}",
            f"{name}.max_retry",
        )


def _refuse_unreachable(earlier: Sequence[RetryRule], rule: RetryRule, *, name: str) -> None:
    for index, entry in enumerate(rule.match):
        for number, other in enumerate(earlier):
            if any(covers(wide, entry) for wide in other.match):
                raise refusal(
                    f"{entry} never gets here, because rules[{number}] matches it first",
                    f"{name}.match[{index}]",
                )
