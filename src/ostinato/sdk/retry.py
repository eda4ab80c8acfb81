"""Retry policies as users write them: ``Retry.exponential(5, max_retry=4)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal, TypeAlias, TypedDict, Unpack

from ostinato.core.retry.policy import RetryPolicy, effective_policy

Duration: TypeAlias = str | int | float | timedelta
"""``"1h30m"``, a number of seconds, or a timedelta."""

Pattern: TypeAlias = str | type[BaseException]
"""A code, a glob such as ``HTTP_5*``, a category, or an exception class (or its qualified name)."""


class RetryOptions(TypedDict, total=False):
    """What every policy may say besides its delays; left out means the default of an explicit policy.

    `max_retry` and `max_lost` (3 each; 0 means not once) bound failures of the task itself and lost attempts.
    `window` is the longest time from the first failure to the start of a retry. `retry_on` and `no_retry_on`
    say which failures are retried (default: all but category ``permanent``); the second wins, and is
    ``["permanent"]`` by default (``[Permanent]`` beside a `retry_on`). `jitter` is ``none`` (the default),
    ``full``, ``equal``, ``decorrelated`` or a fraction such as 0.1. `rules` is the long form of design
    section 4. `budget` bounds how many retries of the task may start, as a share of its first attempts:
    ``"10%"``, or ``{"share": 0.1, "floor": "30/m"}``.
    """

    max_retry: int
    max_lost: int
    window: Duration | None
    retry_on: Sequence[Pattern]
    no_retry_on: Sequence[Pattern]
    jitter: Literal["none", "full", "equal", "decorrelated"] | float
    max_interval: Duration | None
    rules: Sequence[Mapping[str, object]]
    budget: str | float | Mapping[str, object] | None


class Retry:
    """Makers of retry policies. Each raises ``INVALID_POLICY`` or ``INVALID_DURATION`` naming the field.

    A policy made here is explicit: no jitter and no cap unless it asks for them. A task without one has
    exponential 5 s × 2, at most 10 min, ±10 %, 3 retries (design section 11).
    """

    @staticmethod
    def fixed(interval: Duration = 5, **options: Unpack[RetryOptions]) -> RetryPolicy:
        """The same wait before each retry: 30, 30, 30 s for ``fixed(30)``."""
        return _policy("fixed", {"interval": interval}, options=options)

    @staticmethod
    def linear(interval: Duration = 5, **options: Unpack[RetryOptions]) -> RetryPolicy:
        """`interval` · n before retry n: 5, 10, 15 s for ``linear(5)``."""
        return _policy("linear", {"interval": interval}, options=options)

    @staticmethod
    def exponential(
        interval: Duration = 5, *, multiplier: float = 2, **options: Unpack[RetryOptions]
    ) -> RetryPolicy:
        """`interval` · `multiplier`ⁿ⁻¹ before retry n: 5, 10, 20 s for ``exponential(5)``."""
        return _policy("exponential", {"interval": interval, "multiplier": multiplier}, options=options)

    @staticmethod
    def delays(*delays: Duration | Sequence[Duration], **options: Unpack[RetryOptions]) -> RetryPolicy:
        """The waits in turn, one by one or as a list: ``delays(1, 10, "1m")`` or ``delays([1, 10, "1m"])``.

        As many retries as there are delays unless `max_retry` says otherwise; the last is repeated then.
        """
        listed: list[object] = []
        for delay in delays:
            listed += delay if isinstance(delay, list | tuple) else [delay]
        return _policy("delays", {"delays": listed}, options=options)

    @staticmethod
    def none(*, max_lost: int = 3) -> RetryPolicy:
        """No retry of the task's own failures; with ``max_lost=0`` at most one attempt at all."""
        return _policy("fixed", {"interval": 0}, options={"max_retry": 0, "max_lost": max_lost})


def _policy(backoff: str, delays: Mapping[str, object], *, options: RetryOptions) -> RetryPolicy:
    return effective_policy({"backoff": backoff, **delays, **_listed(options)})


def _listed(options: RetryOptions) -> dict[str, object]:
    """`None` says "none" here, where YAML has the word."""
    said: dict[str, object] = dict(options)
    for name in ("window", "max_interval", "budget"):
        if name in said and said[name] is None:
            said[name] = "none"
    return said
