"""Which worker gets an attempt: eligible first, then best; pure.

Eligible is a worker that knows the task, has its executor, carries its labels and is in rotation. Of the
eligible ones with a free slot the *least loaded* (or the next in turn, *round robin*) is taken; a retry
avoids the worker that just failed while another one is free. Where none is free the answer says why, so that
the wait can be shown.

To tell a worker of one attempt costs as much as to tell it of fifty. So of much work whose attempts are short
a worker that is chosen is given a *run* at once, what it does in a few milliseconds, and then the next is
chosen. Places ahead of its slots show that its attempts are short; without them work is spread one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import chain
from typing import Literal, TypeAlias

import msgspec

from ostinato.core.definition import PythonSpec, TaskDefinition, TaskRef
from ostinato.core.states import Hold

Strategy: TypeAlias = Literal["least_loaded", "round_robin"]
STRATEGIES: tuple[Strategy, ...] = ("least_loaded", "round_robin")

#: A run takes one of so many places ahead, which are what a worker does in 50 ms: 10 ms of it.
_AHEAD_PER_RUN = 5


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


class Route:
    """The workers that can run some tasks, in one round: whoever of them is free and best is next."""

    def __init__(self, workers: list[WorkerView], pool: str, *, strategy: Strategy) -> None:
        self._workers = workers
        self.pool = pool
        self._strategy = strategy
        #: Ranks as they were when entered, with the worker's place in `_workers`. Within a round a rank only
        #: gets worse, so that the first entry that is still true is the best. None: nobody has asked yet.
        self._ranked: list[tuple[float, int, int]] | None = None
        #: Whoever was chosen last, and how many placements more it gets before another one is.
        self._chosen: WorkerView | None = None
        self._run_count = 0

    @property
    def free_count(self) -> int:
        """Slots that are free on these workers."""
        pool = self.pool
        return sum(worker.free.get(pool, 0) for worker in self._workers)

    @property
    def workers(self) -> Sequence[WorkerView]:
        """Whoever can run it, free or not."""
        return self._workers

    def best(self, *, avoid_worker_id: str = "", run_count_max: int = 1) -> WorkerView | None:
        """The worker to take, None where no slot is free; `avoid_worker_id` only where no other is free.

        Whoever is chosen is the best of up to `run_count_max` calls.
        """
        workers = self._workers
        if len(workers) == 1:
            return workers[0] if self._is_free(workers[0]) else None
        best = self._chosen
        if best is not None and self._run_count > 0 and self._is_free(best):
            self._run_count -= 1
        else:
            best = self._chosen = self._first_ranked()
            if best is not None:
                self._run_count = min(run_count_max, best.ahead.get(self.pool, 0) // _AHEAD_PER_RUN) - 1
        if best is None or best.worker_id != avoid_worker_id:
            return best
        others = [worker for worker in workers if worker is not best and self._is_free(worker)]
        return min(others, key=self._rank, default=best)

    def _is_free(self, worker: WorkerView) -> bool:
        return worker.free.get(self.pool, 0) > 0

    def _first_ranked(self) -> WorkerView | None:
        workers, ranked = self._workers, self._ranked
        if ranked is None:
            ranked = [(*self._rank(worker), place) for place, worker in enumerate(workers)]
            heapify(ranked)
            self._ranked = ranked
        while ranked:
            load, turn, place = ranked[0]
            worker = workers[place]
            if not self._is_free(worker):
                heappop(ranked)
                continue
            now = self._rank(worker)
            if now == (load, turn):
                return worker
            heapreplace(ranked, (*now, place))
        return None

    def _rank(self, worker: WorkerView) -> tuple[float, int]:
        return _load(worker, self.pool, strategy=self._strategy), worker.turn


class RoutingRound:
    """Placements of one round over the same workers; eligibility is worked out once per task.

    Which is asked once of workers that know the same tasks, and answered once for tasks that the same workers
    can run: there may be hundreds of both.
    """

    def __init__(self, workers: Sequence[WorkerView], *, strategy: Strategy, first_turn: int = 0) -> None:
        self.workers = workers
        self._strategy = strategy
        #: Workers by what they know.
        self._alike: dict[tuple[frozenset[TaskRef], frozenset[str]], list[WorkerView]] = {}
        for worker in workers:
            self._alike.setdefault((worker.tasks, worker.executors), []).append(worker)
        self._routes: dict[tuple[TaskRef, str, str], Route] = {}
        #: By what a task asks of a worker: which of the lists above, a pool, labels.
        self._shared: dict[tuple[tuple[int, ...], str, frozenset[tuple[str, str]]], Route] = {}
        #: Most placements that a worker gets before the next one is chosen.
        self.run_count_max = 1
        #: Number of the next placement; hand it to the next round.
        self.turn = first_turn + 1

    def free_slots(self, definition: TaskDefinition) -> int:
        """Slots that eligible workers have free for the task."""
        return self.route(definition).free_count

    def place(self, definition: TaskDefinition, *, avoid_worker_id: str = "") -> Placed | Unplaced:
        """Choose a worker and take its slot. `avoid_worker_id` gets it only where no other is free."""
        worker = self.take(self.route(definition), avoid_worker_id=avoid_worker_id)
        return self.unplaced(definition) if worker is None else Placed(worker)

    def take(self, route: Route, *, avoid_worker_id: str = "") -> WorkerView | None:
        """As `place`, for whoever has asked for the task's route before; None where no slot is free."""
        worker = route.best(avoid_worker_id=avoid_worker_id, run_count_max=self.run_count_max)
        if worker is not None:
            worker.free[route.pool] -= 1
            worker.turn = self.turn
            self.turn += 1
        return worker

    def unplaced(self, definition: TaskDefinition) -> Unplaced:
        """Why the task waits, where no slot is free for it."""
        eligible = self.route(definition).workers
        if not eligible:
            return Unplaced(Hold.NO_WORKER, no_worker_reason(definition, self.workers))
        who = (
            "the worker that can run it is"
            if len(eligible) == 1
            else f"all {len(eligible)} workers that can run it are"
        )
        return Unplaced(Hold.BUSY, f"{who} busy")

    def route(self, definition: TaskDefinition) -> Route:
        """The workers that can run the task."""
        key = (definition.ref, definition.executor.__class__.__name__, definition.pool)
        found = self._routes.get(key)
        if found is None:
            found = self._routes[key] = self._shared_route(definition)
        return found

    def _shared_route(self, definition: TaskDefinition) -> Route:
        groups = list(self._alike.values())
        knowing = tuple(number for number, group in enumerate(groups) if _knows(group[0], definition))
        pool, labels = definition.pool, definition.labels
        key = (knowing, pool, frozenset(labels.items()))
        found = self._shared.get(key)
        if found is None:
            known = chain.from_iterable(groups[number] for number in knowing)
            eligible = [worker for worker in known if _has_place(worker, pool, labels)]
            found = self._shared[key] = Route(eligible, pool, strategy=self._strategy)
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
    return _knows(worker, definition) and _has_place(worker, definition.pool, definition.labels)


def _has_place(worker: WorkerView, pool: str, labels: Mapping[str, str]) -> bool:
    return worker.capacity.get(pool, 0) > 0 and all(
        worker.labels.get(name) == value for name, value in labels.items()
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
