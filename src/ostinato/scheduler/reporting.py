"""Committed effects as records for logs and metrics."""

from __future__ import annotations

from ostinato.core.partition.effects import Effects, EndedAttempt
from ostinato.core.states import TERMINAL_STATES
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import (
    AttemptAssigned,
    AttemptEnded,
    Fired,
    FireSkipped,
    InstanceEnded,
    ResultRefused,
    RetryDecided,
)


def report_effects(hooks: Hooks, effects: Effects, *, dropped: frozenset[str]) -> None:
    """Emit what was written; rows in `dropped` were not."""
    for attempt in effects.started:
        if attempt.instance_id not in dropped:
            hooks.emit(
                AttemptAssigned(
                    namespace=attempt.definition.namespace,
                    task=attempt.definition.name,
                    instance_id=attempt.instance_id,
                    attempt=attempt.attempt,
                    retry_count=attempt.counters.failures,
                    worker_name=attempt.worker_name,
                    queue_wait_us=max(0, attempt.assigned_us - attempt.due_us),
                )
            )
    for ended in effects.ended:
        if ended.instance_id not in dropped:
            _report_ended(hooks, ended)
    for waiting in effects.ended_waiting:
        if waiting.instance_id not in dropped:
            hooks.emit(
                InstanceEnded(
                    namespace=waiting.ref.namespace,
                    task=waiting.ref.name,
                    instance_id=waiting.instance_id,
                    attempt=waiting.attempt,
                    state=waiting.state,
                    reason=waiting.reason,
                )
            )
    _report_fires(hooks, effects, dropped=dropped)
    for refused in effects.refused:
        hooks.emit(
            ResultRefused(
                namespace=refused.ref.namespace,
                task=refused.ref.name,
                instance_id=refused.instance_id,
                attempt=refused.attempt,
                attempt_id=refused.attempt_id,
                reason=refused.reason,
            )
        )


def _report_ended(hooks: Hooks, ended: EndedAttempt) -> None:
    failure = ended.failure
    namespace, task = ended.ref.namespace, ended.ref.name
    hooks.emit(
        AttemptEnded(
            namespace=namespace,
            task=task,
            instance_id=ended.instance_id,
            attempt=ended.attempt,
            retry_count=ended.retry_count,
            outcome=ended.outcome,
            worker_name=ended.worker_name,
            run_us=ended.run_us,
            error_code=failure.code if failure is not None else "",
            error_message=failure.message if failure is not None else "",
            category=failure.category if failure is not None else "",
        )
    )
    if failure is not None:
        hooks.emit(
            RetryDecided(
                namespace=namespace,
                task=task,
                instance_id=ended.instance_id,
                attempt=ended.attempt,
                retry_count=ended.retry_count,
                rule=ended.rule,
                sentence=ended.sentence,
                due_us=ended.due_us,
                error_code=failure.code,
            )
        )
    if ended.state in TERMINAL_STATES:
        hooks.emit(
            InstanceEnded(
                namespace=namespace,
                task=task,
                instance_id=ended.instance_id,
                attempt=ended.attempt,
                retry_count=ended.retry_count,
                state=ended.state,
                reason=ended.sentence,
                error_code=failure.code if failure is not None else "",
            )
        )


def _report_fires(hooks: Hooks, effects: Effects, *, dropped: frozenset[str]) -> None:
    for fired in effects.fired:
        if fired.instance_id in dropped:
            continue
        if fired.skipped_reason:
            hooks.emit(
                FireSkipped(
                    namespace=fired.ref.namespace,
                    task=fired.ref.name,
                    trigger_id=fired.trigger_id,
                    count=1,
                    reason=fired.skipped_reason,
                )
            )
            continue
        hooks.emit(
            Fired(
                namespace=fired.ref.namespace,
                task=fired.ref.name,
                instance_id=fired.instance_id,
                trigger_id=fired.trigger_id,
                fire_us=fired.fire_us,
                lateness_us=fired.lateness_us,
            )
        )
