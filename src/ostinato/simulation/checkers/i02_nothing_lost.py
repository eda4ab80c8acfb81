"""I2: an accepted submission is in the database until it has ended, and it ends or visibly waits.

What is held says why. What waits for busy slots stays in the queue unheld: it visibly waits as long as work
that goes before it takes slots that it could have had.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ostinato.control.submit import KEY_LIFETIME_US
from ostinato.core.definition import Pool
from ostinato.core.instants import MINUTE
from ostinato.core.model import Instance
from ostinato.core.states import TERMINAL_STATES, WAITING_STATES, State
from ostinato.simulation.checkers.checker import Checker, Known, Report, Transaction
from ostinato.simulation.checkers.queue_order import rank_us
from ostinato.simulation.checkers.remembered import Remembered
from ostinato.simulation.history import Event, RowCommitted, SubmissionAnswered

#: A due row that nothing holds may stand in the queue for so long with nothing going before it.
UNEXPLAINED_US_MAX = 10 * MINUTE


class _Start(NamedTuple):
    """An attempt that was assigned."""

    at_us: int
    rank_us: int
    pool: Pool
    worker_name: str


class NothingLost(Checker):
    """Knows the newest row of every instance that has not been deleted."""

    invariant = "I2"
    listens = (Transaction, SubmissionAnswered)

    def __init__(self, known: Known, report: Report) -> None:
        super().__init__(known, report)
        self._rows: dict[str, RowCommitted] = {}
        #: Those of the newest minutes.
        self._starts: deque[_Start] = deque()
        #: Who repeats itself may be told of what is gone: by its id soon, by its key as long as that lives.
        self._deleted: Remembered[str, None] = Remembered()
        self._deleted_by_key: Remembered[str, None] = Remembered(KEY_LIFETIME_US)

    def on(self, event: Event) -> None:
        match event:
            case Transaction():
                for row in event.rows:
                    self._take(row)
            case SubmissionAnswered() if not event.error_code:
                if not self._is_known(event.instance_id):
                    self.violate(
                        event.at_us, event.instance_id, "it was accepted, but is not in the database"
                    )

    def _is_known(self, instance_id: str) -> bool:
        return any(instance_id in known for known in (self._rows, self._deleted, self._deleted_by_key))

    def _take(self, row: RowCommitted) -> None:
        before, after = row.before, row.after
        if before is not None:
            known = self._rows.get(before.id)
            newest = None if known is None else known.after
            if newest is None or (newest.state, newest.attempt, newest.generation) != (
                before.state,
                before.attempt,
                before.generation,
            ):
                self.violate(row.at_us, before.id, "its row has changed without a commit")
        if after is not None:
            self._rows[after.id] = row
            if before is not None and after.attempt > before.attempt:
                self._started(row.at_us, after)
        elif before is not None:
            self._rows.pop(before.id, None)
            (self._deleted_by_key if before.key else self._deleted).put(before.id, None, at_us=row.at_us)
            if before.state not in TERMINAL_STATES:
                self.violate(row.at_us, before.id, f"it was deleted while {before.state}")

    def _started(self, at_us: int, instance: Instance) -> None:
        while self._starts and self._starts[0].at_us <= at_us - UNEXPLAINED_US_MAX:
            self._starts.popleft()
        definition = self.known.definition(instance.ref, instance.task_version)
        if definition is not None:
            self._starts.append(_Start(at_us, rank_us(instance), definition.pool, instance.worker_name))

    def finish(self, at_us: int) -> None:
        now_us = self.known.shared_us(at_us)
        for row in self._rows.values():
            instance = row.after
            if instance is None or instance.state in TERMINAL_STATES or instance.state is State.RUNNING:
                continue
            is_explained = (
                instance.hold is not None
                or now_us - max(instance.due_us, 0) < UNEXPLAINED_US_MAX
                or self._is_behind_others(instance, at_us)
            )
            if instance.state not in WAITING_STATES or not is_explained:
                self.violate(
                    at_us,
                    instance.id,
                    f"it stands {instance.state} since its due time {now_us - instance.due_us} us ago, "
                    "and nothing says why",
                )

    def _is_behind_others(self, waiting: Instance, at_us: int) -> bool:
        """Whether of late a slot that it could have had went to what goes before it."""
        definition = self.known.definition(waiting.ref, waiting.task_version)
        return definition is not None and any(
            start.at_us > at_us - UNEXPLAINED_US_MAX
            and start.rank_us <= rank_us(waiting)
            and start.pool == definition.pool
            and definition.labels.items() <= self.known.labels_of(start.worker_name).items()
            for start in self._starts
        )
