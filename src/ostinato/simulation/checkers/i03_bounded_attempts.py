"""I3: at most ``max_retry + 1`` failures and ``max_lost + 1`` losses a generation, no start after the window.

Failures and losses are counted here from the history, not believed of the counters, which must agree.
"""

from __future__ import annotations

import msgspec

from ostinato.core.definition import TaskDefinition
from ostinato.core.model import HistoryRow, Instance
from ostinato.core.retry.lost import HAND_BACK_CODES, REFUSAL_CODES
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.states import State
from ostinato.simulation.checkers.checker import Checker, Known, Report, Transaction, changed
from ostinato.simulation.history import Event

_UNCOUNTED = REFUSAL_CODES | HAND_BACK_CODES


class _Count(msgspec.Struct):
    generation: int
    failures: int = 0
    lost: int = 0
    window_opened_us: int | None = None


class BoundedAttempts(Checker):
    """Counts, per instance, what the present generation has used up."""

    invariant = "I3"
    listens = (Transaction,)

    def __init__(self, known: Known, report: Report) -> None:
        super().__init__(known, report)
        self._counts: dict[str, _Count] = {}

    def on(self, event: Event) -> None:
        assert isinstance(event, Transaction), "it listens to nothing else"
        for row in event.rows:
            both = changed(row)
            if both is None:
                if row.before is not None:
                    self._counts.pop(row.before.id, None)
                continue
            before, after = both
            if before.state is not State.RUNNING and after.state is State.RUNNING:
                self._check_start(event.at_us, after)
            elif before.state is State.RUNNING and after.state in (State.RETRY_WAITING, State.FAILED):
                told = [row for row in event.told_of(after.id) if row.attempt_id == before.attempt_id]
                if told:
                    self._count_end(event.at_us, after, told=told[0])

    def _count_end(self, at_us: int, after: Instance, *, told: HistoryRow) -> None:
        definition = self.known.definition(after.ref, after.task_version)
        if definition is None:
            return
        count = self._counts.get(after.id)
        if count is None or count.generation != after.generation:
            count = self._counts[after.id] = _Count(after.generation)
        policy, counters = definition.retry, after.counters
        if told.category == "lost":
            count.lost += told.code not in _UNCOUNTED
        elif told.category != "cancelled":
            count.failures += 1
            if count.failures == 1:
                count.window_opened_us = counters.window_opened_us
        self._check_bounds(at_us, after, count=count, policy=policy)
        if (counters.failures, counters.lost) != (count.failures, count.lost):
            self.violate(
                at_us,
                after.id,
                f"its counters say {counters.failures} failures and {counters.lost} losses, "
                f"its history {count.failures} and {count.lost}",
            )
        if counters.window_opened_us != count.window_opened_us:
            self.violate(at_us, after.id, "its retry window was opened anew")

    def _check_bounds(self, at_us: int, after: Instance, *, count: _Count, policy: RetryPolicy) -> None:
        max_retry = max([policy.max_retry, *(rule.max_retry or 0 for rule in policy.rules)])
        if count.failures > max_retry + 1 or (
            after.state is State.RETRY_WAITING and count.failures > max_retry
        ):
            self.violate(at_us, after.id, f"failure {count.failures}, and max_retry is {max_retry}")
        if count.lost > policy.max_lost + 1 or (
            after.state is State.RETRY_WAITING and count.lost > policy.max_lost
        ):
            self.violate(at_us, after.id, f"lost {count.lost} times, and max_lost is {policy.max_lost}")

    def _check_start(self, at_us: int, after: Instance) -> None:
        count = self._counts.get(after.id)
        if count is None or count.generation != after.generation or count.window_opened_us is None:
            return
        definition: TaskDefinition | None = self.known.definition(after.ref, after.task_version)
        window_us = None if definition is None else definition.retry.window_us
        if window_us is None or after.assigned_us is None:
            return
        late_us = after.assigned_us - count.window_opened_us - window_us
        if late_us > 0:
            self.violate(at_us, after.id, f"attempt {after.attempt} starts {late_us} us after the window")
