"""Starts of attempts as workers see them, to be judged by a retry budget."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from fractions import Fraction
from random import Random

from support.scripted_worker import Script

from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.instants import HOUR
from ostinato.core.retry.budget import RECENT_US
from ostinato.core.retry.policy import RetryBudget
from ostinato.wire.messages import Assignment


def failing(_: Assignment) -> Failure:
    """The dependency is away."""
    return safe_failure("ECONNREFUSED", "nobody listens", category="transient")


class Starts:
    """What was started when, on a monotonic clock; `script` makes a worker tell of it."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self.firsts: list[int] = []
        self.retries: list[int] = []
        #: Instances of the retries, in their order.
        self.retried: list[str] = []

    def script(self, answer: Script, *, task: str = "t") -> Script:
        """As `answer`, and starts of the task are told."""

        def told(item: Assignment) -> bytes | Failure | None:
            if item.ref.name == task:
                (self.retries if item.retry_count else self.firsts).append(self._now_us())
                if item.retry_count:
                    self.retried.append(item.instance_id)
            return answer(item)

        return told

    def check(self, budget: RetryBudget, *, begin_us: int = 0, slack_us: int = 0) -> None:
        """In no stretch of time that begins with a retry more have started than the budget says.

        `begin_us`: nothing was put in before; `slack_us`: so long an assignment takes to its worker.
        """
        for index in _some(0, len(self.retries), count=300):
            first_us = self.retries[index]
            since_us = max(begin_us, first_us - RECENT_US - slack_us)
            for last in _some(index, len(self.retries)):
                last_us = self.retries[last]
                filled = bisect_right(self.firsts, last_us) - bisect_left(self.firsts, since_us)
                floor = Fraction((last_us - since_us) * budget.floor_per_hour, HOUR)
                allowed = budget.share * filled + floor + 1
                assert last - index + 1 <= allowed, f"{last - index + 1} retries from {first_us} to {last_us}"


def _some(begin: int, end: int, *, count: int = 20) -> list[int]:
    """Everything near the beginning, and about as much further on."""
    rng = Random(begin)
    far = [rng.randrange(begin, end) for _ in range(count)] if begin < end else []
    return [*range(begin, min(begin + count, end)), *far]
