"""Whether work for idle slots stands behind a backlog of work that has to wait for others.

A look at the queue reads no more rows than there are slots for which it finds work, and some. Where a slot
stays idle beside a backlog, its work may stand behind any number of rows for busy slots. To get there these
have to be held, each at the cost of two writes, so it is done only where it helps: the store tells by task,
whatever the number of rows, where work waits, and routing tells whether an idle slot could take it.

Each time a slot becomes idle that is asked, and again and again while it is, though it takes no more than a
small share of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ostinato.clock import Clock
from ostinato.core.definition import TaskRef
from ostinato.core.instants import MILLISECOND
from ostinato.core.model import Instance
from ostinato.core.routing import RoutingRound, WorkerView
from ostinato.scheduler.definitions import Definitions
from ostinato.store.protocol import Store

#: Tasks that are asked for at once; the others come next.
TASKS_PER_LOOK = 200
#: After all tasks were asked for in vain, they are not for so many times as long as that took.
REST_FACTOR = 50
REST_US_MIN = 100 * MILLISECOND
REST_US_MAX = 500 * MILLISECOND

#: A worker's id and a pool of its slots.
Pools: TypeAlias = frozenset[tuple[str, str]]


class WorkBehind:
    """Which slots are idle beside a backlog, and which tasks have work for them."""

    def __init__(self, store: Store, definitions: Definitions, *, clock: Clock) -> None:
        self._store = store
        self._definitions = definitions
        self._clock = clock
        self._idle: Pools = frozenset()
        #: How many of these were free when the present round began.
        self._counted: dict[tuple[str, str], int] = {}
        #: Tasks with work for an idle slot that no look has reached yet.
        self._sought: set[TaskRef] = set()
        #: Where to ask on; None: from the beginning.
        self._first: TaskRef | None = None
        #: Not all tasks have been asked for yet, since a slot became idle or a rest was over.
        self._is_under_way = False
        #: Asking began amid the tasks, so that it goes on from the beginning once it has come to the end.
        self._began_amid = False
        self._took_us = 0
        #: Monotonic time from which on all tasks are asked for anew.
        self._next_boot_us = 0
        #: Something may have come that was not asked for, as it was too early.
        self._is_put_off = False

    @property
    def is_seeking(self) -> bool:
        """Whether the queue has to be gone through until the work of some task has been reached."""
        return bool(self._sought)

    @property
    def next_boot_us(self) -> int | None:
        """When to look again if nothing happens before: what has come meanwhile was not asked for."""
        return self._next_boot_us if self._is_put_off else None

    def free_count(self, workers: Sequence[WorkerView]) -> int:
        """Free slots but for those for which there was no work, as far as the looks went."""
        self._counted.clear()
        count = 0
        for worker in workers:
            for pool, free in worker.free.items():
                if (worker.worker_id, pool) in self._idle:
                    self._counted[worker.worker_id, pool] = free
                else:
                    count += free
        return count

    def puts_off(self) -> bool:
        """Whether it is too early to look for work for idle slots again; then `next_boot_us` says when."""
        is_due = self._is_under_way or self._clock.boot_us() >= self._next_boot_us
        self._is_put_off = not self._sought and not is_due
        return self._is_put_off

    def looked(self, workers: Sequence[WorkerView], found: Sequence[Instance]) -> None:
        """What was found has been placed as far as it could be."""
        if self._counted:
            busy = {
                (worker.worker_id, pool)
                for worker in workers
                for pool, free in worker.free.items()
                if free < self._counted.get((worker.worker_id, pool), 0)
            }
            self._idle -= busy
        if self._sought:
            self._sought.difference_update({row.ref for row in found})

    def is_ahead(self, routing: RoutingRound) -> bool:
        """Whether work stands behind all that was found, with a slot still free for it."""
        return any(self._is_wanted(ref, routing) for ref in self._sought)

    def forget(self) -> None:
        """Nothing is left in the queue, or slots that were idle may have work now."""
        self._idle = frozenset()
        self._sought.clear()
        self._is_put_off = False

    def seen_all(self, routing: RoutingRound) -> None:
        """A look has gone to the end of the queue, and what is left waits for busy workers."""
        self._idle = _idle(routing.workers)
        self._sought.clear()
        # As soon as there is more it is asked for.
        self._is_under_way, self._is_put_off, self._next_boot_us = False, False, 0

    async def seek(self, partitions: Sequence[int], routing: RoutingRound, *, now_us: int) -> bool:
        """After a look that has left rows in the queue: whether to go on at once.

        So it is where work for a slot that is still free stands behind these rows, or may stand there as far
        as was asked.
        """
        idle = _idle(routing.workers)
        is_new = not idle <= self._idle
        self._idle = idle
        self._sought.clear()
        self._is_put_off = False
        if not idle or (not is_new and self.puts_off()):
            return False
        if is_new or not self._is_under_way:
            self._is_under_way, self._began_amid, self._took_us = True, self._first is not None, 0
        began_us = self._clock.boot_us()
        waiting = await self._store.waiting_tasks(
            partitions, now_us=now_us, first=self._first, limit=TASKS_PER_LOOK
        )
        await self._definitions.load_tasks(waiting.refs)
        self._took_us += self._clock.boot_us() - began_us
        wanted = [ref for ref in waiting.refs if self._is_wanted(ref, routing)]
        if wanted:
            self._sought.update(wanted)
            # Most probably there is more of it.
            self._first, self._began_amid = wanted[0], True
            return True
        self._first = waiting.next_ref
        if self._first is None:
            self._is_under_way, self._began_amid = self._began_amid, False
        if not self._is_under_way:
            rest_us = min(max(REST_FACTOR * self._took_us, REST_US_MIN), REST_US_MAX)
            self._next_boot_us = self._clock.boot_us() + rest_us
        return self._is_under_way

    def _is_wanted(self, ref: TaskRef, routing: RoutingRound) -> bool:
        task = self._definitions.task(ref)
        if task is None or task.paused or task.disabled:
            return False
        return routing.free_slots(task.definition) > 0


def _idle(workers: Sequence[WorkerView]) -> Pools:
    return frozenset(
        (worker.worker_id, pool) for worker in workers for pool, free in worker.free.items() if free > 0
    )
