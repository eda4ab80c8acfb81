"""Work goes where it may: to a worker that carries its labels, and never to more than its slots.

What a worker executes is within its slots whatever happens. What it has been given is within these and the
queue ahead of them until something is broken; later a slot may be counted as taken by what was sent and lost,
and a worker refuses what is too much for it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ostinato.core.definition import Pool, TaskDefinition
from ostinato.core.instants import SECOND
from ostinato.core.model import Instance
from ostinato.core.states import State
from ostinato.simulation.checkers.calm import Calm
from ostinato.simulation.checkers.checker import Checker, Known, Report, Transaction
from ostinato.simulation.history import Event, ExecutionBegan, ExecutionEnded, Fault, RowCommitted
from ostinato.worker.ahead import REMEMBERED_US, WAIT_US_MAX, QueueAhead
from ostinato.worker.executors.protocol import AttemptFinished

#: Since the end of the last short attempt, until no node believes in places ahead: until these are asked
#: back, and what nodes need to hear that and say so.
_ASKED_BACK_US = REMEMBERED_US + 2 * SECOND


class _Slots(NamedTuple):
    worker: str
    pool: Pool


class _Queue:
    """How many attempts a worker let wait ahead of its slots of late, by the run times that the world saw."""

    def __init__(self, slot_count: int) -> None:
        self._ahead = QueueAhead(slot_count)
        self._counts: deque[tuple[int, int]] = deque()

    def ended(self, attempt_id: str, *, began_us: int, ended_us: int) -> None:
        """An attempt of the worker's has ended."""
        self._ahead.overdue(ended_us)
        finished = AttemptFinished(attempt_id=attempt_id, started_us=began_us, finished_us=ended_us)
        self._ahead.leave(finished, now_us=ended_us)
        self._counts.append((ended_us, self._ahead.count_max))

    def count_max(self, now_us: int) -> int:
        """The most that a node may still believe."""
        while self._counts and self._counts[0][0] + _ASKED_BACK_US < now_us:
            self._counts.popleft()
        return max((count for _, count in self._counts), default=0)


class RightPlaces(Checker):
    """Knows, by pool, what each worker has been given and what each supervisor executes."""

    invariant = "places"
    listens = (Transaction, ExecutionBegan, ExecutionEnded, Fault)

    def __init__(self, known: Known, report: Report) -> None:
        super().__init__(known, report)
        self._calm = Calm()
        #: By attempt id, where it was assigned to.
        self._assigned: dict[str, _Slots] = {}
        self._began_us: dict[str, int] = {}
        self._given_us: dict[str, int] = {}
        self._queues: dict[_Slots, _Queue] = {}
        #: By attempt id, where it is; and by place, how many there are.
        self._given: dict[str, _Slots] = {}
        self._executing: dict[str, _Slots] = {}
        self._counts: dict[_Slots, int] = {}

    def on(self, event: Event) -> None:
        match event:
            case Fault():
                self._calm.take(event)
            case ExecutionBegan():
                assigned = self._assigned.get(event.attempt_id)
                if assigned is not None:
                    self._began_us[event.attempt_id] = event.at_us
                    slots = _Slots(event.worker, assigned.pool)
                    count = self._put(self._executing, event.attempt_id, slots=slots)
                    limit = self.known.slot_count
                    if count > limit:
                        self._tell(event.at_us, event.instance_id, slots, f"executes {count}", limit=limit)
            case ExecutionEnded():
                self._take_away(self._executing, event.attempt_id)
                self._take_away(self._given, event.attempt_id)
                assigned = self._assigned.pop(event.attempt_id, None)
                began_us = self._began_us.pop(event.attempt_id, None)
                if assigned is not None and began_us is not None:
                    queue = self._queues.setdefault(assigned, _Queue(self.known.slot_count))
                    queue.ended(event.attempt_id, began_us=began_us, ended_us=event.at_us)
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
        carried = self.known.labels_of(instance.worker_name)
        if not definition.labels.items() <= carried.items():
            self.violate(
                at_us,
                instance.id,
                f"assigned to {instance.worker_name}, which carries {carried}, and its task asks for "
                f"{definition.labels}",
            )
        slots = self._assigned[instance.attempt_id] = _Slots(instance.worker_id, definition.pool)
        count = self._put(self._given, instance.attempt_id, slots=slots)
        self._given_us[instance.attempt_id] = at_us
        queue = self._queues.get(slots)
        limit = self.known.slot_count + (0 if queue is None else queue.count_max(at_us))
        if self._calm.is_unbroken and count > limit + self._returned_count(slots, at_us):
            self._tell(at_us, instance.id, slots, f"has been given {count}", limit=limit)

    def _returned_count(self, slots: _Slots, at_us: int) -> int:
        """Attempts that have waited there so long that they were handed back, as their rows say later."""
        return sum(
            at_us - self._given_us[attempt_id] >= WAIT_US_MAX
            for attempt_id, place in self._given.items()
            if place == slots and attempt_id not in self._began_us
        )

    def _tell(self, at_us: int, instance_id: str, slots: _Slots, what: str, *, limit: int) -> None:
        said = f"{slots.worker} {what} attempts of pool {slots.pool}, and has room for {limit}"
        self.violate(at_us, instance_id, said)

    def _put(self, where: dict[str, _Slots], attempt_id: str, *, slots: _Slots) -> int:
        where[attempt_id] = slots
        count = self._counts[slots] = self._counts.get(slots, 0) + 1
        return count

    def _take_away(self, where: dict[str, _Slots], attempt_id: str) -> None:
        slots = where.pop(attempt_id, None)
        if where is self._given:
            self._given_us.pop(attempt_id, None)
        if slots is not None:
            self._counts[slots] -= 1
