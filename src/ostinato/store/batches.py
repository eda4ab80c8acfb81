"""What crosses the ``Store`` protocol: lists of facts in, lists of facts out.

The rows of an owner's transaction are made by the core and stand in ``core.changes``; here they are named
again, so that an adapter has everything in one place.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ostinato.core.changes import (
    Assign,
    CommitBatch,
    CommitReport,
    EndAttempt,
    EndWaiting,
    HoldWaiting,
    Proof,
    Replay,
    Request,
    RequestAnswer,
    RequestCancel,
    RequestKind,
    SetTaskFlags,
    Success,
    SwitchVersion,
    TriggerAdvance,
    TriggerRow,
)
from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.model import Instance
from ostinato.core.states import Hold, State

__all__ = [
    "ApplyReceipt",
    "Assign",
    "ChangedTask",
    "CommitBatch",
    "CommitReport",
    "EndAttempt",
    "EndWaiting",
    "FoundTriggers",
    "FoundWork",
    "HeldQuery",
    "HoldWaiting",
    "InstanceFilter",
    "InstancePage",
    "NodeRow",
    "Proof",
    "Replay",
    "Request",
    "RequestAnswer",
    "RequestCancel",
    "RequestKind",
    "SetTaskFlags",
    "Submission",
    "SubmitReceipt",
    "Success",
    "SwitchVersion",
    "TaskChange",
    "TriggerAdvance",
    "TriggerRow",
]


class NodeRow(msgspec.Struct, frozen=True):
    """One live scheduler node; its counter rises with every renewal."""

    id: str
    renewals: int
    address: str
    started_us: int


# ── reads of an owner ─────────────────────────────────────────────────────────────────────────────────


class HeldQuery(msgspec.Struct, frozen=True):
    """Held work of one task whose cause may have ended."""

    ref: TaskRef
    holds: tuple[Hold, ...]
    limit: int


class FoundWork(msgspec.Struct):
    """Waiting instances that are due, oldest first within a priority, and when to look again."""

    instances: list[Instance]
    #: The unheld queue held more due rows than were asked for.
    more: bool
    #: Earliest due time of unheld waiting rows after now; None when there is none.
    next_due_us: int | None


class FoundTriggers(msgspec.Struct):
    """Triggers that are due, earliest first, and the earliest later one."""

    triggers: list[TriggerRow]
    more: bool
    next_us: int | None


class ChangedTask(msgspec.Struct):
    """A task whose newest version is not in force yet, with the triggers that are."""

    task: TaskChange
    triggers: list[TriggerRow]


class TaskChange(msgspec.Struct, frozen=True):
    """The newest definition and when it was committed."""

    definition: TaskDefinition
    version: int
    partition: int
    disabled: bool
    updated_us: int


# ── anyone's writes and reads ─────────────────────────────────────────────────────────────────────────


class Submission(msgspec.Struct, kw_only=True):
    """A new instance that anyone may insert (I5), with its idempotency key."""

    instance: Instance
    #: Empty: no key.
    key: str = ""
    #: Hash of what was asked, to tell a repeat from a conflict.
    request_hash: str = ""
    key_expires_us: int = 0


class SubmitReceipt(msgspec.Struct, frozen=True):
    """Answer to one submission, in the order given."""

    instance_id: str
    created: bool
    #: The live key belongs to an instance with another request hash; `instance_id` names it.
    conflict: bool = False


class ApplyReceipt(msgspec.Struct, frozen=True):
    """Answer to one applied definition."""

    ref: TaskRef
    version: int
    #: ``created``, ``changed`` or ``unchanged``.
    outcome: Literal["created", "changed", "unchanged"]


class InstanceFilter(msgspec.Struct, frozen=True):
    """Which instances to list; None and empty match all."""

    namespace: str | None = None
    task: str | None = None
    states: tuple[State, ...] = ()
    key: str | None = None


class InstancePage(msgspec.Struct):
    """Newest first. `cursor` continues the list; None at its end."""

    instances: list[Instance]
    cursor: str | None
