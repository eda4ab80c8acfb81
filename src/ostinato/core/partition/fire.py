"""Triggers are due: fires become instances, under the misfire and overlap rules of their task.

A fire makes one instance, or one for each shard: they are made together, and the rules look at the fire.

Instances and the trigger's next time are one transaction, so a crash neither loses nor doubles a fire; should
two owners ever try, (trigger, scheduled instant, shard) is unique in the database (I8).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from ostinato.core.changes import RequestCancel, TriggerAdvance, TriggerRow
from ostinato.core.definition import TaskDefinition, TaskRow
from ostinato.core.ids import new_id
from ostinato.core.model import HistoryKind, HistoryRow, Instance
from ostinato.core.partition.assign import hold
from ostinato.core.partition.effects import CancelSignal, Effects, FiredInstance
from ostinato.core.partition.expire import end_waiting
from ostinato.core.schedule.misfire import LATE_US, plan_fires
from ostinato.core.schedule.overlap import (
    LiveInstance,
    OverlapDecision,
    decide_overlap,
    fire_of,
    replaced_cause,
)
from ostinato.core.states import Hold, State


class DueTrigger(msgspec.Struct):
    """A due trigger with the facts that decide about it."""

    trigger: TriggerRow
    #: Version that the trigger belongs to: the instance pins it.
    definition: TaskDefinition
    #: Newest version: overlap and priority are read live.
    task: TaskRow
    #: When the definition was edited: what is due after that is the next version's.
    until_us: int | None = None


class LiveTask(msgspec.Struct):
    """Live instances of one task as this batch sees them: the database's, changed by what the batch does."""

    known: dict[str, Instance]
    #: Made by this batch, so it can still be turned into a skipped one.
    made: set[str] = set()

    def views(self) -> list[LiveInstance]:
        return [
            LiveInstance(
                instance_id=instance.id,
                state=instance.state,
                due_us=instance.due_us,
                is_waiting_replacement=instance.hold is Hold.OVERLAP,
                fire=fire_of(instance),
            )
            for instance in self.known.values()
        ]


def fire(due: DueTrigger, live: LiveTask, *, now_us: int, rng: Random, into: Effects) -> None:
    """Everything that is due of one trigger up to `now_us`, or to the edit of its definition."""
    trigger = due.trigger
    if trigger.next_us is None:
        return
    plan = plan_fires(
        trigger.spec,
        next_fire_us=trigger.next_us,
        now_us=now_us,
        created_us=trigger.created_us,
        spread_key=str(trigger.ref),
        until_us=due.until_us,
    )
    last_us = trigger.last_us
    if plan.skipped_reason is not None and plan.missed_last_us is not None:
        last_us = plan.missed_last_us
        for shard in range(due.definition.shards):
            _insert(
                due,
                plan.missed_last_us,
                plan.skipped_reason,
                shard=shard,
                now_us=now_us,
                rng=rng,
                into=into,
            )
    for planned in plan.fires:
        last_us = planned.scheduled_us if last_us is None else max(last_us, planned.scheduled_us)
        is_told = planned.made_up or planned.late_us >= LATE_US
        note = plan.note if is_told else ""
        _fire_one(due, live, planned.scheduled_us, note, now_us=now_us, rng=rng, into=into)
    into.batch.advances.append(
        TriggerAdvance(
            trigger_id=trigger.id,
            partition=trigger.partition,
            expected_next_us=trigger.next_us,
            next_us=plan.next_fire_us,
            last_us=last_us,
        )
    )


def _fire_one(
    due: DueTrigger,
    live: LiveTask,
    fire_us: int,
    note: str,
    *,
    now_us: int,
    rng: Random,
    into: Effects,
) -> None:
    definition = due.task.definition
    mode = definition.overlap if definition.overlap is not None else "forbid"
    decision = decide_overlap(mode, live=live.views(), queue_bound=definition.queue_bound)
    skipped = decision.reason if decision.action == "skip" else ""
    instances = [
        _insert(due, fire_us, skipped, shard=shard, now_us=now_us, rng=rng, into=into)
        for shard in range(due.definition.shards)
    ]
    if skipped:
        return
    for instance in instances:
        if note:
            into.batch.history.append(_row(instance, HistoryKind.MISFIRE, note, now_us=now_us))
        if decision.action == "wait":
            instance.hold = Hold.OVERLAP
            instance.reason = decision.reason
    _cancel_replaced(decision, live, instances[0].id, now_us=now_us, into=into)
    for instance in instances:
        live.known[instance.id] = instance
        live.made.add(instance.id)


def _insert(
    due: DueTrigger,
    fire_us: int,
    skipped_reason: str,
    *,
    shard: int = 0,
    now_us: int,
    rng: Random,
    into: Effects,
) -> Instance:
    """One shard of a fire, pending or born skipped."""
    definition, trigger = due.definition, due.trigger
    instance = Instance(
        id=new_id(now_us, rng),
        namespace=trigger.namespace,
        task=trigger.task,
        task_version=trigger.task_version,
        partition=trigger.partition,
        state=State.PENDING,
        priority=due.task.definition.priority,
        due_us=fire_us,
        created_us=now_us,
        payload=bytes(definition.payload),
        fire_trigger=trigger.id,
        fire_us=fire_us,
        shard=shard,
        shard_total=definition.shards,
    )
    if definition.queue_timeout_us is not None:
        # A late fire has the whole time-out from when it could first have started.
        instance.expires_us = max(fire_us, now_us) + definition.queue_timeout_us
    into.batch.inserts.append(instance)
    if skipped_reason:
        _make_skipped(instance, skipped_reason, now_us=now_us, into=into)
    into.fired.append(
        FiredInstance(
            instance_id=instance.id,
            partition=instance.partition,
            ref=instance.ref,
            trigger_id=trigger.id,
            fire_us=fire_us,
            lateness_us=max(0, now_us - fire_us),
            skipped_reason=skipped_reason,
        )
    )
    return instance


def _make_skipped(instance: Instance, reason: str, *, now_us: int, into: Effects) -> None:
    instance.state = State.SKIPPED
    instance.reason = reason
    instance.hold = None
    instance.expires_us = None
    instance.finished_us = now_us
    into.batch.history.append(_row(instance, HistoryKind.SKIPPED, reason, now_us=now_us))


def _row(instance: Instance, kind: HistoryKind, sentence: str, *, now_us: int) -> HistoryRow:
    return HistoryRow(
        instance_id=instance.id,
        partition=instance.partition,
        at_us=now_us,
        kind=kind,
        sentence=sentence,
        generation=instance.generation,
        attempt=instance.attempt,
    )


def _cancel_replaced(
    decision: OverlapDecision, live: LiveTask, replacement_id: str, *, now_us: int, into: Effects
) -> None:
    reason = replaced_cause(replacement_id)
    for instance_id in decision.cancel:
        old = live.known.get(instance_id)
        if old is None:
            continue
        if instance_id in live.made:
            _make_skipped(old, reason, now_us=now_us, into=into)
            del live.known[instance_id]
        elif old.state is State.RUNNING:
            request_cancel(old, reason, by="overlap rule", now_us=now_us, into=into)
        else:
            end_waiting(old, State.CANCELLED, sentence=reason, now_us=now_us, into=into)
            del live.known[instance_id]


def request_cancel(instance: Instance, reason: str, *, by: str, now_us: int, into: Effects) -> None:
    """The wish goes on record, then the worker is told; a repeated one changes nothing."""
    if instance.cancel_requested_us is not None:
        return
    instance.cancel_requested_us = now_us
    into.batch.cancel_requests.append(
        RequestCancel(
            instance_id=instance.id,
            partition=instance.partition,
            expected_attempt=instance.attempt,
            requested_us=now_us,
            reason=reason,
        )
    )
    row = _row(instance, HistoryKind.CANCEL_REQUESTED, f"cancel requested: {reason}", now_us=now_us)
    row.by = by
    into.batch.history.append(row)
    into.cancel_signals.append(
        CancelSignal(
            instance_id=instance.id,
            partition=instance.partition,
            attempt_id=instance.attempt_id,
            worker_id=instance.worker_id,
            reason=reason,
        )
    )


def admit(
    instance: Instance, task: TaskRow, *, earlier: Sequence[Instance], now_us: int, into: Effects
) -> bool:
    """Apply the overlap rule that a task sets to a submission, when its owner first sees it.

    `earlier` are the task's other live instances that came before it. True when it may be placed now.
    """
    mode = task.definition.overlap
    if mode is None or mode == "allow":
        return True
    live = LiveTask(known={other.id: other for other in earlier})
    decision = decide_overlap(mode, live=live.views(), queue_bound=task.definition.queue_bound)
    if decision.action == "skip":
        end_waiting(instance, State.SKIPPED, sentence=decision.reason, now_us=now_us, into=into)
        return False
    _cancel_replaced(decision, live, instance.id, now_us=now_us, into=into)
    if decision.action == "wait":
        hold(instance, Hold.OVERLAP, reason=decision.reason, into=into)
        return False
    return True
