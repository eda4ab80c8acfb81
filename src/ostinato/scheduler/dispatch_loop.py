"""Due work, first attempts and retries alike, is placed on workers: read, route, commit, send.

The queue is the database (docs/architecture.md): a round reads due instances only while workers have free
slots. What finds its workers busy stays in the queue. Only where work for a slot that is idle stands behind
it is it held, with its reason, so that nothing stands behind it (`work_behind`). An assignment is committed
before it is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from ostinato.core.changes import CommitBatch
from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.model import Instance
from ostinato.core.partition.assign import Placement, assign, hold
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.running import Loss, RunningAttempt
from ostinato.core.routing import RoutingRound
from ostinato.core.states import Hold
from ostinato.scheduler.committer import CommitOutcome
from ostinato.scheduler.held_work import RELEASED_BY_WORKERS
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts
from ostinato.scheduler.placing import Placed, Placer, paused
from ostinato.scheduler.sessions import WorkerSession
from ostinato.scheduler.waiting_work import WaitingWork
from ostinato.scheduler.work_behind import WorkBehind
from ostinato.store.batches import FoundWork, HeldQuery
from ostinato.wire.messages import Assignment

#: Rows read beyond the free slots, to see what else is behind work that cannot run.
LOOKAHEAD_COUNT = 64
#: While nothing of use is found there, it is halved, down to this.
LOOKAHEAD_COUNT_MIN = 8
#: While work for a slot that is free stands further behind, each round reads so many times more.
LOOKAHEAD_GROWTH = 4
#: Held rows of a task read in one round, whatever its share of the free slots: up to here order is kept.
HELD_COUNT_MIN = 16
#: Two looks at what waits for a slot, while none is free, are at least so far apart.
LOOK_AHEAD_US = SECOND
#: The look for all else comes so long after instances that a hint has named, if nothing asks for it before:
#: it would stand in the way of their start.
LOOK_AFTER_HINTED_US = 5 * MILLISECOND
#: What a look has found is spread over at least so many workers, if there are as many with room.
RUNS_MIN = 16
#: A priority level is worth this much age.
AGEING_US = 60 * SECOND


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
        self._budgets = parts.budgets
        self._placer = Placer(parts)
        self._behind = WorkBehind(parts.store, parts.definitions, clock=parts.clock)
        self._turn = 0
        #: Credits are counted on: they are given back once the round is over.
        self._is_placing = False
        self._waiting = WaitingWork()
        self._look_ahead_us = 0
        self._lookahead_count = LOOKAHEAD_COUNT
        #: The last look has found nothing that it has not placed.
        self._is_drained = False
        #: When the next look is due, since something that a hint has named went ahead of it.
        self._look_by_us: int | None = None

    def return_credits(self, session: WorkerSession) -> None:
        """Give back what the worker wants and no placement counts on; later if one is under way."""
        if not self._is_placing:
            session.ledger.return_wanted()

    def is_stale(self, session: WorkerSession) -> bool:
        """Whether a lease would rest on a heartbeat so old that the worker may refuse it unstarted.

        After this node has been suspended, or has not believed for long, it is every worker's (C167).
        """
        age_us = self._clock.boot_us() - session.leased_boot_us
        return age_us >= self._config.worker_lease_us // 2

    def demand_for(self, session: WorkerSession) -> dict[str, int]:
        """Due work by pool that a worker could be given if there were credits for it."""
        if not (session.in_rotation and self._ownership.is_believed):
            return {}
        return self._waiting.demand(session.view())

    async def run_once(self) -> int | None:
        """Place what is due. The next round is at the next due time, or at once if more can be placed."""
        self._is_placing = True
        try:
            return await self._run_round()
        finally:
            self._is_placing = False
            for session in self._sessions.by_id.values():
                if session.ledger.return_wanted() and session.is_draining:
                    # It ends once it has heard that nothing more is on its way.
                    session.tell_returned()

    async def _run_round(self) -> int | None:
        hinted = self._take_hinted()
        partitions, note_count = self._ownership.owned(), self._held.note_count
        connected = self._sessions.in_rotation()
        sessions = [session for session in connected if not self.is_stale(session)]
        if connected and not sessions:
            # The next heartbeat wakes us; until then nobody is to be told that there is no worker.
            return None
        routing = RoutingRound(
            [session.view() for session in sessions], strategy=self._config.strategy, first_turn=self._turn
        )
        if partitions and await self._correct_reasons(partitions, routing):
            self._behind.forget()
            self.wake()
        if not partitions:
            return None
        if sessions and not any(free > 0 for view in routing.workers for free in view.free.values()):
            return await self._look_ahead(partitions, routing)
        count = self._behind.free_count(routing.workers)
        is_asked = self._held.freed_tasks() or self._budgets.is_due
        if sessions and count <= 0 and self._behind.puts_off() and not is_asked:
            return _earliest(self._behind.next_boot_us, self._budgets.next_boot_us)
        now_us = self._time.now_us()
        found, queries = FoundWork(hinted, more=False, next_due_us=None), list[HeldQuery]()
        if not hinted:
            found, queries = await self._find(partitions, routing, count, now_us=now_us)
        await self._definitions.load(found.instances)
        routing.run_count_max = max(1, len(found.instances) // RUNS_MIN)
        effects = Effects()
        placed = await self._place(found, routing, into=effects)
        await self._note_waiting(routing, more=[*placed.unplaced] if found.more else [])
        self._turn = routing.turn
        if hinted:
            return await self._send_hinted(effects, placed, sessions)
        outcome = await self._commit(effects, placed)
        self._note_holds(effects, found, dropped=outcome.dropped)
        more_held = self._held.drained(
            queries, found=found.instances, unplaced=placed.unplaced, note_count=note_count
        )
        self._send(effects, placed.placements, sessions, dropped=outcome.dropped)
        goes_on = False
        if more_held and (effects.started or placed.is_out_of_tokens):
            self._behind.forget()
            goes_on = True
        elif not found.more:
            self._behind.seen_all(routing) if placed.busy else self._behind.forget()
        elif effects.batch.holds or (effects.started and not placed.busy):
            # What stands behind has come nearer; without a worker it has not.
            goes_on = bool(sessions)
        elif sessions:
            goes_on = await self._behind.seek(partitions, routing, now_us=self._time.now_us())
        self._lookahead_count = self._next_lookahead(found, placed)
        # What is named next by a hint has nothing before it.
        self._is_drained, self._look_by_us = not (found.more or more_held or placed.unplaced), None
        self._budgets.look_ahead(routing, unplaced=placed.unplaced)
        return self._clock.boot_us() if goes_on else self._next_look_us(found)

    async def _commit(self, effects: Effects, placed: Placed) -> CommitOutcome:
        outcome = await self._committer.commit(effects)
        if placed.filling:
            self._budgets.fill(placed.filling, dropped=outcome.dropped)
        return outcome

    def _take_hinted(self) -> list[Instance]:
        """New instances that hints have named, where nothing that waits stands before them."""
        hinted, is_drained = self._store.take_hinted(), self._is_drained
        # Until a round says so again: it may end before it has looked.
        self._is_drained = False
        is_late = self._look_by_us is not None and self._clock.boot_us() >= self._look_by_us
        if is_late or not is_drained or self._held.waiting() or self._held.freed_tasks():
            return []
        memory, now_us = self._ownership.memory, self._time.now_us()
        return [
            row
            for row in hinted
            if row.partition in memory.epochs and row.due_us <= now_us and row.id not in memory.running
        ]

    async def _send_hinted(
        self, effects: Effects, placed: Placed, sessions: Collection[WorkerSession]
    ) -> int | None:
        """Commit and send what was made of hinted rows, if that is assignments alone; then look for all."""
        if not placed.unplaced and effects.batch == CommitBatch(assigns=effects.batch.assigns):
            for row in effects.batch.assigns:
                row.wants_payload = True
            outcome = await self._commit(effects, placed)
            for placement in placed.placements:
                placement.instance.payload = outcome.payloads.get(placement.instance.id, b"")
            unknown = {row.instance.id for row in placed.placements} - outcome.payloads.keys()
            self._send(effects, placed.placements, sessions, dropped=outcome.dropped | unknown)
            self._is_drained = True
            if self._look_by_us is None:
                self._look_by_us = self._clock.boot_us() + LOOK_AFTER_HINTED_US
            return self._look_by_us
        return self._clock.boot_us()

    def _next_look_us(self, found: FoundWork) -> int | None:
        """When to look again if nothing happens before."""
        due_us = None if found.next_due_us is None else self._time.boot_at(found.next_due_us)
        return _earliest(due_us, self._behind.next_boot_us, self._budgets.next_boot_us)

    def _next_lookahead(self, found: FoundWork, placed: Placed) -> int:
        """Rows to read beyond the free slots next time.

        What can use a free slot may stand behind a backlog of work for others (no head-of-line blocking).
        Each row of it is held once, on the way; in steps of a few the slot would stay idle for seconds.
        """
        count = self._lookahead_count
        if found.more and (self._behind.is_seeking or placed.is_out_of_tokens):
            return min(max(count, LOOKAHEAD_COUNT) * LOOKAHEAD_GROWTH, self._config.batch_count)
        if not found.more or not placed.busy or placed.is_past_busy:
            return LOOKAHEAD_COUNT
        return max(min(count, LOOKAHEAD_COUNT) // 2, LOOKAHEAD_COUNT_MIN)

    async def _look_ahead(self, partitions: list[int], routing: RoutingRound) -> int | None:
        """No slot is free for this node: see what needs one, as workers may have promised it to others."""
        boot_us = self._clock.boot_us()
        if not self._store.capabilities.many_nodes:
            return None
        if boot_us < self._look_ahead_us:
            return self._look_ahead_us
        self._look_ahead_us = boot_us + LOOK_AHEAD_US
        now_us = self._time.now_us()
        found = await self._store.find_work(partitions, now_us=now_us, limit=LOOKAHEAD_COUNT, held=[])
        freed = self._held.freed_tasks()
        if freed:
            # Held until what was before it had ended, it is not in the queue: it needs a slot all the same.
            found.instances.extend(await self._overlap_ready(freed))
        await self._definitions.load(found.instances)
        self._waiting.clear()
        for instance in found.instances:
            definition = self._definitions.routed(instance.ref, instance.task_version)
            task = self._definitions.task(instance.ref)
            if definition is not None and (task is None or not task.paused):
                self._waiting.add(definition)
        await self._note_waiting(routing, more=[])
        due_us = None if found.next_due_us is None else self._time.boot_at(found.next_due_us)
        # A token needs a slot once it is there.
        return _earliest(due_us, self._look_ahead_us if self._held.for_budget() else None)

    async def _note_waiting(self, routing: RoutingRound, *, more: list[TaskRef]) -> None:
        """Add held work, and that of tasks of which there is more than was read; let workers know."""
        if not self._store.capabilities.many_nodes:
            # There is nobody to whom workers could have promised their slots.
            return
        wanting = (*self._held.candidates(), *self._budgets.wanting())
        held = [ref for ref in dict.fromkeys(wanting) if ref not in more]
        await self._definitions.load_tasks(held)
        for ref in [*held, *more]:
            task = self._definitions.task(ref)
            if task is not None and not task.paused and not routing.free_slots(task.definition):
                self._waiting.add(task.definition, count=LOOKAHEAD_COUNT)
        for session in self._sessions.in_rotation():
            if self._waiting and not session.knows_demand:
                session.tell_demand(self.demand_for(session))

    async def _correct_reasons(self, partitions: list[int], routing: RoutingRound) -> bool:
        """Held rows whose cause has changed say what holds them now; True if there may be more."""
        refs = self._held.take_stale()
        if not refs:
            return False
        try:
            return await self._correct(refs, partitions, routing=routing)
        except BaseException:
            # What was taken and not corrected is as false as before, and nothing else would say so again.
            for ref in refs:
                self._held.stale(ref)
            raise

    async def _correct(self, refs: list[TaskRef], partitions: list[int], *, routing: RoutingRound) -> bool:
        await self._definitions.load_tasks(refs)
        reasons = {
            ref: paused(ref) if task.paused else routing.unplaced(task.definition)
            for ref in refs
            if (task := self._definitions.task(ref)) is not None
        }
        limit = self._config.batch_count
        queries = [HeldQuery(ref, _others(reason.hold), limit) for ref, reason in reasons.items()]
        found = await self._store.find_work(partitions, now_us=self._time.now_us(), limit=0, held=queries)
        effects = Effects()
        for instance in found.instances:
            reason = reasons[instance.ref]
            hold(instance, reason.hold, reason=reason.reason, into=effects)
        without_token = {row.ref for row in found.instances if row.hold is Hold.BUDGET}
        await self._committer.commit(effects)
        for ref in sorted(without_token):
            # What it waits for now it is asked for elsewhere.
            self._held.note(ref, reasons[ref].hold)
        for ref, count in Counter(instance.ref for instance in found.instances).items():
            if count >= limit:
                self._held.stale(ref)
        return bool(effects.batch.holds)

    async def _find(
        self, partitions: list[int], routing: RoutingRound, free_count: int, *, now_us: int
    ) -> tuple[FoundWork, list[HeldQuery]]:
        """Due rows, held rows of tasks that could run now, and what no longer overlaps; best first."""
        limit = min(free_count + self._lookahead_count, self._config.batch_count)
        queries = await self._held_queries(routing)
        found = await self._store.find_work(partitions, now_us=now_us, limit=limit, held=queries)
        freed = self._held.take_freed()
        if freed:
            found.instances.extend(await self._overlap_ready(freed))
        if freed or queries:
            found.instances.sort(key=lambda row: (row.due_us - row.priority * AGEING_US, row.id))
        return found, queries

    async def _overlap_ready(self, refs: list[TaskRef]) -> list[Instance]:
        ready = await self._store.find_overlap_ready(refs)
        # It is asked by task; a partition may have been lost meanwhile.
        owned = self._ownership.memory.epochs
        return [row for row in ready if row.partition in owned]

    async def _held_queries(self, routing: RoutingRound) -> list[HeldQuery]:
        """Each task is asked for its share of the free slots: behind a backlog of many tasks a round would
        else read all that any of them could use, for each of them."""
        candidates = self._held.candidates()
        await self._definitions.load_tasks(candidates)
        limit = self._config.batch_count
        queries: list[HeldQuery] = []
        wanting: list[tuple[TaskDefinition, int]] = []
        for ref in candidates:
            task = self._definitions.task(ref)
            if self._definitions.withdrawn(ref):
                queries.append(HeldQuery(ref, RELEASED_BY_WORKERS, limit))
            elif task is not None and not task.paused:
                free_count = routing.free_slots(task.definition)
                if free_count > 0:
                    wanting.append((task.definition, free_count))
        task_counts = Counter(definition.pool for definition, _ in wanting)
        for definition, free_count in wanting:
            share_count = max(-(-free_count // task_counts[definition.pool]), HELD_COUNT_MIN)
            count = min(share_count, free_count, limit)
            queries.append(HeldQuery(definition.ref, RELEASED_BY_WORKERS, count))
        return [*queries, *await self._budgets.queries(routing, limit=limit)]

    async def _place(self, found: FoundWork, routing: RoutingRound, *, into: Effects) -> Placed:
        """Decide about each row."""
        placed = await self._placer.place(found.instances, routing, into=into)
        self._waiting.clear()
        for definition, count in placed.waiting:
            self._waiting.add(definition, count=count)
        if placed.again:
            self.wake()
        self._behind.looked(routing.workers, found.instances)
        self._hold_busy(found, routing, placed, into=into)
        assign(
            placed.placements,
            now_us=self._time.now_us(),
            boot_us=self._clock.boot_us(),
            rng=self._rng,
            into=into,
        )
        return placed

    def _hold_busy(self, found: FoundWork, routing: RoutingRound, placed: Placed, *, into: Effects) -> None:
        """Take what waits for busy workers out of the way of work for idle slots that stands behind it."""
        if not (placed.busy and found.more):
            return
        is_in_the_way = self._behind.is_ahead(routing)
        for busy in placed.busy:
            # What is held already says what holds it now.
            if is_in_the_way or busy.instance.hold is not None:
                hold(busy.instance, Hold.BUSY, reason=busy.reason, into=into)

    def _note_holds(self, effects: Effects, found: FoundWork, *, dropped: frozenset[str]) -> None:
        refs = {instance.id: instance.ref for instance in found.instances}
        for held in effects.batch.holds:
            if held.instance_id not in dropped:
                self._held.note(refs[held.instance_id], held.hold)
                if held.hold is Hold.OVERLAP:
                    # What it waits for may have ended already, or wait for nothing but it.
                    self.wake()

    def _send(
        self,
        effects: Effects,
        placements: Sequence[Placement],
        sessions: Collection[WorkerSession],
        *,
        dropped: frozenset[str],
    ) -> None:
        if not self._ownership.is_believed:
            # The answer came late. An assignment names the newest heartbeat processed, and another owner may
            # count on none having been processed since (design section 3, Leases): nobody gets these, and the
            # health loop finds out what has become of them.
            return
        by_worker: dict[str, list[tuple[RunningAttempt, Assignment]]] = {}
        # What was begun to be committed before a hand-over is sent: until it is, the partition is not free.
        epochs = self._ownership.releasing | self._ownership.memory.epochs
        for placement, attempt in zip(placements, effects.started, strict=True):
            # Of a partition that is another's now nothing may be sent any more: whoever owns it waits for
            # what was sent before (I1).
            epoch = epochs.get(attempt.partition)
            if epoch is not None and attempt.instance_id not in dropped:
                assignment = _assignment(placement, attempt, epoch=epoch)
                by_worker.setdefault(attempt.worker_id, []).append((attempt, assignment))
        for worker_id, attempts in by_worker.items():
            session = self._sessions.by_id.get(worker_id)
            if session is None:
                continue
            if session not in sessions:
                # Its greeting came before this was committed, so it was not missed there: it is now.
                for attempt, _ in attempts:
                    attempt.lost = Loss("NOT_ACKNOWLEDGED", f"worker {session.worker_name} connected anew")
                continue
            for pool, count in Counter(attempt.definition.pool for attempt, _ in attempts).items():
                # Where the worker has connected anew during the commit, it refuses what is too much for it.
                session.ledger.use(pool, min(count, session.ledger.available(pool)))
            session.turn = self._turn
            session.assign(attempts)


def _others(cause: Hold) -> tuple[Hold, ...]:
    """What rows are held for that may be held for `cause` instead; what has no token does not wait for busy
    workers."""
    known = RELEASED_BY_WORKERS if cause is Hold.BUSY else (*RELEASED_BY_WORKERS, Hold.BUDGET)
    return tuple(other for other in known if other is not cause)


def _earliest(*times: int | None) -> int | None:
    return min((each for each in times if each is not None), default=None)


def _assignment(placement: Placement, attempt: RunningAttempt, *, epoch: int) -> Assignment:
    instance = placement.instance
    return Assignment(
        instance_id=attempt.instance_id,
        ref=placement.ref,
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
        epoch=epoch,
    )
