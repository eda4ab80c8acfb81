"""A task's retry budget: a token bucket that its first attempts fill and its retries empty; pure.

An outage makes every instance of a task fail, so that retries come on top of all that is new: the load is
greatest when the dependency can bear least. A budget bounds them by what the task does anyway. Each first
attempt puts a share of a token in, and the *floor* so many whole ones a second, whatever the task does, so
that a task that has stopped starting still recovers; each retry that starts takes one out. Without a token it
waits (docs/retries.md).

Only what was put in within the last ten seconds counts, as in Finagle's ``RetryBudget``: an hour of good days
is no right to a storm. But the fractions up to one whole token stay, however old, so that a task that starts
once a minute may retry after every tenth start.

Tokens are counted in whole units, so that no rounding adds up. Design section 4, C065.
"""

from __future__ import annotations

from collections import deque

from ostinato.core.instants import HOUR, SECOND
from ostinato.core.retry.policy_model import RetryBudget

#: Units of one token. So a floor of one token an hour puts in one unit a microsecond.
TOKEN = HOUR
#: What was put in longer ago does not count any more.
RECENT_US = 10 * SECOND


class Bucket:
    """The tokens of one task, empty at first. Times are those of one monotonic clock."""

    def __init__(self, budget: RetryBudget, *, now_us: int) -> None:
        self.budget = budget
        self._level = 0
        self._at_us = now_us
        #: What first attempts have put in, by the second in which they did: the start of it, and units.
        self._recent: deque[tuple[int, int]] = deque()
        self._recent_sum = 0

    def change(self, budget: RetryBudget, *, now_us: int) -> None:
        """Another budget from now on; what is in it stays, as far as it counts."""
        if budget != self.budget:
            self._flow(now_us)
            self.budget = budget
            self._flow(now_us)

    def fill(self, count: int, *, now_us: int) -> None:
        """So many first attempts of the task have started."""
        units = count * round(self.budget.share * TOKEN)
        self._flow(now_us)
        second_us = self._at_us // SECOND * SECOND
        if self._recent and self._recent[-1][0] == second_us:
            units_before = self._recent.pop()[1]
            self._recent.append((second_us, units_before + units))
        else:
            self._recent.append((second_us, units))
        self._recent_sum += units
        self._level = min(self._level + units, self._level_max())

    def count(self, now_us: int) -> int:
        """Whole tokens: so many retries may start now."""
        self._flow(now_us)
        return self._level // TOKEN

    def take(self, *, now_us: int) -> bool:
        """A retry starts, and takes a token; False: there is none, and it must not start."""
        self._flow(now_us)
        if self._level < TOKEN:
            return False
        self._level -= TOKEN
        return True

    def next_us(self, now_us: int) -> int | None:
        """When there is a token though nothing more starts; None: never, as there is no floor."""
        self._flow(now_us)
        missing = max(0, TOKEN - self._level)
        rate = self.budget.floor_per_hour
        if rate == 0:
            return None if missing else self._at_us
        return self._at_us + -(-missing // rate)

    def _flow(self, now_us: int) -> None:
        """What the floor has put in since; what has become too old goes."""
        elapsed_us = max(0, now_us - self._at_us)
        self._at_us += elapsed_us
        while self._recent and self._recent[0][0] <= self._at_us - RECENT_US:
            self._recent_sum -= self._recent.popleft()[1]
        self._level = min(self._level + elapsed_us * self.budget.floor_per_hour, self._level_max())

    def _level_max(self) -> int:
        return max(TOKEN, self._recent_sum + RECENT_US * self.budget.floor_per_hour)
