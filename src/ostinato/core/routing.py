"""Which worker gets an attempt: eligible first, then best; pure.

Eligible is a worker that knows the task, has its executor, carries its labels and is in rotation. Of the
eligible ones with a free slot the *least loaded* (or the next in turn, *round robin*) is taken; a retry
avoids the worker that just failed while another one is free. Where none is free the answer says why, so that
the wait can be shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from ostinato.core.definition import PythonSpec, TaskDefinition, TaskRef
from ostinato.core.states import Hold

Strategy: TypeAlias = Literal["least_loaded", "round_robin"]
STRATEGIES: tuple[Strategy, ...] = ("least_loaded", "round_robin")


class WorkerView(msgspec.Struct):
    """What routing knows of a worker. `free` and `turn` are updated by placements of the round."""

    worker_id: str
    worker_name: str
    labels: dict[str, str]
    tasks: frozenset[TaskRef]
    executors: frozenset[str]
    #: Slots by pool in all, and those that may be used now.
    capacity: dict[str, int]
    free: dict[str, int]
    #: How many of its free slots by pool, over all nodes, are places in the queue ahead of its real ones.
    ahead: dict[str, int] = {}
    #: Number of the last placement that it got; smallest is next in turn.
    turn: int = 0


class Unplaced(msgspec.Struct, frozen=True):
    """No worker can take the attempt now, and why."""

    hold: Hold
    reason: str


class Placed(msgspec.Struct, frozen=True):
    """The chosen worker, whose free slot is used up by this answer."""

    worker: WorkerView


class RoutingRound:
    """Placements of one round over the same workers; eligibility is worked out once per task."""

    def __init__(self, workers: Sequence[WorkerView], *, strategy: Strategy, first_turn: int = 0) -> None:
        self._workers = workers
        self._strategy = strategy
        self._eligible: dict[tuple[TaskRef, str], list[WorkerView]] = {}
        #: Number of the next placement; hand it to the next round.
        self.turn = first_turn + 1

    def free_slots(self, definition: TaskDefinition) -> int:
        """Slots that eligible workers have free for the task."""
        pool = definition.pool
        return sum(worker.free.get(pool, 0) for worker in self._eligible_for(definition))

    def place(self, definition: TaskDefinition, *, avoid_worker_id: str = "") -> Placed | Unplaced:
        """Choose a worker and take its slot. `avoid_worker_id` gets it only where no other is free."""
        eligible = self._eligible_for(definition)
        pool = definition.pool
        best: WorkerView | None = None
        best_rank: tuple[bool, float, int] | None = None
        for worker in eligible:
            free = worker.free.get(pool, 0)
            if free <= 0:
                continue
            load = _load(worker, pool, strategy=self._strategy)
            rank = (worker.worker_id == avoid_worker_id, load, worker.turn)
            if best_rank is None or rank < best_rank:
                best, best_rank = worker, rank
        if best is None:
            return self.unplaced(definition)
        best.free[pool] -= 1
        best.turn = self.turn
        self.turn += 1
        return Placed(best)

    def unplaced(self, definition: TaskDefinition) -> Unplaced:
        """Why the task waits, where no slot is free for it."""
        eligible = self._eligible_for(definition)
        if not eligible:
            return Unplaced(Hold.NO_WORKER, no_worker_reason(definition, self._workers))
        who = (
            "the worker that can run it is"
            if len(eligible) == 1
            else f"all {len(eligible)} workers that can run it are"
        )
        return Unplaced(Hold.BUSY, f"{who} busy")

    def _eligible_for(self, definition: TaskDefinition) -> list[WorkerView]:
        key = (definition.ref, definition.executor.__class__.__name__)
        found = self._eligible.get(key)
        if found is None:
            found = [worker for worker in self._workers if is_eligible(worker, definition)]
            self._eligible[key] = found
        return found


def _load(worker: WorkerView, pool: str, *, strategy: Strategy) -> float:
    """Share of its slots that a worker has in use, less one; not below 0 if what it gets waits in its queue.

    Places ahead of the slots do not count as free: what another worker could start at once would wait there.
    """
    free = worker.free.get(pool, 0) - worker.ahead.get(pool, 0)
    if strategy == "round_robin":
        return 0.0 if free <= 0 else -1.0
    return -free / max(worker.capacity.get(pool, 1), 1)


def is_eligible(worker: WorkerView, definition: TaskDefinition) -> bool:
    """Whether the worker could run the task if it had a free slot."""
    return (
        _knows(worker, definition)
        and worker.capacity.get(definition.pool, 0) > 0
        and all(worker.labels.get(name) == value for name, value in definition.labels.items())
    )


def no_worker_reason(definition: TaskDefinition, workers: Iterable[WorkerView]) -> str:
    """Why no connected worker can run the task, in words."""
    connected = list(workers)
    if not connected:
        return f"no worker can run {definition.ref}: no worker is connected"
    knowing = [worker for worker in connected if _knows(worker, definition)]
    if not knowing:
        need = (
            "knows it" if isinstance(definition.executor, PythonSpec) else f"has executor {_kind(definition)}"
        )
        return f"no worker can run {definition.ref}: none of the {len(connected)} connected {need}"
    wanted = ", ".join(f"{name}={value}" for name, value in sorted(definition.labels.items()))
    if all(worker.capacity.get(definition.pool, 0) == 0 for worker in knowing):
        return f"no worker can run {definition.ref}: none has slots in pool {definition.pool}"
    return f"no worker can run {definition.ref}: none of the {len(knowing)} that know it has labels {wanted}"


def _kind(definition: TaskDefinition) -> str:
    return str(definition.executor.__struct_config__.tag)


def _knows(worker: WorkerView, definition: TaskDefinition) -> bool:
    if isinstance(definition.executor, PythonSpec):
        return definition.ref in worker.tasks
    return _kind(definition) in worker.executors
