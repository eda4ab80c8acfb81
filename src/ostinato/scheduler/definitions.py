"""Definitions that the node has at hand: newest versions (read live) and pinned ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from ostinato.core.definition import TaskDefinition, TaskRef, TaskRow
from ostinato.core.model import Instance
from ostinato.store.protocol import Store

#: Entries kept; beyond it everything is read afresh, which costs a query and no more.
CACHE_COUNT_MAX = 50_000


class Definitions:
    """A cache over the store: the owner of a task alone changes its flags and sees every new version.

    What was read of a task before its partition was taken says nothing any more (`forget_partitions`).
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tasks: dict[TaskRef, TaskRow] = {}
        #: Tasks of which the last look found none; each load looks for them again.
        self._gone: set[TaskRef] = set()
        self._pinned: dict[tuple[TaskRef, int], TaskDefinition] = {}
        #: By task, so that a change of one does not look at all.
        self._routed: dict[TaskRef, dict[int, TaskDefinition]] = {}
        #: How often something that was at hand has ceased to be.
        self.loss_count = 0
        #: Tasks of which a change is being written: perhaps it is, and perhaps nobody hears of it for long.
        self._changing: frozenset[TaskRef] = frozenset()
        #: For each read under way, the tasks that have changed since it began.
        self._reads: list[set[TaskRef]] = []
        #: For each read under way, partitions that have been taken since it began.
        self._taken: list[set[int]] = []

    async def load(self, instances: Iterable[Instance]) -> None:
        """Have the tasks and pinned versions of `instances` at hand, all of them until the next await."""
        # A long list is mostly of few tasks: names are cheaper to compare than references to make.
        named = dict.fromkeys((row.namespace, row.task, row.task_version) for row in instances)
        await self.load_versions([(TaskRef(namespace, task), version) for namespace, task, version in named])

    async def load_versions(self, versions: Iterable[tuple[TaskRef, int]]) -> None:
        """Have tasks, and these versions of them, at hand, all of them until the next await."""
        self._bound()
        wanted = dict.fromkeys(versions)
        refs = {ref: None for ref, _ in wanted}
        await self.load_tasks(refs)
        absent: set[tuple[TaskRef, int]] = set()
        while True:
            missing = [key for key in wanted if key not in self._pinned and key not in absent]
            if missing:
                found = await self._store.load_definitions(missing)
                self._pinned.update(found)
                absent.update(key for key in missing if key not in found)
            # While that was read, another loop may have changed a task, or made room.
            unread = [ref for ref in refs if ref not in self._tasks and ref not in self._gone]
            if unread:
                await self.load_tasks(unread)
            if not missing and not unread:
                return

    async def load_tasks(self, refs: Iterable[TaskRef]) -> None:
        """Have the newest versions of tasks at hand."""
        self._bound()
        missing = [ref for ref in refs if ref not in self._tasks or ref in self._changing]
        while missing:
            changed: set[TaskRef] = set()
            taken: set[int] = set()
            self._reads.append(changed)
            self._taken.append(taken)
            try:
                found = await self._store.get_tasks(missing)
            finally:
                self._reads = [other for other in self._reads if other is not changed]
                self._taken = [other for other in self._taken if other is not taken]
            changed.update(ref for ref, row in found.items() if row.partition in taken)
            for ref in missing:
                row = found.get(ref)
                if ref in changed:
                    continue
                if row is not None:
                    self._tasks[ref] = row
                    # What most instances pin; a version never changes.
                    self._pinned[ref, row.version] = row.definition
                    self._gone.discard(ref)
                elif ref not in self._tasks or ref in self._changing:
                    self._tasks.pop(ref, None)
                    self._gone.add(ref)
            # What was read may be older than the change; kept, it would hide the change for good.
            missing = [ref for ref in missing if ref in changed]

    def task(self, ref: TaskRef) -> TaskRow | None:
        """Newest version with its flags, None if the task is gone."""
        return self._tasks.get(ref)

    def is_gone(self, ref: TaskRef) -> bool:
        """Whether the last look at the task found none; False where nobody has looked."""
        return ref in self._gone

    def withdrawn(self, ref: TaskRef) -> str:
        """Why nothing more may begin of a task, in words; empty if it may, or nobody has looked."""
        if ref in self._gone:
            return f"task {ref} was deleted"
        task = self._tasks.get(ref)
        return f"task {ref} is disabled" if task is not None and task.disabled else ""

    def pinned(self, ref: TaskRef, version: int) -> TaskDefinition | None:
        """Definition that an instance pins, None if it is gone."""
        return self._pinned.get((ref, version))

    def routed(self, ref: TaskRef, version: int) -> TaskDefinition | None:
        """The pinned definition with the labels of the newest: routing is read live (design section 11)."""
        found = self._routed.get(ref, {}).get(version)
        if found is None:
            pinned, task = self._pinned.get((ref, version)), self._tasks.get(ref)
            if pinned is None:
                return None
            found = pinned
            if task is not None and task.definition.labels != pinned.labels:
                found = msgspec.structs.replace(pinned, labels=task.definition.labels)
            self._routed.setdefault(ref, {})[version] = found
        return found

    @contextmanager
    def changing(self, refs: Collection[TaskRef]) -> Iterator[None]:
        """While a change of flags, or a deletion, is being written: each load reads these tasks anew.

        The database may have it, and a client its answer, long before the owner hears that it was written.
        """
        self._changing = self._changing.union(refs)
        try:
            yield
        finally:
            self._changing = self._changing.difference(refs)
            for ref in refs:
                self.forget(ref)

    def forget(self, ref: TaskRef) -> None:
        """The task has changed."""
        self.loss_count += 1
        self._tasks.pop(ref, None)
        self._gone.discard(ref)
        for changed in self._reads:
            changed.add(ref)
        self._routed.pop(ref, None)

    def forget_partitions(self, partitions: Collection[int]) -> None:
        """These have just been taken: their former owner may have changed any of their tasks."""
        for ref in [ref for ref, row in self._tasks.items() if row.partition in partitions]:
            self.forget(ref)
        for taken in self._taken:
            taken.update(partitions)

    def _bound(self) -> None:
        if max(len(self._pinned), len(self._tasks), len(self._gone)) > CACHE_COUNT_MAX:
            self.loss_count += 1
            self._tasks.clear()
            self._gone.clear()
            self._pinned.clear()
            self._routed.clear()
