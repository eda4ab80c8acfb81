"""Deliberate bugs of scheduler nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ostinato.core.changes import CommitBatch
from ostinato.core.instants import MINUTE, SECOND
from ostinato.core.partition import ended, fire
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.running import Loss, RunningAttempt
from ostinato.core.retry import verdict
from ostinato.core.retry.budget import Bucket
from ostinato.scheduler.committer import Committer
from ostinato.scheduler.dispatch_loop import DispatchLoop
from ostinato.scheduler.health_loop import HealthLoop
from ostinato.scheduler.held_work import HeldWork
from ostinato.scheduler.membership_loop import MembershipLoop
from ostinato.scheduler.node import SchedulerNode
from ostinato.scheduler.outcome_loop import OutcomeLoop
from ostinato.scheduler.ownership import Ownership
from ostinato.scheduler.placing import Placer
from ostinato.scheduler.shared_time import SharedTime
from ostinato.scheduler.watch_loop import WatchLoop
from ostinato.scheduler.worker_streams import WorkerStreams
from ostinato.simulation.mutations.mutation import Mutation
from ostinato.wire.ledgers import CreditLedger
from ostinato.wire.messages import OutcomesAcknowledged

Function = Callable[..., Any]


def _acknowledged_before_commit(original: Function) -> Function:
    def add(self: OutcomeLoop, worker_id: str, outcomes: Any, *, by_guardian: bool = False) -> None:
        reporter = self._sessions.reporter(worker_id, is_guardian=by_guardian)
        if reporter is not None:
            reporter.post([OutcomesAcknowledged([outcome.attempt_id for outcome in outcomes])])
        original(self, worker_id, outcomes, by_guardian=by_guardian)

    return add


def _stale_accepted(original: Function) -> Function:
    def running(self: OutcomeLoop, outcome: Any) -> RunningAttempt | None:
        return self._ownership.memory.running.get(outcome.instance_id)

    return running


def _retry_late(original: Function) -> Function:
    def schedule(selection: Any, counters: Any, *, due_us: int, waits: str) -> Any:
        return original(selection, counters, due_us=due_us + 2 * SECOND, waits=waits)

    return schedule


def _failure_uncounted(original: Function) -> Function:
    def decide(*said: Any, **named: Any) -> Any:
        found = original(*said, **named)
        _, failure, counters = said
        if isinstance(found, verdict.RetryAt) and failure.category != "lost":
            kept = msgspec.structs.replace(found.counters, failures=counters.failures)
            return msgspec.structs.replace(found, counters=kept)
        return found

    return decide


def _loss_uncounted(original: Function) -> Function:
    def decide_lost(policy: Any, failure: Any, *, counters: Any, now_us: int) -> Any:
        found = original(policy, failure, counters=counters, now_us=now_us)
        return msgspec.structs.replace(
            found, counters=msgspec.structs.replace(found.counters, lost=counters.lost)
        )

    return decide_lost


def _not_released(original: Function) -> Function:
    async def release(self: MembershipLoop) -> None:
        return

    return release


def _never_hears(original: Function) -> Function:
    async def run_once(self: WatchLoop) -> int | None:
        return None

    return run_once


def _sent_before_written(original: Function) -> Function:
    async def place(self: DispatchLoop, found: Any, routing: Any, *, into: Effects) -> Any:
        placed = await original(self, found, routing, into=into)
        self._send(into, placed.placements, self._sessions.in_rotation(), dropped=frozenset())
        return placed

    return place


def _lost_at_once(original: Function) -> Function:
    def why_lost(self: HealthLoop, attempt: RunningAttempt, boot_us: int) -> Loss | None:
        if not attempt.is_confirmed:
            return Loss("WORKER_LOST", "nobody has reported it yet")
        found: Loss | None = original(self, attempt, boot_us)
        return found

    return why_lost


def _in_two_transactions(original: Function) -> Function:
    async def commit(self: Committer, effects: Effects) -> Any:
        batch = effects.batch
        advances, batch.advances = batch.advances, []
        if not advances:
            return await original(self, effects)
        outcome = await original(self, effects)
        await original(self, Effects(batch=CommitBatch(advances=advances)))
        return outcome

    return commit


def _cancel_unsaid(original: Function) -> Function:
    def after_commit(self: SchedulerNode, effects: Effects, dropped: frozenset[str]) -> None:
        effects.cancel_signals.clear()
        original(self, effects, dropped)

    return after_commit


def _without_end(original: Function) -> Function:
    return lambda *_, **__: None


def _held_for_ever(original: Function) -> Function:
    return lambda self: []


def _wall_time(original: Function) -> Function:
    return lambda self: self._clock.wall_us()


def _pause_ignored(original: Function) -> Function:
    def may_start(self: Placer, instance: Any, task: Any, *others: Any, **named: Any) -> bool:
        if task.row is not None and task.row.paused:
            return True
        return bool(original(self, instance, task, *others, **named))

    return may_start


def _budget_ignored(original: Function) -> Function:
    return lambda self, now_us: 1_000


def _fire_forgotten(original: Function) -> Function:
    def plan(*positional: Any, **named: Any) -> Any:
        found = original(*positional, **named)
        return found._replace(fires=found.fires[:1]) if len(found.fires) > 2 else found

    return plan


def _believes_from_now(original: Function) -> Function:
    return lambda self, sent_us: original(self, self._clock.boot_us())


def _extends_anyhow(original: Function) -> Function:
    """Believes for as long as it takes to answer a heartbeat."""

    def heartbeat(self: WorkerStreams, session: Any, message: Any) -> None:
        ownership = self._ownership
        until_us = ownership._believed_until_us
        if ownership.is_registered:
            ownership._believed_until_us = max(until_us, ownership._clock.boot_us() + 1)
        try:
            original(self, session, message)
        finally:
            ownership._believed_until_us = until_us

    return heartbeat


def _credits_doubled(original: Function) -> Function:
    def available(self: CreditLedger, pool: str) -> int:
        return int(original(self, pool)) + self._granted.get(pool, 0)

    return available


def _pause_unsaid(original: Function) -> Function:
    async def correct(self: DispatchLoop, refs: Any, *others: Any, **named: Any) -> Any:
        await self._definitions.load_tasks(refs)
        known = [(ref, self._definitions.task(ref)) for ref in refs]
        return await original(
            self, [ref for ref, task in known if task and not task.paused], *others, **named
        )

    return correct


def _untold(original: Function) -> Function:
    def end_badly(attempt: Any, failure: Any, *, outcome: Any, decision: Any, into: Effects) -> None:
        original(attempt, failure, outcome=outcome, decision=decision, into=into)
        if failure.category == "lost":
            into.batch.history.pop()

    return end_badly


_RETRY, _I3, _I6 = "retry times", "I3", "I6"

SCHEDULER: tuple[Mutation, ...] = (
    Mutation(
        name="acknowledged_before_commit",
        meaning="acknowledges a result before it is committed",
        patches=((OutcomeLoop, "add", _acknowledged_before_commit),),
        seed_count=10,
        found_by=(_I6, "I9"),
    ),
    Mutation(
        name="stale_result_accepted",
        meaning="takes a result for that of whichever attempt is running",
        patches=((OutcomeLoop, "_running", _stale_accepted),),
        seed_count=20,
        first_seed=5,
        found_by=("I1", _I6),
        kinds=("worker_cut_off", "answers_lost", "database_silent"),
    ),
    Mutation(
        name="retry_late",
        meaning="lets a retry wait two seconds longer than the policy says",
        patches=((verdict, "_schedule", _retry_late),),
        seed_count=3,
        found_by=(_RETRY,),
    ),
    Mutation(
        name="failure_uncounted",
        meaning="does not count the task's own failures",
        patches=((ended, "decide", _failure_uncounted),),
        seed_count=3,
        found_by=(_I3, _RETRY),
    ),
    Mutation(
        name="loss_uncounted",
        meaning="does not raise the lost counter",
        patches=((verdict, "_decide_lost", _loss_uncounted),),
        seed_count=10,
        found_by=(_I3,),
    ),
    Mutation(
        name="partitions_not_released",
        meaning="stops deciding about a partition that it gives away, and never gives it away",
        patches=((MembershipLoop, "_release", _not_released),),
        seed_count=10,
        found_by=("liveness", "acts", "fires", "I9"),
    ),
    Mutation(
        name="no_hint_no_poll",
        meaning="neither hears that something was committed nor looks by itself",
        patches=((WatchLoop, "run_once", _never_hears),),
        seed_count=10,
        found_by=("liveness", "acts", "fires"),
    ),
    Mutation(
        name="sent_before_written",
        meaning="sends assignments before they are committed",
        patches=((DispatchLoop, "_place", _sent_before_written),),
        seed_count=3,
        found_by=("I5",),
    ),
    Mutation(
        name="adoption_skipped",
        meaning="declares lost at once what nobody has reported yet after a take-over",
        patches=((HealthLoop, "_why_lost", _lost_at_once),),
        seed_count=10,
        found_by=("I1", _I6),
        kinds=("node_killed", "node_machine_lost"),
    ),
    Mutation(
        name="fire_in_two_transactions",
        meaning="makes the instances of a fire and moves the trigger on in two transactions",
        patches=((Committer, "commit", _in_two_transactions),),
        seed_count=5,
        found_by=("fires",),
    ),
    Mutation(
        name="cancel_unsaid",
        meaning="records a wish to cancel and does not tell the worker",
        patches=((SchedulerNode, "_after_commit", _cancel_unsaid),),
        seed_count=15,
        found_by=("acts",),
    ),
    Mutation(
        name="window_ignored",
        meaning="lets retries start after the end of their window",
        patches=((verdict, "window_end_us", _without_end), (ended, "expires_us", _without_end)),
        seed_count=20,
        first_seed=2,
        found_by=(_I3,),
        kinds=("worker_drained", "worker_killed"),
    ),
    Mutation(
        name="held_for_ever",
        meaning="never looks again at work that it has held",
        patches=((HeldWork, "candidates", _held_for_ever),),
        seed_count=10,
        found_by=("liveness",),
    ),
    Mutation(
        name="time_of_the_node",
        meaning="judges due times by the node's own wall clock",
        patches=((SharedTime, "now_us", _wall_time),),
        first_seed=6,
        seed_count=10,
        found_by=("I4",),
    ),
    Mutation(
        name="pause_ignored",
        meaning="assigns work of paused tasks",
        patches=((Placer, "_may_start", _pause_ignored),),
        seed_count=15,
        found_by=("acts",),
    ),
    Mutation(
        name="budget_ignored",
        meaning="starts retries though their task's budget has no token",
        patches=((Bucket, "count", _budget_ignored),),
        seed_count=10,
        found_by=("retry budgets",),
        shape={"budget_share": 1.0, "act_us": SECOND // 2},
    ),
    Mutation(
        name="fires_forgotten",
        meaning="makes up only the first of several missed fires",
        patches=((fire, "plan_fires", _fire_forgotten),),
        seed_count=20,
        first_seed=8,
        found_by=("fires",),
    ),
    Mutation(
        name="belief_from_answer",
        meaning="counts its belief from the answer to a renewal, not from its sending",
        patches=((Ownership, "_believe_from", _believes_from_now),),
        seed_count=20,
        first_seed=8,
        found_by=("belief",),
        kinds=("wire_slow",),
        fault_us_max=MINUTE,
        shape={
            "has_session_locks": False,
            "node_count": 2,
            "safety_us": 3 * MINUTE,
            "faults": {"wire_slow": 5 * SECOND},
        },
    ),
    Mutation(
        name="lease_without_belief",
        meaning="extends leases of workers without believing in its partitions",
        patches=((WorkerStreams, "_heartbeat", _extends_anyhow),),
        seed_count=20,
        first_seed=28,
        found_by=("I1",),
        kinds=("database_silent", "link_silent"),
        fault_us_max=MINUTE,
        shape={"node_count": 2, "worker_count": 2, "safety_us": 3 * MINUTE},
    ),
    Mutation(
        name="credits_doubled",
        meaning="gives each credit of a worker out twice",
        patches=((CreditLedger, "available", _credits_doubled),),
        seed_count=10,
        found_by=("places",),
        kinds=("hints_disturbed",),
    ),
    Mutation(
        name="pause_unsaid",
        meaning="lets held work say of a paused task what it said before",
        patches=((DispatchLoop, "_correct", _pause_unsaid),),
        seed_count=20,
        found_by=("reasons",),
        kinds=("worker_killed",),
    ),
    Mutation(
        name="loss_untold",
        meaning="leaves no row of the history about a lost attempt",
        patches=((ended, "_end_badly", _untold),),
        seed_count=10,
        found_by=("told",),
    ),
)
