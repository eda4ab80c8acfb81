"""The retry policy as pure data, with the bounds that hold for every policy."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from ostinato.core.instants import DAY, HOUR, MINUTE, SECOND

Backoff = Literal["fixed", "linear", "exponential", "delays"]
Jitter = Literal["none", "full", "equal", "decorrelated", "proportional"]
RuleAction = Literal["retry", "fail"]

BACKOFFS: tuple[Backoff, ...] = get_args(Backoff)
JITTERS: tuple[Jitter, ...] = get_args(Jitter)
RULE_ACTIONS: tuple[RuleAction, ...] = get_args(RuleAction)

#: Hard ceiling of one delay (design section 11); whatever is computed beyond it waits this long.
DELAY_MAX_US = 365 * DAY
#: Longest wait that a failure may ask for by itself.
RETRY_AFTER_MAX_US = DAY
RETRY_COUNT_MAX = 1_000_000
DELAYS_COUNT_MAX = 1_000
PATTERNS_COUNT_MAX = 100
RULES_COUNT_MAX = 100
FLOOR_COUNT_MAX = 1_000_000


class RetryRule(msgspec.Struct, frozen=True):
    """One line of the long form: failures that match any of `match` are retried, or fail at once.

    Of a ``retry`` rule each field that is not None replaces the policy's own; a ``fail`` rule has none.
    """

    match: tuple[str, ...]
    action: RuleAction = "retry"
    backoff: Backoff | None = None
    interval_us: int | None = None
    multiplier: float | None = None
    delays_us: tuple[int, ...] | None = None
    max_interval_us: int | None = None
    jitter: Jitter | None = None
    jitter_factor: float | None = None
    max_retry: int | None = None


class RetryBudget(msgspec.Struct, frozen=True):
    """How many retries of a task may start: a share of its recent first attempts, and some in any case.

    `floor_count` of them in each `floor_period_us`; 0 is none. Enacted by ``core/retry/budget.py``.
    """

    share: float
    floor_count: int = 1
    floor_period_us: int = SECOND

    @property
    def floor_per_hour(self) -> int:
        return self.floor_count * (HOUR // self.floor_period_us)


class RetryPolicy(msgspec.Struct, frozen=True):
    """When, how often, how long and for which failures to retry (design section 4).

    The defaults are those of an explicit policy: no jitter, no cap. Where a task says nothing at all,
    ``DEFAULT_POLICY`` holds. `max_interval_us` and `window_us` None mean none; 0 means 0.
    `jitter_factor` is f of ±f and 0 for every jitter but ``proportional``. Without a `budget` retries start
    as they fall due; it is unset rather than None, so that what is stored of a policy without one stays as
    it was before there were budgets.
    """

    backoff: Backoff = "exponential"
    interval_us: int = 5 * SECOND
    multiplier: float = 2.0
    delays_us: tuple[int, ...] = ()
    max_interval_us: int | None = None
    jitter: Jitter = "none"
    jitter_factor: float = 0.0
    max_retry: int = 3
    max_lost: int = 3
    window_us: int | None = None
    retry_on: tuple[str, ...] = ()
    no_retry_on: tuple[str, ...] = ("permanent",)
    rules: tuple[RetryRule, ...] = ()
    budget: RetryBudget | msgspec.UnsetType = msgspec.UNSET


#: Where nothing is said (design section 11).
DEFAULT_POLICY = RetryPolicy(max_interval_us=10 * MINUTE, jitter="proportional", jitter_factor=0.1)
