"""Which failures are retried at all: rules, then ``no_retry_on``, then ``retry_on``.

Rules come first because they are the more particular form: an ordered list of which the first match wins, by
which an exception can be cut out of a broad ``no_retry_on``. Of the two lists ``no_retry_on`` wins (C073).
With an empty ``retry_on`` every other failure is retried. Design section 4.
"""

from __future__ import annotations

import msgspec

from ostinato.core.failure.failure import Failure
from ostinato.core.failure.match import first_match
from ostinato.core.failure.signals import RETRY_LATER_CLASS
from ostinato.core.retry.policy_model import RetryPolicy, RetryRule


class Selection(msgspec.Struct, frozen=True):
    """Whether a failure is one to retry, by which rule, in which words, and with which policy."""

    retried: bool
    rule: str
    words: str
    policy: RetryPolicy
    #: As `words`, beside a reason for which it is not retried all the same.
    cause: str = ""


def select(policy: RetryPolicy, failure: Failure) -> Selection:
    """Whether a failure of the task itself is one to retry; how many retries are left is not asked here."""
    for index, rule in enumerate(policy.rules):
        found = first_match(rule.match, failure)
        if found is not None:
            name = f"rules[{index}]"
            words = f"{_element_words(found)} matches {name}"
            if rule.action == "fail":
                return Selection(False, name, f"{words}, which says fail", policy)
            return Selection(True, name, words, policy_for_rule(policy, rule), cause=words)
    found = first_match(policy.no_retry_on, failure)
    if found is not None:
        words = f"{_element_words(found)} is on no_retry_on"
        return Selection(False, f"no_retry_on: {found[0]}", words, policy)
    if not policy.retry_on:
        words = f"{code_words(failure)} ({failure.category}) may be retried"
        return Selection(True, "default", words, policy, cause=f"{code_words(failure)}, {failure.category}")
    found = first_match(policy.retry_on, failure)
    if found is not None:
        words = f"{_element_words(found)} is on retry_on"
        return Selection(True, f"retry_on: {found[0]}", words, policy, cause=words)
    # The task's own plea is more particular than the list of failures that nobody foresaw in it.
    if failure.code == "RETRY_LATER" or RETRY_LATER_CLASS in failure.classes:
        words = "the task asked to be run again (RetryLater)"
        return Selection(True, "retry_later", words, policy, cause=words)
    words = f"{code_words(failure)} of category {failure.category} is not on retry_on"
    return Selection(False, "retry_on", words, policy)


def policy_for_rule(policy: RetryPolicy, rule: RetryRule) -> RetryPolicy:
    """The policy with the fields that a ``retry`` rule sets itself."""
    delays_us = policy.delays_us if rule.delays_us is None else rule.delays_us
    if rule.backoff is not None and rule.backoff != "delays" and rule.delays_us is None:
        delays_us = ()
    return msgspec.structs.replace(
        policy,
        backoff=policy.backoff if rule.backoff is None else rule.backoff,
        interval_us=policy.interval_us if rule.interval_us is None else rule.interval_us,
        multiplier=policy.multiplier if rule.multiplier is None else rule.multiplier,
        delays_us=delays_us,
        max_interval_us=policy.max_interval_us if rule.max_interval_us is None else rule.max_interval_us,
        jitter=policy.jitter if rule.jitter is None else rule.jitter,
        jitter_factor=policy.jitter_factor if rule.jitter_factor is None else rule.jitter_factor,
        # A rule may allow fewer retries than the policy, never more (I3).
        max_retry=policy.max_retry if rule.max_retry is None else min(rule.max_retry, policy.max_retry),
    )


def stops_after_loss(policy: RetryPolicy, failure: Failure) -> tuple[str, str] | None:
    """Rule and words if an attempt that began and whose end is unknown must not be repeated."""
    if policy.max_lost == 0:
        return "max_lost", f"max_lost is 0, so the task runs at most once ({code_words(failure)})"
    for index, rule in enumerate(policy.rules):
        found = first_match(rule.match, failure)
        if found is not None:
            if rule.action == "retry":
                return None
            return f"rules[{index}]", f"{_element_words(found)} matches rules[{index}], which says fail"
    found = first_match(policy.no_retry_on, failure)
    if found is None:
        return None
    return f"no_retry_on: {found[0]}", f"{_element_words(found)} is on no_retry_on"


def code_words(failure: Failure) -> str:
    """The failure as sentences of the history name it."""
    return f"code {failure.code}"


def _element_words(found: tuple[str, str]) -> str:
    """``code HTTP_503 (HTTP_5*)``: the matched element, and the pattern where the two differ."""
    pattern, element = found
    return element if pattern in element else f"{element} ({pattern})"
