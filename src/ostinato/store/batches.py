"""What crosses the ``Store`` protocol: lists of facts in, lists of facts out.

The rows of an owner's transaction are made by the core and stand in ``core.changes``; here they are named
again, so that an adapter has everything in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from ostinato.core.changes import (
    Assign,
    CommitBatch,
    CommitReport,
    DeleteTask,
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
from ostinato.core.partition.standing import Standing
from ostinato.core.states import Hold, State

__all__ = [
    "ApplyReceipt",
    "Assign",
    "ChangedTask",
    "CommitBatch",
    "CommitReport",
    "DatabaseFacts",
    "DeleteTask",
    "EndAttempt",
    "EndWaiting",
    "FoundTriggers",
    "FoundWork",
    "HeldQuery",
    "HoldWaiting",
    "InstanceCounts",
    "InstanceFilter",
    "InstancePage",
    "NodeRow",
    "NodesSeen",
    "Proof",
    "Replay",
    "Request",
    "RequestAnswer",
    "RequestCancel",
    "RequestKind",
    "SetTaskFlags",
    "StoreCounters",
    "Submission",
    "SubmitReceipt",
    "Success",
    "SwitchVersion",
    "TaskChange",
    "TriggerAdvance",
    "TriggerRow",
    "WorkerRow",
    "WorkerState",
]


class NodeRow(msgspec.Struct, frozen=True):
    """One live scheduler node; its counter rises with every renewal."""

    id: str
    renewals: int
    #: Where workers reach it.
    address: str
    started_us: int
    #: Name of the session lock that it holds; empty: it has none, and its counter alone tells that it lives.
    session: str = ""
    #: Whether workers reach it, as it has last said itself.
    standing: Standing = ""


class NodesSeen(msgspec.Struct, frozen=True):
    """The nodes as one look finds them."""

    #: By id.
    nodes: tuple[NodeRow, ...]
    #: Ids of those whose session lock this very session of the database has seen held, and now finds free.
    freed: frozenset[str] = frozenset()


class StoreCounters(msgspec.Struct, frozen=True):
    """What an adapter has had to do again since it was made; what then failed was told as an error."""

    #: Transactions that were repeated, by cause: ``deadlock``, ``serialization``, ``lock_timeout``, ``lost``.
    repeats: Mapping[str, int] = {}
    #: Connections that listened for announcements, were lost, and were replaced.
    listener_losses: int = 0


WorkerState: TypeAlias = Literal["connected", "draining", "gone"]


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One worker as one node knows it; unique by (worker id, node id). For people, never for decisions."""

    worker_id: str
    worker_name: str
    node_id: str
    state: WorkerState
    labels: dict[str, str] = {}
    #: Slots by pool (``process``, ``async``).
    capacity: dict[str, int] = {}
    #: Attempts that this node has running there.
    running_count: int = 0
    #: Python tasks that it can run, as ``namespace/name``, and the kinds of executor that it has.
    tasks: list[str] = []
    executors: list[str] = []
    #: Task modules that it could not import, each with the reason.
    problems: list[str] = []
    protocol: int = 0
    connected_us: int = 0
    #: When the node last recorded it.
    seen_us: int = 0


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
    #: Earliest due time of unheld waiting rows after now, or an earlier instant at which the store wants to
    #: look again; None when there is none.
    next_due_us: int | None


class WaitingTasks(msgspec.Struct):
    """Tasks of which work waits in the queue, of those that were looked at."""

    refs: list[TaskRef]
    #: The first one that was not looked at; None: there are no more.
    next_ref: TaskRef | None


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
    #: ``created``, ``changed``, ``unchanged``, or ``conflict``: `version` is not the expected one.
    outcome: Literal["created", "changed", "unchanged", "conflict"]


class InstanceFilter(msgspec.Struct, frozen=True):
    """Which instances to list; None and empty match all."""

    namespace: str | None = None
    task: str | None = None
    states: tuple[State, ...] = ()
    key: str | None = None
    #: Code of the newest failure.
    code: str | None = None
    #: Created at or after, and before.
    created_from_us: int | None = None
    created_before_us: int | None = None


class InstancePage(msgspec.Struct):
    """Newest first. `cursor` continues the list; None at its end.

    A page may hold fewer than asked for, even none, and still have a cursor: one call looks at a bounded
    number of rows.
    """

    instances: list[Instance]
    cursor: str | None


class InstanceCounts(msgspec.Struct):
    """Number of instances by state, states without any left out."""

    by_state: dict[str, int]
    #: False: there are more; counting ended at its bound.
    exact: bool = True


class DatabaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What can be said about the file of a database without changing it; see ``store.sqlite.check``."""

    path: str
    exists: bool
    #: Revision of the stored schema; empty: none, or it cannot be read.
    revision: str = ""
    schema: Literal["none", "older", "current", "newer"] = "none"
    #: ``unfinished``: nothing was found until the deadline. ``unknown``: the file cannot be read.
    integrity: Literal["ok", "corrupt", "unfinished", "unknown"] = "unknown"
    #: What is wrong, for people: why it cannot be read, or what the check of its integrity found first.
    problems: tuple[str, ...] = ()
    #: With the log that belongs to it.
    size_bytes: int = 0
    page_bytes: int = 0
    free_page_count: int = 0
    journal_mode: str = ""
    #: Whether file and folder can be written by this user.
    is_writable: bool = False
    disk_free_bytes: int = 0
    row_counts: dict[str, int] = {}
    #: Tables with more rows than `row_counts` says: counting ended at its bound.
    uncounted: tuple[str, ...] = ()
