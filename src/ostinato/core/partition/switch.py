"""A new version of a definition comes into force: its triggers replace the old ones.

What was due under the old version up to the edit's commit is fired first, under the old version; then the
triggers are switched. A trigger whose schedule is unchanged keeps its next and last fire, so that saving a
task neither drops a fire that is due nor repeats one; a new one starts after the edit (design section 5).
"""

from __future__ import annotations

from ostinato.core.changes import SwitchVersion, TriggerAdvance, TriggerRow
from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.partition.effects import Effects
from ostinato.core.schedule.trigger import next_fire, trigger_id


def overdue_before_edit(triggers: list[TriggerRow], *, edited_us: int) -> list[TriggerRow]:
    """Triggers in force that had a fire due when the edit was committed: fire them first."""
    return [trigger for trigger in triggers if trigger.next_us is not None and trigger.next_us <= edited_us]


def switch_version(
    definition: TaskDefinition,
    *,
    version: int,
    partition: int,
    in_force: list[TriggerRow],
    edited_us: int,
    into: Effects,
) -> None:
    """Put the triggers of `definition` in force. `in_force` are the old ones, after the fires due before."""
    old = {trigger.id: trigger for trigger in in_force}
    rows: dict[str, TriggerRow] = {}
    for spec in definition.triggers:
        identity = trigger_id(definition.namespace, definition.name, spec)
        kept = old.get(identity)
        created_us = kept.created_us if kept is not None else edited_us
        rows[identity] = TriggerRow(
            id=identity,
            namespace=definition.namespace,
            task=definition.name,
            partition=partition,
            task_version=version,
            spec=spec,
            created_us=created_us,
            next_us=(
                kept.next_us
                if kept is not None
                else next_fire(spec, edited_us, created_us=created_us, spread_key=str(definition.ref))
            ),
            last_us=kept.last_us if kept is not None else None,
        )
    into.batch.switches.append(
        SwitchVersion(
            namespace=definition.namespace,
            task=definition.name,
            partition=partition,
            version=version,
            triggers=list(rows.values()),
        )
    )


def skip_to_now(ref: TaskRef, triggers: list[TriggerRow], *, now_us: int, into: Effects) -> None:
    """After a pause: the next fire of each trigger is the first after now; the past is not fired again."""
    for trigger in triggers:
        if trigger.next_us is None or trigger.next_us > now_us:
            continue
        into.batch.advances.append(
            TriggerAdvance(
                trigger_id=trigger.id,
                partition=trigger.partition,
                expected_next_us=trigger.next_us,
                next_us=next_fire(trigger.spec, now_us, created_us=trigger.created_us, spread_key=str(ref)),
                last_us=trigger.last_us,
            )
        )
