"""Work goes where it may: to a worker that carries its labels, and never to more than its slots.

What a worker executes is within its slots whatever happens. What it has been given is so too until something
is broken, but for what may wait ahead of its slots: no more than have ended there (``worker/ahead.py``).
Later a slot may be counted as taken by what was sent and lost, and a worker refuses what is too much for it.
"""

from __future__ import annotations

from typing import NamedTuple

from ostinato.core.definition import Pool, TaskDefinition
from ostinato.core.model import Instance
from ostinato.core.states import State
from ostinato.simulation.checkers.calm import Calm
from ostinato.simulation.checkers.checker import Checker, Known, Report, Transaction
from ostinato.simulation.history import Event, ExecutionBegan, ExecutionEnded, Fault, RowCommitted


class _Slots(NamedTuple):
    worker: str
    pool: Pool


class RightPlaces(Checker):
    """Knows, by pool, what each worker has been given and what each supervisor executes."""

    invariant = "places"
    listens = (Transaction, ExecutionBegan, ExecutionEnded, Fault)

    def __init__(self, known: Known, report: Report) -> None:
        super().__init__(known, report)
        self._calm = Calm()
        self._pools: dict[str, Pool] = {}
        #: By attempt id, where it is; and by place, how many there are.
        self._given: dict[str, _Slots] = {}
        self._executing: dict[str, _Slots] = {}
        self._counts: dict[_Slots, int] = {}
        self._ended_counts: dict[_Slots, int] = {}

    def on(self, event: Event) -> None:
        match event:
            case Fault():
                self._calm.take(event)
            case ExecutionBegan():
                pool = self._pools.get(event.attempt_id)
                if pool is not None:
                    slots = _Slots(event.worker, pool)
                    count = self._put(self._executing, event.attempt_id, slots=slots)
                    self._check(event.at_us, event.instance_id, slots=slots, count=count, what="executes")
            case ExecutionEnded():
                self._take_away(self._executing, event.attempt_id)
                given = self._take_away(self._given, event.attempt_id)
                if given is not None:
                    self._ended_counts[given] = self._ended_counts.get(given, 0) + 1
                self._pools.pop(event.attempt_id, None)
            case Transaction():
                for row in event.rows:
                    self._take(row)

    def _take(self, row: RowCommitted) -> None:
        before, after = row.before, row.after
        if before is not None and before.state is State.RUNNING:
            if after is None or after.state is not State.RUNNING or after.cancel_requested_us is not None:
                # One that is cancelled before it begins is over at the worker first.
                self._take_away(self._given, before.attempt_id)
            return
        if after is None or after.state is not State.RUNNING:
            return
        definition = self.known.definition(after.ref, after.task_version)
        if definition is not None:
            self._check_assigned(row.at_us, after, definition)

    def _check_assigned(self, at_us: int, instance: Instance, definition: TaskDefinition) -> None:
        self._pools[instance.attempt_id] = definition.pool
        carried = self.known.labels_of(instance.worker_name)
        if not definition.labels.items() <= carried.items():
            self.violate(
                at_us,
                instance.id,
                f"assigned to {instance.worker_name}, which carries {carried}, and its task asks for "
                f"{definition.labels}",
            )
        slots = _Slots(instance.worker_id, definition.pool)
        count = self._put(self._given, instance.attempt_id, slots=slots)
        if self._calm.is_unbroken and count > self._ended_counts.get(slots, 0):
            self._check(at_us, instance.id, slots=slots, count=count, what="has been given")

    def _check(self, at_us: int, instance_id: str, *, slots: _Slots, count: int, what: str) -> None:
        if count > self.known.slot_count:
            self.violate(
                at_us,
                instance_id,
                f"{slots.worker} {what} {count} attempts of pool {slots.pool}, and has "
                f"{self.known.slot_count} slots",
            )

    def _put(self, where: dict[str, _Slots], attempt_id: str, *, slots: _Slots) -> int:
        where[attempt_id] = slots
        count = self._counts[slots] = self._counts.get(slots, 0) + 1
        return count

    def _take_away(self, where: dict[str, _Slots], attempt_id: str) -> _Slots | None:
        """Where it was, if it was anywhere."""
        slots = where.pop(attempt_id, None)
        if slots is not None:
            self._counts[slots] -= 1
        return slots
