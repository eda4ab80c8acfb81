"""Retries of a task with a budget start no faster than it says, whoever owns the task.

Counted from the moves in the database and in true time, with nothing of the product's. An owner decides
before it writes, and a commit may take long: so far before a stretch of time what filled the budget counts.
"""

from __future__ import annotations

from collections import deque
from fractions import Fraction

import msgspec

from ostinato.core.definition import TaskRef
from ostinato.core.instants import HOUR, MINUTE, SECOND
from ostinato.core.model import Instance
from ostinato.core.retry.counters import Counters
from ostinato.core.retry.policy import RetryBudget
from ostinato.core.states import State
from ostinato.simulation.checkers.checker import Checker, Known, Report, Transaction, changed
from ostinato.simulation.history import Event, TaskCommitted

#: What was put in longer ago does not count (docs/retries.md).
RECENT_US = 10 * SECOND
#: Stretches of time that are judged, each up to the newest retry.
STRETCHES_US = (0, SECOND, 10 * SECOND, MINUTE)
#: Clocks of nodes run up to 1,000 ppm off while one drifts.
_DRIFT = Fraction(1_002, 1_000)
#: A commit that takes longer is not judged by how long it took.
_DELAY_US_MAX = 2 * MINUTE


class _Counted(msgspec.Struct):
    budget: RetryBudget
    #: True times of first attempts; of retries, with how long before it was decided on.
    firsts: deque[int] = msgspec.field(default_factory=deque)
    retries: deque[tuple[int, int]] = msgspec.field(default_factory=deque)


class RetryBudgets(Checker):
    """Knows the newest budget of each task that has one, and what it has started lately."""

    invariant = "retry budgets"
    listens = (Transaction,)

    def __init__(self, known: Known, report: Report) -> None:
        super().__init__(known, report)
        self._counted: dict[TaskRef, _Counted] = {}

    def on(self, event: Event) -> None:
        assert isinstance(event, Transaction), "it listens to nothing else"
        for change in event.tasks:
            self._take_task(change)
        touched: dict[TaskRef, _Counted] = {}
        for row in event.rows:
            both = changed(row)
            if both is None or both[0].state is State.RUNNING or both[1].state is not State.RUNNING:
                continue
            counted = self._counted.get(both[1].ref)
            if counted is not None:
                self._count(event.at_us, both[1], counted)
                touched[both[1].ref] = counted
        for ref, counted in touched.items():
            self._check(event.at_us, ref, counted)

    def _take_task(self, change: TaskCommitted) -> None:
        row = change.after
        if row is None:
            # What waits of it is cancelled; made again, it is another task of the same name.
            return
        budget = row.definition.retry.budget
        if not isinstance(budget, RetryBudget):
            self._counted.pop(row.ref, None)
        elif row.ref not in self._counted or self._counted[row.ref].budget != budget:
            self._counted[row.ref] = _Counted(budget)

    def _count(self, at_us: int, after: Instance, counted: _Counted) -> None:
        if after.counters == Counters():
            counted.firsts.append(at_us)
        elif after.counters.failures:
            latest_us = max(self.known.believed_us(at_us))
            delay_us = max(0, latest_us - (after.assigned_us or 0)) + self.known.time_tolerance_us
            counted.retries.append((at_us, min(delay_us, _DELAY_US_MAX)))
        known_us = at_us - STRETCHES_US[-1]
        while counted.retries and counted.retries[0][0] < known_us:
            counted.retries.popleft()
        while counted.firsts and counted.firsts[0] < known_us - RECENT_US - _DELAY_US_MAX:
            counted.firsts.popleft()

    def _check(self, at_us: int, ref: TaskRef, counted: _Counted) -> None:
        for stretch_us in STRETCHES_US:
            begin_us = at_us - stretch_us
            delays = [delay_us for each_us, delay_us in counted.retries if each_us >= begin_us]
            if not delays:
                continue
            since_us = begin_us - RECENT_US - max(delays)
            filled = sum(each_us >= since_us for each_us in counted.firsts)
            floor = Fraction((at_us - since_us) * counted.budget.floor_per_hour, HOUR) * _DRIFT
            # The fractions up to one token stay, however old they are.
            allowed = Fraction(counted.budget.share) * filled + floor + 1
            if len(delays) > allowed:
                self.violate(
                    at_us,
                    str(ref),
                    f"{len(delays)} retries have started within {stretch_us} us, and its budget "
                    f"({counted.budget.share} of {filled} first attempts, {floor_of(counted.budget)}) "
                    f"allows {float(allowed):.2f}",
                )
                counted.retries.clear()


def floor_of(budget: RetryBudget) -> str:
    return f"{budget.floor_count} in {budget.floor_period_us // SECOND} s"
