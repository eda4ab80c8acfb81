"""The policy's delay before retry n, before jitter: exact at any n, in integer microseconds.

===========  ====================================================
fixed        interval
linear       interval · n
exponential  interval · multiplierⁿ⁻¹ (5 s, 10 s, 20 s for 5 s and 2)
delays       the n-th of the list; its last for every later n
===========  ====================================================

Each is capped by ``max_interval`` and by the hard ceiling of 365 d. n counts failures of the task itself in
this generation, from 1 (design section 4).
"""

from __future__ import annotations

import decimal
from typing import NamedTuple

from ostinato.core.retry.policy_model import DELAY_MAX_US, RetryPolicy

#: Sixty digits hold every delay below the ceiling exactly, and the exponent has room for any n. Without traps
#: an overflow is Infinity, which the comparison with the cap understands.
_EXACT = decimal.Context(prec=60, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[])


class BackoffDelay(NamedTuple):
    """A delay, and what limited it in words (empty if nothing did)."""

    delay_us: int
    limited_by: str


def delay_cap_us(policy: RetryPolicy) -> int:
    """Largest delay that the policy may choose: ``max_interval``, or the hard ceiling."""
    return DELAY_MAX_US if policy.max_interval_us is None else min(policy.max_interval_us, DELAY_MAX_US)


def backoff_delay(policy: RetryPolicy, retry_number: int) -> BackoffDelay:
    """Delay before retry `retry_number` (from 1). Total: any n, saturating at the cap."""
    cap_us = delay_cap_us(policy)
    wanted_us = _wanted_delay_us(policy, max(retry_number, 1), cap_us=cap_us)
    if wanted_us <= cap_us:
        return BackoffDelay(max(wanted_us, 0), "")
    return BackoffDelay(
        cap_us, "capped by max_interval" if cap_us < DELAY_MAX_US else "the longest delay there is"
    )


def _wanted_delay_us(policy: RetryPolicy, retry_number: int, *, cap_us: int) -> int:
    if policy.backoff == "fixed":
        return policy.interval_us
    if policy.backoff == "linear":
        return policy.interval_us * retry_number
    if policy.backoff == "delays":
        return policy.delays_us[min(retry_number, len(policy.delays_us)) - 1] if policy.delays_us else 0
    return _exponential_us(policy, retry_number, cap_us=cap_us)


def _exponential_us(policy: RetryPolicy, retry_number: int, *, cap_us: int) -> int:
    if policy.interval_us == 0:
        return 0
    # repr() gives the decimal that was written: 1.1 means 11/10, not the nearest binary fraction.
    multiplier = decimal.Decimal(repr(policy.multiplier))
    factor = _EXACT.power(multiplier, decimal.Decimal(retry_number - 1))
    wanted = _EXACT.multiply(decimal.Decimal(policy.interval_us), factor)
    # The comparison is written so that a NaN (only from values that no valid policy has) saturates too.
    if not wanted <= cap_us:
        return cap_us + 1
    return int(wanted.to_integral_value(rounding=decimal.ROUND_HALF_EVEN))
