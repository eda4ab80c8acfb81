"""Jitter: how a capped delay d is spread, with one draw for one delay.

=============  =========================================================
none           d
full           U(0, d)
equal          d/2 + U(0, d/2)
decorrelated   min(cap, U(interval, max(interval, 3 · previous)))
proportional   U(d(1−f), min(d(1+f), cap))
=============  =========================================================

Only decorrelated is clamped after its draw. The others are drawn from a range that already respects the cap,
because a clamp would put every capped retry on the same instant (C053). Design section 4.
"""

from __future__ import annotations

from random import Random

from ostinato.core.retry.policy_model import RetryPolicy


def jittered_delay_us(
    policy: RetryPolicy, delay_us: int, *, cap_us: int, previous_delay_us: int, rng: Random
) -> int:
    """One draw from the policy's jitter of `delay_us` (already capped by `cap_us`). Never negative."""
    if policy.jitter == "none":
        return delay_us
    if policy.jitter == "full":
        return rng.randint(0, delay_us)
    if policy.jitter == "equal":
        half_us = delay_us // 2
        return delay_us - half_us + rng.randint(0, half_us)
    if policy.jitter == "decorrelated":
        high_us = max(policy.interval_us, 3 * previous_delay_us)
        return min(cap_us, rng.randint(policy.interval_us, high_us))
    spread_us = _proportional_us(policy, delay_us)
    high_us = max(min(delay_us + spread_us, cap_us), delay_us)
    return rng.randint(delay_us - spread_us, high_us)


def added_jitter_us(policy: RetryPolicy, delay_us: int, *, rng: Random) -> int:
    """What jitter adds to a wait that the failure asked for: U(0, w), w the width of its draw for `delay_us`.

    `delay_us` is the policy's own delay for this retry. w is d for full, d/2 for equal, f·d for ±f, the
    interval for decorrelated, 0 for none. It only adds: nothing shortens what a server asked for.
    """
    if policy.jitter == "none":
        return 0
    if policy.jitter == "full":
        return rng.randint(0, delay_us)
    if policy.jitter == "equal":
        return rng.randint(0, delay_us // 2)
    if policy.jitter == "decorrelated":
        return rng.randint(0, policy.interval_us)
    return rng.randint(0, _proportional_us(policy, delay_us))


def _proportional_us(policy: RetryPolicy, delay_us: int) -> int:
    # f ≤ 1 in every valid policy; the bound keeps the range from going below zero all the same.
    return min(round(delay_us * policy.jitter_factor), delay_us)
