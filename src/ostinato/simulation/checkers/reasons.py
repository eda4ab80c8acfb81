"""Held work says why it waits now: that its task is paused, and nothing else, while it is.

A cause may change while the rows are out of reach, so this is judged some seconds after the last fault.
"""

from __future__ import annotations

from typing import NamedTuple

from ostinato.core.definition import TaskRef
from ostinato.core.instants import SECOND
from ostinato.core.states import Hold
from ostinato.simulation.checkers.calm import Calm
from ostinato.simulation.checkers.checker import Checker, Known, Report, Transaction
from ostinato.simulation.history import Event, Fault, TaskCommitted

#: What is held says what is true by then: a round that had begun, and the next one.
REASON_US = 6 * SECOND
_LOOK_US = SECOND
#: What holds work beside its own task's rules.
_CAUSES = frozenset({Hold.BUSY, Hold.NO_WORKER, Hold.PAUSED, Hold.BUDGET})


class _Held(NamedTuple):
    at_us: int
    hold: Hold
    reason: str


class TrueReasons(Checker):
    """Knows what is held, and which tasks are paused."""

    invariant = "reasons"
    listens = (Transaction, Fault)

    def __init__(self, known: Known, report: Report) -> None:
        super().__init__(known, report)
        self._calm = Calm()
        self._held: dict[TaskRef, dict[str, _Held]] = {}
        #: Whether a task is paused, and since when, in true time.
        self._paused: dict[TaskRef, tuple[bool, int]] = {}
        self._looked_us = 0
        self._told: set[str] = set()

    def on(self, event: Event) -> None:
        if isinstance(event, Fault):
            self._calm.take(event)
            return
        assert isinstance(event, Transaction), "it listens to nothing else"
        for change in event.tasks:
            self._take_task(change)
        for row in event.rows:
            instance = row.after if row.after is not None else row.before
            if instance is None:
                continue
            held = self._held.setdefault(instance.ref, {})
            if row.after is not None and row.after.hold in _CAUSES:
                held[instance.id] = _Held(event.at_us, row.after.hold, row.after.reason)
            else:
                held.pop(instance.id, None)
        if event.at_us - self._looked_us >= _LOOK_US:
            self._looked_us = event.at_us
            self._look(event.at_us)

    def finish(self, at_us: int) -> None:
        self._look(at_us)

    def _take_task(self, change: TaskCommitted) -> None:
        row = change.after if change.after is not None else change.before
        if row is None:
            return
        is_paused = change.after is not None and change.after.paused
        if self._paused.get(row.ref, (False, 0))[0] != is_paused:
            self._paused[row.ref] = (is_paused, change.at_us)

    def _look(self, at_us: int) -> None:
        calm_us = self._calm.since_us(at_us)
        for ref, (is_paused, since_us) in self._paused.items():
            for instance_id, held in self._held.get(ref, {}).items():
                false_us = at_us - max(calm_us, since_us, held.at_us)
                if (
                    (held.hold is Hold.PAUSED) == is_paused
                    or false_us <= REASON_US
                    or instance_id in self._told
                ):
                    continue
                self._told.add(instance_id)
                self.violate(
                    at_us,
                    instance_id,
                    f"it is held as {held.hold} ({held.reason}) {false_us} us after its task {ref} was "
                    f"{'paused' if is_paused else 'resumed'}",
                )
