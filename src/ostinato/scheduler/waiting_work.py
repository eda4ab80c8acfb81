"""What is due and waits for a free slot, by task: work for which a worker could promise more slots."""

from __future__ import annotations

from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.routing import WorkerView, is_eligible


class WaitingWork:
    """Known from the latest look; its size is that of the tasks, however many instances wait."""

    def __init__(self) -> None:
        self._counts: dict[TaskRef, tuple[TaskDefinition, int]] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def clear(self) -> None:
        """Forget everything: another look begins."""
        self._counts.clear()

    def add(self, definition: TaskDefinition, *, count: int = 1) -> None:
        """So many instances more wait; of two versions of a task the one seen last says where it can run."""
        _, known = self._counts.get(definition.ref, (definition, 0))
        self._counts[definition.ref] = (definition, known + count)

    def demand(self, worker: WorkerView) -> dict[str, int]:
        """Instances by pool that the worker could run."""
        demand: dict[str, int] = {}
        for definition, count in self._counts.values():
            if is_eligible(worker, definition):
                demand[definition.pool] = demand.get(definition.pool, 0) + count
        return demand
