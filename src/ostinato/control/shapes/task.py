"""A task as it is shown: its definition in the words of ``tasks.yaml``, its flags, its triggers in force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ostinato.control.document.write import task_document
from ostinato.control.shapes.text import instant
from ostinato.core.definition import TaskRow
from ostinato.core.retry.policy import policy_to_dict
from ostinato.core.schedule.trigger import describe_trigger
from ostinato.store.batches import TriggerRow


class TriggerShape(msgspec.Struct, kw_only=True):
    """A trigger in force."""

    id: str
    #: One line for people.
    schedule: str
    next: str | None
    last: str | None


class TaskShape(msgspec.Struct, kw_only=True):
    """A task, its newest version."""

    namespace: str
    name: str
    version: int
    #: Version whose triggers are in force; lags `version` until the owner has switched.
    scheduled_version: int
    #: ``app`` (declared in code) or ``document`` (applied from a file or by REST).
    origin: str
    paused: bool
    disabled: bool
    created: str | None
    updated: str | None
    #: The policy with every default filled in.
    retry: dict[str, Any]
    triggers: list[TriggerShape]
    #: As an entry of ``tasks.yaml``; defaults are left out.
    definition: dict[str, Any]


def task_shape(row: TaskRow, triggers: Sequence[TriggerRow]) -> TaskShape:
    """The task with its triggers in force, earliest next fire first."""
    return TaskShape(
        namespace=row.ref.namespace,
        name=row.ref.name,
        version=row.version,
        scheduled_version=row.scheduled_version,
        origin=row.origin,
        paused=row.paused,
        disabled=row.disabled,
        created=instant(row.created_us),
        updated=instant(row.updated_us),
        retry=policy_to_dict(row.definition.retry),
        triggers=[
            TriggerShape(
                id=trigger.id,
                schedule=describe_trigger(trigger.spec),
                next=instant(trigger.next_us),
                last=instant(trigger.last_us),
            )
            for trigger in triggers
        ],
        definition=task_document(row.definition),
    )
