"""Which tasks have held instances: whom to ask for again once workers are free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from ostinato.core.definition import TaskRef
from ostinato.core.ids import partition_of
from ostinato.core.model import Instance
from ostinato.core.states import Hold
from ostinato.store.batches import HeldQuery

#: Tasks asked for in one round; the others come next, in turn.
TASKS_PER_ROUND = 200

#: Holds that end when a worker is free or the task runs again; ``overlap`` ends with other instances.
RELEASED_BY_WORKERS = (Hold.NO_WORKER, Hold.BUSY, Hold.PAUSED)


class HeldWork:
    """Tasks with held instances, learned at the warm-up and from this node's own commits."""

    def __init__(self) -> None:
        #: Each task with the number of its newest note.
        self._waiting: dict[TaskRef, int] = {}
        #: Likewise, those with retries that wait for a token of their task's budget.
        self._for_budget: dict[TaskRef, int] = {}
        self._overlapping: dict[TaskRef, None] = {}
        self._freed: dict[TaskRef, None] = {}
        self._stale: dict[TaskRef, None] = {}
        #: Notes so far: what a round has found says nothing of those that came after it began.
        self.note_count = 0

    def note(self, ref: TaskRef, cause: Hold) -> None:
        """An instance of the task has been held."""
        if cause is Hold.OVERLAP:
            self._overlapping[ref] = None
            self._freed[ref] = None
        else:
            self.note_count += 1
            noted = self._for_budget if cause is Hold.BUDGET else self._waiting
            noted[ref] = self.note_count

    def freed(self, ref: TaskRef) -> None:
        """An instance of the task has ended: one that waits for it may start."""
        if ref in self._overlapping:
            self._freed[ref] = None

    def recheck_overlaps(self) -> bool:
        """Safety net: ask for every task with overlapping instances in the next round; false without any."""
        self._freed.update(self._overlapping)
        return bool(self._overlapping)

    def candidates(self) -> list[TaskRef]:
        """Tasks to ask for in this round, in turn."""
        chosen = list(self._waiting)[:TASKS_PER_ROUND]
        for ref in chosen:
            self._waiting[ref] = self._waiting.pop(ref)
        return chosen

    def for_budget(self) -> list[TaskRef]:
        """Tasks with retries that wait for a token of their budget, or did when last looked at."""
        return list(self._for_budget)

    def waiting(self) -> list[TaskRef]:
        """Tasks of which something is held for want of a worker, or was when last looked at; some of them."""
        return list(self._waiting)[:TASKS_PER_ROUND]

    def freed_tasks(self) -> list[TaskRef]:
        """What `take_freed` would give; they stay."""
        return list(self._freed)

    def take_freed(self) -> list[TaskRef]:
        """Tasks whose waiting instances may start now; asked for once."""
        freed, self._freed = self._freed, {}
        return list(freed)

    def workers_changed(self) -> None:
        """A worker has come or gone: what held rows say of workers may not be true any more."""
        self._stale.update(dict.fromkeys((*self._waiting, *self._for_budget)))

    def take_stale(self) -> list[TaskRef]:
        """Tasks whose held rows are to be looked at once, some of them at a time."""
        chosen = list(self._stale)[:TASKS_PER_ROUND]
        for ref in chosen:
            del self._stale[ref]
        return chosen

    def stale(self, ref: TaskRef) -> None:
        """What held rows of the task say may not be true: it has changed, or not all were looked at.

        One that is not known here may be held by a commit that is under way.
        """
        self._stale[ref] = None

    def forget_partitions(self, partitions: Collection[int], *, partition_count: int) -> None:
        """What is known of these is out of date: they have been lost, or taken anew."""
        for ref in {**self._waiting, **self._for_budget, **self._overlapping}:
            if partition_of(ref.namespace, ref.name, partition_count=partition_count) in partitions:
                for known in (self._waiting, self._for_budget, self._overlapping, self._freed, self._stale):
                    known.pop(ref, None)

    def drained(
        self, queries: list[HeldQuery], *, found: list[Instance], unplaced: set[TaskRef], note_count: int
    ) -> bool:
        """Forget tasks of which the store had fewer held rows than were asked for, all placed now.

        `note_count` is that of the moment when the round took its partitions. A task noted since is kept: its
        partition may have been warmed up after that and not been asked for, or the round itself has held it.
        True if of some task there may be more of which all that were found have been placed.
        """
        counts = Counter(
            (instance.ref, instance.hold is Hold.BUDGET) for instance in found if instance.hold is not None
        )
        more = False
        for query in queries:
            if query.ref in unplaced:
                continue
            is_for_budget = query.holds == (Hold.BUDGET,)
            noted = self._for_budget if is_for_budget else self._waiting
            if counts[query.ref, is_for_budget] < query.limit:
                if noted.get(query.ref, 0) <= note_count:
                    noted.pop(query.ref, None)
            elif not is_for_budget:
                # How soon there are tokens for more, the budgets say.
                more = True
        return more
