"""Definitions that the node has at hand: newest versions (read live) and pinned ones."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ostinato.core.definition import TaskDefinition, TaskRef, TaskRow
from ostinato.core.model import Instance
from ostinato.store.protocol import Store

#: Entries kept; beyond it everything is read afresh, which costs a query and no more.
CACHE_COUNT_MAX = 50_000


class Definitions:
    """A cache over the store: this node alone changes flags and sees every new version."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tasks: dict[TaskRef, TaskRow] = {}
        self._pinned: dict[tuple[TaskRef, int], TaskDefinition] = {}
        self._routed: dict[tuple[TaskRef, int], TaskDefinition] = {}

    async def load(self, instances: Iterable[Instance]) -> None:
        """Have the tasks and pinned versions of `instances` at hand."""
        self._bound()
        wanted = {(instance.ref, instance.task_version): None for instance in instances}
        await self.load_tasks({ref: None for ref, _ in wanted})
        missing = [key for key in wanted if key not in self._pinned]
        if missing:
            self._pinned.update(await self._store.load_definitions(missing))

    async def load_tasks(self, refs: Iterable[TaskRef]) -> None:
        """Have the newest versions of tasks at hand."""
        self._bound()
        missing = [ref for ref in refs if ref not in self._tasks]
        if missing:
            self._tasks.update(await self._store.get_tasks(missing))

    def task(self, ref: TaskRef) -> TaskRow | None:
        """Newest version with its flags, None if the task is gone."""
        return self._tasks.get(ref)

    def pinned(self, ref: TaskRef, version: int) -> TaskDefinition | None:
        """Definition that an instance pins, None if it is gone."""
        return self._pinned.get((ref, version))

    def routed(self, ref: TaskRef, version: int) -> TaskDefinition | None:
        """The pinned definition with the labels of the newest: routing is read live (design section 11)."""
        key = (ref, version)
        found = self._routed.get(key)
        if found is None:
            pinned, task = self._pinned.get(key), self._tasks.get(ref)
            if pinned is None:
                return None
            found = pinned
            if task is not None and task.definition.labels != pinned.labels:
                found = msgspec.structs.replace(pinned, labels=task.definition.labels)
            self._routed[key] = found
        return found

    def forget(self, ref: TaskRef) -> None:
        """The task has changed."""
        self._tasks.pop(ref, None)
        for key in [key for key in self._routed if key[0] == ref]:
            del self._routed[key]

    def _bound(self) -> None:
        if len(self._pinned) > CACHE_COUNT_MAX or len(self._tasks) > CACHE_COUNT_MAX:
            self._tasks.clear()
            self._pinned.clear()
            self._routed.clear()
