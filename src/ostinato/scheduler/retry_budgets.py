"""Retry budgets of the tasks that this node owns: their buckets, and which held retries may start.

A bucket is known to the owner alone and begins empty when a task's partition is taken, so that a take-over
allows no retry more than the floor does. Tasks without a budget have none and cost nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from ostinato.clock import Clock
from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.ids import partition_of
from ostinato.core.instants import MILLISECOND
from ostinato.core.retry.budget import Bucket
from ostinato.core.retry.budget_words import budget_words
from ostinato.core.retry.policy_model import RetryBudget
from ostinato.core.routing import RoutingRound, Unplaced
from ostinato.core.states import Hold
from ostinato.scheduler.definitions import Definitions
from ostinato.scheduler.held_work import TASKS_PER_ROUND, HeldWork
from ostinato.store.batches import HeldQuery

#: Tokens gather for so long before it is looked for what waits for them: a look costs as much for one.
GATHER_US = 100 * MILLISECOND
#: Buckets kept. Beyond it all begin anew, empty: too few tokens do less harm than too many.
BUCKET_COUNT_MAX = 50_000


class RetryBudgets:
    """Buckets by task, on the node's monotonic clock: no jump of any other fills one."""

    def __init__(self, held: HeldWork, definitions: Definitions, *, clock: Clock) -> None:
        self._held = held
        self._definitions = definitions
        self._clock = clock
        self._buckets: dict[TaskRef, Bucket] = {}
        #: Monotonic time from which on a held retry may start for which there was no token at the last look.
        self.next_boot_us: int | None = None

    @property
    def is_due(self) -> bool:
        """Whether that time has come."""
        return self.next_boot_us is not None and self.next_boot_us <= self._clock.boot_us()

    def bucket(self, newest: TaskDefinition) -> Bucket | None:
        """Bucket of a task by its newest definition (limits are read live); None where it has no budget."""
        budget = newest.retry.budget
        if not isinstance(budget, RetryBudget):
            return None
        ref, now_us = newest.ref, self._clock.boot_us()
        bucket = self._buckets.get(ref)
        if bucket is None:
            if len(self._buckets) >= BUCKET_COUNT_MAX:
                self._buckets.clear()
            bucket = self._buckets[ref] = Bucket(budget, now_us=now_us)
        bucket.change(budget, now_us=now_us)
        return bucket

    def fill(self, started: Iterable[tuple[Bucket, str]], *, dropped: Collection[str]) -> None:
        """These first attempts have been written, but for those of dropped instances."""
        now_us = self._clock.boot_us()
        for bucket, instance_id in started:
            if instance_id not in dropped:
                bucket.fill(1, now_us=now_us)

    async def queries(self, routing: RoutingRound, *, limit: int) -> list[HeldQuery]:
        """For held retries that may start now: of each task as many as it has tokens and free slots."""
        refs = self._held.for_budget()
        if not refs:
            return []
        await self._definitions.load_tasks(refs)
        found: list[HeldQuery] = []
        for ref in refs:
            if len(found) == TASKS_PER_ROUND:
                break
            count = self._startable_count(ref, routing, limit=limit)
            if count > 0:
                found.append(HeldQuery(ref, (Hold.BUDGET,), count))
        return found

    def look_ahead(self, routing: RoutingRound, *, unplaced: Collection[TaskRef]) -> None:
        """Find out when held retries may start next. Of `unplaced` tasks something else is awaited."""
        now_us = self._clock.boot_us()
        times = [
            self._next_us(ref, routing, now_us=now_us)
            for ref in self._held.for_budget()
            if ref not in unplaced
        ]
        first_us = min((each_us for each_us in times if each_us is not None), default=None)
        self.next_boot_us = None if first_us is None else max(first_us, now_us + GATHER_US)

    def wanting(self) -> list[TaskRef]:
        """Tasks of which a held retry has its token, and needs a slot."""
        now_us = self._clock.boot_us()
        return [
            ref
            for ref in self._held.for_budget()
            if (bucket := self._buckets.get(ref)) is not None and bucket.count(now_us) > 0
        ]

    def forget_partitions(self, partitions: Collection[int], *, partition_count: int) -> None:
        """They have been lost, or taken anew: what their tasks have started meanwhile is not known."""
        for ref in list(self._buckets):
            if partition_of(ref.namespace, ref.name, partition_count=partition_count) in partitions:
                del self._buckets[ref]

    def _next_us(self, ref: TaskRef, routing: RoutingRound, *, now_us: int) -> int | None:
        if self._definitions.withdrawn(ref):
            return now_us
        task = self._definitions.task(ref)
        if task is None or task.paused or routing.free_slots(task.definition) <= 0:
            return None
        bucket = self.bucket(task.definition)
        return now_us if bucket is None else bucket.next_us(now_us)

    def _startable_count(self, ref: TaskRef, routing: RoutingRound, *, limit: int) -> int:
        if self._definitions.withdrawn(ref):
            return limit
        task = self._definitions.task(ref)
        if task is None or task.paused:
            return 0
        count = min(routing.free_slots(task.definition), limit)
        bucket = self.bucket(task.definition)
        return count if bucket is None else min(count, bucket.count(self._clock.boot_us()))


def used_up(newest: TaskDefinition) -> Unplaced:
    """Why a retry of the task does not start, where its bucket is empty."""
    budget = newest.retry.budget
    words = "" if isinstance(budget, msgspec.UnsetType) else f" ({budget_words(budget)})"
    return Unplaced(Hold.BUDGET, f"the retry budget of task {newest.ref} is used up{words}")
