"""What becomes of each row that a look at the queue has found: placed, held, ended, or left where it stands.

What is the same for every row of a task, as its definition, its flags and the workers that can run it, is
found out once a round: of a long backlog there is little else to find out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.model import Instance
from ostinato.core.partition.assign import Placement, hold
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.expire import end_waiting, expire
from ostinato.core.partition.fire import admit
from ostinato.core.retry.budget import Bucket
from ostinato.core.retry.counters import Counters
from ostinato.core.routing import Route, RoutingRound, Unplaced
from ostinato.core.schedule.overlap import stands_before
from ostinato.core.states import Hold, State
from ostinato.scheduler.definitions import Definitions
from ostinato.scheduler.parts import NodeParts
from ostinato.scheduler.retry_budgets import RetryBudgets, used_up

#: Live instances considered by an overlap rule; of a task that has shards, live fires.
LIVE_COUNT_MAX = 1000
#: Of an instance whose generation has had no attempt yet.
_NOTHING_USED_UP = Counters()


class Busy(msgspec.Struct):
    """A row that waits since all workers that can run it are busy, in words."""

    instance: Instance
    reason: str


class Placed(msgspec.Struct):
    """What was made of the rows of one look, beside the effects."""

    placements: list[Placement] = []
    #: Tasks of which something could not be placed.
    unplaced: set[TaskRef] = set()
    #: What waits for a worker, by definition, and how many rows of it.
    waiting: list[tuple[TaskDefinition, int]] = []
    busy: list[Busy] = []
    #: First attempts of tasks with a budget, which they fill once they have been written.
    filling: list[tuple[Bucket, str]] = []
    #: A retry was held for want of a token.
    is_out_of_tokens: bool = False
    #: A row was placed that stands behind one of these.
    is_past_busy: bool = False
    #: What could not be decided beside the others can be in the next round.
    again: bool = False


class _Task:
    """What holds for all rows of one version of a task during a round."""

    __slots__ = (
        "bucket",
        "definition",
        "pinned",
        "ref",
        "replaces",
        "route",
        "row",
        "unplaced",
        "unplaced_count",
        "withdrawn",
    )

    def __init__(
        self,
        ref: TaskRef,
        version: int,
        *,
        definitions: Definitions,
        budgets: RetryBudgets,
        routing: RoutingRound,
    ) -> None:
        self.ref = ref
        self.definition = definitions.routed(ref, version)
        self.pinned = definitions.pinned(ref, version) or self.definition
        self.row = definitions.task(ref)
        self.withdrawn = definitions.withdrawn(ref)
        self.replaces = self.row is not None and self.row.definition.overlap == "replace"
        self.route: Route | None = None if self.definition is None else routing.route(self.definition)
        newest = self.pinned if self.row is None else self.row.definition
        self.bucket: Bucket | None = None if newest is None else budgets.bucket(newest)
        #: Why no worker takes any more of it in this round, once that is so, and of how many rows that is.
        self.unplaced: Unplaced | None = None
        self.unplaced_count = 0


class Placer:
    """Decides about the rows of a look, one after the other."""

    def __init__(self, parts: NodeParts) -> None:
        self._store = parts.store
        self._clock = parts.clock
        self._time = parts.time
        self._definitions = parts.definitions
        self._held = parts.held
        self._budgets = parts.budgets

    async def place(self, instances: Sequence[Instance], routing: RoutingRound, *, into: Effects) -> Placed:
        """Decide about each row in their order; what finds its workers busy is left as it is.

        Nothing is waited for from the decisions to the return: what may start then, may start still (I3).
        """
        earlier = await self._earlier_instances(instances)
        if earlier:
            await self._definitions.load(instances)
        now_us = self._time.now_us()
        placed = Placed()
        tasks: dict[tuple[str, str, int], _Task] = {}
        decided: set[TaskRef] = set()
        for instance in instances:
            key = (instance.namespace, instance.task, instance.task_version)
            task = tasks.get(key)
            if task is None:
                ref = instance.ref
                task = _Task(
                    ref, key[2], definitions=self._definitions, budgets=self._budgets, routing=routing
                )
                tasks[key] = task
            if instance.due_us > now_us:
                # Held by a clock that has been put back since: its task is asked for until it is due (I4).
                self._leave(instance, task, placed)
                continue
            if task.replaces:
                if task.ref in decided and (instance.id in earlier or _is_moved(into, instance)):
                    # It might end an instance that this batch has moved, or has been ended by one: a batch
                    # moves an instance once, and the next round sees what came of it. Until then it stays.
                    placed.unplaced.add(task.ref)
                    placed.again = True
                    continue
                decided.add(task.ref)
            if self._may_start(instance, task, earlier, now_us=now_us, into=into):
                self._give(instance, task, routing, placed=placed, into=into)
        for task in tasks.values():
            if task.definition is not None and task.unplaced_count:
                placed.waiting.append((task.definition, task.unplaced_count))
        return placed

    def _give(
        self, instance: Instance, task: _Task, routing: RoutingRound, *, placed: Placed, into: Effects
    ) -> None:
        """Give it to a worker, if one is free."""
        definition, pinned, route = task.definition, task.pinned, task.route
        if definition is None or pinned is None or route is None:
            return
        bucket = task.bucket
        is_retry = bucket is not None and instance.counters.failures > 0
        if bucket is not None and is_retry and not bucket.count(self._clock.boot_us()):
            placed.is_out_of_tokens = True
            reason = used_up(pinned if task.row is None else task.row.definition).reason
            hold(instance, Hold.BUDGET, reason=reason, into=into)
            return
        avoid = instance.worker_id if instance.state is State.RETRY_WAITING else ""
        worker = None if task.unplaced is not None else routing.take(route, avoid_worker_id=avoid)
        if worker is not None:
            placed.placements.append(
                Placement(instance, pinned, task.ref, worker.worker_id, worker.worker_name)
            )
            placed.is_past_busy = placed.is_past_busy or bool(placed.busy)
            if bucket is not None and is_retry:
                bucket.take(now_us=self._clock.boot_us())
            elif bucket is not None and instance.counters == _NOTHING_USED_UP:
                placed.filling.append((bucket, instance.id))
            return
        if task.unplaced is None:
            task.unplaced = routing.unplaced(definition)
        task.unplaced_count += 1
        if task.unplaced.hold is Hold.NO_WORKER:
            hold(instance, Hold.NO_WORKER, reason=task.unplaced.reason, into=into)
        else:
            placed.busy.append(Busy(instance, task.unplaced.reason))
        self._leave(instance, task, placed)

    def _leave(self, instance: Instance, task: _Task, placed: Placed) -> None:
        placed.unplaced.add(task.ref)
        if instance.hold is Hold.OVERLAP:
            self._held.freed(task.ref)

    def _may_start(
        self,
        instance: Instance,
        task: _Task,
        earlier: Mapping[str, Sequence[Instance]],
        *,
        now_us: int,
        into: Effects,
    ) -> bool:
        """Whether nothing but a free worker is missing; else it is ended or held here."""
        if task.definition is None:
            reason = f"task {task.ref} no longer exists"
            end_waiting(instance, State.CANCELLED, sentence=reason, now_us=now_us, into=into)
            return False
        if instance.cancel_requested_us is not None:
            reason = f"cancelled: {instance.cancel_reason}"
            end_waiting(instance, State.CANCELLED, sentence=reason, now_us=now_us, into=into)
            return False
        if instance.expires_us is not None and instance.expires_us < now_us:
            expire(instance, task.definition, now_us=now_us, into=into)
            return False
        if task.withdrawn:
            end_waiting(instance, State.CANCELLED, sentence=task.withdrawn, now_us=now_us, into=into)
            return False
        if task.row is None:
            return True
        if task.row.paused:
            hold(instance, Hold.PAUSED, reason=paused(task.ref).reason, into=into)
            return False
        if not earlier or instance.id not in earlier:
            return True
        ended = {waiting.instance_id for waiting in into.batch.ended_waiting}
        live = [other for other in earlier[instance.id] if other.id not in ended]
        return admit(instance, task.row, earlier=live, now_us=now_us, into=into)

    async def _earlier_instances(self, instances: Sequence[Instance]) -> dict[str, list[Instance]]:
        """For submissions whose task sets an overlap rule: the live instances that stand before each."""
        names = dict.fromkeys((row.namespace, row.task) for row in instances)
        ruled = {name for name in names if self._has_rule(TaskRef(*name))}
        if not ruled:
            return {}
        fresh = [row for row in instances if (row.namespace, row.task) in ruled and _is_submission(row)]
        if not fresh:
            return {}
        refs = list({row.ref: None for row in fresh})
        live = await self._store.live_instances(refs, limit=live_count_max(refs, self._definitions))
        return {
            row.id: [other for other in live.get(row.ref, []) if stands_before(other, row)] for row in fresh
        }

    def _has_rule(self, ref: TaskRef) -> bool:
        task = self._definitions.task(ref)
        return task is not None and task.definition.overlap not in (None, "allow")


def live_count_max(refs: Sequence[TaskRef], definitions: Definitions) -> int:
    """How many live instances of each of these tasks an overlap rule looks at."""
    tasks = (definitions.task(ref) for ref in refs)
    return LIVE_COUNT_MAX * max((task.definition.shards for task in tasks if task is not None), default=1)


def paused(ref: TaskRef) -> Unplaced:
    """Why nothing of a paused task starts."""
    return Unplaced(Hold.PAUSED, f"task {ref} is paused")


def _is_submission(instance: Instance) -> bool:
    """Whether its owner sees it for the first time, and no fire made it: those have been admitted."""
    return instance.fire_us is None and instance.attempt == 0 and instance.hold is not Hold.OVERLAP


def _is_moved(effects: Effects, instance: Instance) -> bool:
    """Whether an instance that replaces it has ended it, or asked it to end, in this batch."""
    batch = effects.batch
    return any(
        row.instance_id == instance.id
        for rows in (batch.ended_waiting, batch.cancel_requests)
        for row in rows
    )
