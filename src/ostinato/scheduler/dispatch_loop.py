"""Due work, first attempts and retries alike, is placed on workers: read, route, commit, send.

The queue is the database (docs/architecture.md): a round reads due instances only while workers have free
slots, and what cannot be placed is held with its reason, so that nothing stands behind it. An assignment is
committed before it is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.instants import SECOND
from ostinato.core.model import Instance
from ostinato.core.partition.assign import Placement, assign, hold
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.expire import end_waiting, expire
from ostinato.core.partition.fire import admit
from ostinato.core.partition.running import RunningAttempt
from ostinato.core.routing import Placed, RoutingRound
from ostinato.core.states import Hold, State
from ostinato.scheduler.demand import Demand
from ostinato.scheduler.held_work import RELEASED_BY_WORKERS
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts
from ostinato.store.batches import FoundWork, HeldQuery
from ostinato.wire.messages import Assignment

#: Rows read beyond the free slots, to see what else is behind work that cannot run.
LOOKAHEAD_COUNT = 64
#: A priority level is worth this much age.
AGEING_US = 60 * SECOND
#: Live instances considered by an overlap rule.
LIVE_COUNT_MAX = 1000


class DispatchLoop(Loop):
    """Turns free slots into running attempts."""

    name = "dispatch"

    def __init__(self, parts: NodeParts) -> None:
        super().__init__(parts.clock, parts.hooks)
        self._config = parts.config
        self._store = parts.store
        self._rng = parts.rng
        self._time = parts.time
        self._ownership = parts.ownership
        self._committer = parts.committer
        self._definitions = parts.definitions
        self._sessions = parts.sessions
        self._held = parts.held
        self._turn = 0
        self._demand = Demand()

    def demand(self) -> dict[str, int]:
        """Due work by pool that this node could place if it had more credits, as of its newest round."""
        return self._demand.by_pool

    async def run_once(self) -> int | None:
        """Place what is due. The next round is at the next due time, or at once if more can be placed."""
        partitions = self._ownership.owned()
        sessions = self._sessions.in_rotation()
        routing = RoutingRound(
            [session.view() for session in sessions], strategy=self._config.strategy, first_turn=self._turn
        )
        if partitions and await self._correct_reasons(partitions, routing):
            self.wake()
        slots = sum(session.ledger.available(pool) for session in sessions for pool in session.hello.capacity)
        if not partitions:
            return None
        if sessions and slots <= 0:
            await self._measure_demand(partitions, routing)
            return None
        now_us = self._time.now_us()
        found, queries = await self._find(partitions, routing, slots, now_us=now_us)
        await self._definitions.load(found.instances)
        effects = Effects()
        unplaced = await self._place(found, routing, now_us=now_us, into=effects)
        self._turn = routing.turn
        self._demand.measured(self._waiting(found, effects), routing)
        outcome = await self._committer.commit(effects)
        self._note_holds(effects, found, dropped=outcome.dropped)
        self._held.drained(queries, found=found.instances, unplaced=unplaced)
        self._send(effects, found, dropped=outcome.dropped)
        if found.more and (effects.started or (effects.batch.holds and sessions)):
            return self._clock.boot_us()
        return None if found.next_due_us is None else self._time.boot_at(found.next_due_us)

    async def _measure_demand(self, partitions: list[int], routing: RoutingRound) -> None:
        """No slot is free: see now and then whether one would be of use."""
        if not self._demand.is_due(self._clock.boot_us()):
            return
        now_us = self._time.now_us()
        found = await self._store.find_work(partitions, now_us=now_us, limit=LOOKAHEAD_COUNT)
        await self._definitions.load(found.instances)
        await self._definitions.load_tasks(self._held.waiting())
        self._demand.measured(self._waiting(found, Effects()), routing)

    def _waiting(self, found: FoundWork, effects: Effects) -> Iterator[TaskDefinition]:
        """What is due and has not been placed: rows of this round, and a task each for what is held."""
        moved = {attempt.instance_id for attempt in effects.started}
        moved.update(waiting.instance_id for waiting in effects.ended_waiting)
        for instance in found.instances:
            definition = self._definitions.routed(instance.ref, instance.task_version)
            if instance.id not in moved and definition is not None:
                yield definition
        for ref in self._held.waiting():
            task = self._definitions.task(ref)
            if task is not None and not task.paused and not task.disabled:
                yield task.definition

    async def _correct_reasons(self, partitions: list[int], routing: RoutingRound) -> bool:
        """Held rows whose cause has changed say what holds them now; True if there may be more."""
        refs = self._held.take_stale()
        if not refs:
            return False
        await self._definitions.load_tasks(refs)
        reasons = {
            ref: routing.unplaced(task.definition)
            for ref in refs
            if (task := self._definitions.task(ref)) is not None and not task.paused
        }
        limit = self._config.batch_count
        # None of these tasks is paused: a row that still says so was held before it was resumed.
        queries = [
            HeldQuery(
                ref, (Hold.BUSY if reason.hold is Hold.NO_WORKER else Hold.NO_WORKER, Hold.PAUSED), limit
            )
            for ref, reason in reasons.items()
        ]
        found = await self._store.find_work(partitions, now_us=self._time.now_us(), limit=0, held=queries)
        effects = Effects()
        for instance in found.instances:
            reason = reasons[instance.ref]
            hold(instance, reason.hold, reason=reason.reason, into=effects)
        await self._committer.commit(effects)
        for ref, count in Counter(instance.ref for instance in found.instances).items():
            if count >= limit:
                self._held.stale(ref)
        return bool(effects.batch.holds)

    async def _find(
        self, partitions: list[int], routing: RoutingRound, slots: int, *, now_us: int
    ) -> tuple[FoundWork, list[HeldQuery]]:
        """Due rows, held rows of tasks that could run now, and what no longer overlaps; best first."""
        limit = min(slots + LOOKAHEAD_COUNT, self._config.batch_count)
        queries = await self._held_queries(routing, limit)
        found = await self._store.find_work(partitions, now_us=now_us, limit=limit, held=queries)
        freed = self._held.take_freed()
        if freed:
            ready = await self._store.find_overlap_ready(freed)
            # It is asked by task; a partition may have been lost meanwhile.
            owned = self._ownership.memory.epochs
            found.instances.extend(row for row in ready if row.partition in owned)
        found.instances.sort(key=lambda row: (row.due_us - row.priority * AGEING_US, row.id))
        return found, queries

    async def _held_queries(self, routing: RoutingRound, limit: int) -> list[HeldQuery]:
        candidates = self._held.candidates()
        await self._definitions.load_tasks(candidates)
        queries: list[HeldQuery] = []
        for ref in candidates:
            task = self._definitions.task(ref)
            if self._definitions.withdrawn(ref):
                free = limit
            elif task is None or task.paused:
                continue
            else:
                free = routing.free_slots(task.definition)
            if free > 0:
                queries.append(HeldQuery(ref, RELEASED_BY_WORKERS, min(free, limit)))
        return queries

    async def _place(
        self, found: FoundWork, routing: RoutingRound, *, now_us: int, into: Effects
    ) -> set[TaskRef]:
        """Decide about each row; returns tasks of which something could not be placed."""
        earlier = await self._earlier_instances(found.instances)
        if earlier:
            await self._definitions.load(found.instances)
        placements: list[Placement] = []
        unplaced: set[TaskRef] = set()
        decided: set[TaskRef] = set()
        for instance in found.instances:
            ref = instance.ref
            if (
                ref in decided
                and self._replaces(ref)
                and (instance.id in earlier or _is_moved(into, instance))
            ):
                # It might end an instance that this batch has moved, or has been ended by one: a batch moves
                # an instance once, and the next round sees what came of it.
                self.wake()
                continue
            decided.add(ref)
            definition = self._definitions.routed(ref, instance.task_version)
            if definition is None:
                reason = f"task {ref} no longer exists"
                end_waiting(instance, State.CANCELLED, sentence=reason, now_us=now_us, into=into)
                continue
            if not self._may_start(instance, definition, earlier, now_us=now_us, into=into):
                continue
            avoid = instance.worker_id if instance.state is State.RETRY_WAITING else ""
            choice = routing.place(definition, avoid_worker_id=avoid)
            if isinstance(choice, Placed):
                worker = choice.worker
                pinned = self._definitions.pinned(ref, instance.task_version) or definition
                placements.append(Placement(instance, pinned, worker.worker_id, worker.worker_name))
                continue
            unplaced.add(ref)
            if choice.hold is Hold.NO_WORKER or found.more:
                hold(instance, choice.hold, reason=choice.reason, into=into)
            if instance.hold is Hold.OVERLAP:
                self._held.freed(ref)
        boot_us = self._clock.boot_us()
        assign(placements, now_us=self._time.now_us(), boot_us=boot_us, rng=self._rng, into=into)
        return unplaced

    def _may_start(
        self,
        instance: Instance,
        definition: TaskDefinition,
        earlier: dict[str, list[Instance]],
        *,
        now_us: int,
        into: Effects,
    ) -> bool:
        """Whether nothing but a free worker is missing; else it is ended or held here."""
        ref = instance.ref
        task = self._definitions.task(ref)
        if instance.cancel_requested_us is not None:
            reason = f"cancelled: {instance.cancel_reason}"
            end_waiting(instance, State.CANCELLED, sentence=reason, now_us=now_us, into=into)
            return False
        if instance.expires_us is not None and instance.expires_us < now_us:
            expire(instance, definition, now_us=now_us, into=into)
            return False
        withdrawn = self._definitions.withdrawn(ref)
        if withdrawn:
            end_waiting(instance, State.CANCELLED, sentence=withdrawn, now_us=now_us, into=into)
            return False
        if task is None:
            return True
        if task.paused:
            hold(instance, Hold.PAUSED, reason=f"task {ref} is paused", into=into)
            return False
        if instance.id not in earlier:
            return True
        ended = {waiting.instance_id for waiting in into.batch.ended_waiting}
        live = [other for other in earlier[instance.id] if other.id not in ended]
        return admit(instance, task, earlier=live, now_us=now_us, into=into)

    def _replaces(self, ref: TaskRef) -> bool:
        task = self._definitions.task(ref)
        return task is not None and task.definition.overlap == "replace"

    async def _earlier_instances(self, instances: list[Instance]) -> dict[str, list[Instance]]:
        """For submissions whose task sets an overlap rule: the live instances before each."""
        fresh = [row for row in instances if self._needs_admission(row)]
        if not fresh:
            return {}
        live = await self._store.live_instances(list({row.ref: None for row in fresh}), limit=LIVE_COUNT_MAX)
        return {
            row.id: [
                other
                for other in live.get(row.ref, [])
                if (other.created_us, other.id) < (row.created_us, row.id)
            ]
            for row in fresh
        }

    def _needs_admission(self, instance: Instance) -> bool:
        task = self._definitions.task(instance.ref)
        return (
            task is not None
            and task.definition.overlap not in (None, "allow")
            and instance.fire_us is None
            and instance.attempt == 0
            and instance.hold is not Hold.OVERLAP
        )

    def _note_holds(self, effects: Effects, found: FoundWork, *, dropped: frozenset[str]) -> None:
        refs = {instance.id: instance.ref for instance in found.instances}
        for held in effects.batch.holds:
            if held.instance_id not in dropped:
                self._held.note(refs[held.instance_id], held.hold)

    def _send(self, effects: Effects, found: FoundWork, *, dropped: frozenset[str]) -> None:
        if not self._ownership.is_believed:
            # The answer came late. An assignment names the newest heartbeat processed, and another owner may
            # count on none having been processed since (design section 3, Leases): nobody gets these, and the
            # health loop finds out what has become of them.
            return
        payloads = {instance.id: instance for instance in found.instances}
        by_worker: dict[str, list[tuple[RunningAttempt, Assignment]]] = {}
        for attempt in effects.started:
            if attempt.instance_id in dropped:
                continue
            instance = payloads[attempt.instance_id]
            assignment = Assignment(
                instance_id=attempt.instance_id,
                ref=attempt.ref,
                version=attempt.task_version,
                generation=attempt.generation,
                attempt=attempt.attempt,
                attempt_id=attempt.attempt_id,
                retry_count=attempt.counters.failures,
                payload=instance.payload,
                due_us=attempt.due_us,
                fire_us=instance.fire_us,
                shard=instance.shard,
                shard_total=instance.shard_total,
                partition=attempt.partition,
            )
            by_worker.setdefault(attempt.worker_id, []).append((attempt, assignment))
        for worker_id, attempts in by_worker.items():
            session = self._sessions.by_id.get(worker_id)
            if session is None:
                continue
            for attempt, _ in attempts:
                pool = attempt.definition.pool
                # Where the worker has connected anew during the commit, it refuses what is too much for it.
                if session.ledger.available(pool) > 0:
                    session.ledger.use(pool, 1)
            session.turn = self._turn
            session.assign(attempts)


def _is_moved(effects: Effects, instance: Instance) -> bool:
    """Whether an instance that replaces it has ended it, or asked it to end, in this batch."""
    batch = effects.batch
    return any(
        row.instance_id == instance.id
        for rows in (batch.ended_waiting, batch.cancel_requests)
        for row in rows
    )
