"""What an owner wants changed: moves of instances, triggers, flags and answers, as rows of one transaction.

Every row that moves state names its partition, and the state and attempt that it expects to find; it is
written only where both still hold. ``core.partition`` makes these rows, the stores write them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ostinato.core.definition import TaskRef
from ostinato.core.failure.failure import Failure
from ostinato.core.model import HistoryRow, Instance
from ostinato.core.retry.counters import Counters
from ostinato.core.schedule.trigger import Trigger
from ostinato.core.states import Hold, State


class Proof(msgspec.Struct, frozen=True):
    """The writer's claim to a partition: its rows are refused unless owner and epoch still hold (I5)."""

    partition: int
    owner: str
    epoch: int


# ── moves of instances ────────────────────────────────────────────────────────────────────────────────


class Assign(msgspec.Struct):
    """waiting → running: the next attempt belongs to a worker. Clears the hold."""

    instance_id: str
    partition: int
    expected_state: State
    #: Attempt number before this one.
    expected_attempt: int
    attempt_id: str
    worker_id: str
    worker_name: str
    assigned_us: int
    #: The instance is known by a hint alone: the report of the commit is to say its payload. Only in a batch
    #: that has nothing but assignments.
    wants_payload: bool = False


class Success(msgspec.Struct):
    """running → success."""

    instance_id: str
    partition: int
    expected_attempt: int
    attempt_id: str
    started_us: int | None
    finished_us: int
    result: bytes | None


class EndAttempt(msgspec.Struct, kw_only=True):
    """running → retry_waiting | failed | cancelled: an attempt ended other than well.

    Where a wish to cancel is on record only ``cancelled`` matches: an owner that decided without knowing of
    the wish must decide again (design section 11, Cancel).
    """

    instance_id: str
    partition: int
    expected_attempt: int
    attempt_id: str
    state: State
    reason: str
    counters: Counters
    #: Of the next attempt; ignored for a terminal state.
    due_us: int
    expires_us: int | None
    started_us: int | None
    #: Set for a terminal state.
    finished_us: int | None
    #: None leaves the stored one (an attempt refused unstarted is no failure).
    failure: Failure | None


class HoldWaiting(msgspec.Struct):
    """Stays waiting, leaves the queue: says why a due instance does not start."""

    instance_id: str
    partition: int
    expected_state: State
    expected_attempt: int
    hold: Hold
    reason: str


class EndWaiting(msgspec.Struct):
    """waiting or blocked → failed | cancelled | skipped, without an attempt."""

    instance_id: str
    partition: int
    expected_state: State
    expected_attempt: int
    state: State
    reason: str
    finished_us: int
    failure: Failure | None = None


class RequestCancel(msgspec.Struct):
    """running stays running, with the wish to cancel on record."""

    instance_id: str
    partition: int
    expected_attempt: int
    requested_us: int
    reason: str


class Replay(msgspec.Struct):
    """terminal → pending: the next generation, fresh counters; clears result, failure, cancel and hold."""

    instance_id: str
    partition: int
    expected_state: State
    expected_generation: int
    task_version: int
    payload: bytes
    due_us: int
    expires_us: int | None
    reason: str


# ── triggers, flags, requests ─────────────────────────────────────────────────────────────────────────


class TriggerRow(msgspec.Struct, frozen=True):
    """A trigger in force. Owned by its partition; `next_us` is None when there is no further fire."""

    id: str
    namespace: str
    task: str
    partition: int
    task_version: int
    spec: Trigger
    #: Anchor of intervals where the spec names none: when the trigger came into force first.
    created_us: int
    next_us: int | None
    last_us: int | None = None

    @property
    def ref(self) -> TaskRef:
        return TaskRef(self.namespace, self.task)


class TriggerAdvance(msgspec.Struct):
    """The trigger has fired or skipped everything up to `next_us`; in one transaction with the instances."""

    trigger_id: str
    partition: int
    expected_next_us: int | None
    next_us: int | None
    last_us: int | None


class SwitchVersion(msgspec.Struct):
    """The owner puts the triggers of `version` in force: rows not listed are deleted, others upserted."""

    namespace: str
    task: str
    partition: int
    version: int
    triggers: list[TriggerRow]


class SetTaskFlags(msgspec.Struct):
    """Pause, resume, disable: None leaves a flag as it is."""

    namespace: str
    task: str
    partition: int
    paused: bool | None = None
    disabled: bool | None = None


class DeleteTask(msgspec.Struct):
    """Delete a task, its triggers and its idempotency keys; its definitions stay for those that pin them."""

    namespace: str
    task: str
    partition: int


RequestKind = Literal["cancel", "replay", "pause", "resume", "disable", "enable", "delete", "drain"]


class Request(msgspec.Struct, kw_only=True, frozen=True):
    """Something a person or program asks of the owner (I5). Idempotent by id."""

    id: str
    partition: int
    kind: RequestKind
    namespace: str
    created_us: int
    task: str = ""
    instance_id: str = ""
    #: JSON object of further arguments, such as ``{"reason": …}`` or ``{"latest": true}``.
    body: bytes = b"{}"
    by: str = ""


class RequestAnswer(msgspec.Struct, frozen=True):
    """The owner's answer: ``code`` is ``OK`` or a code of ``ostinato.errors.CODES``."""

    request_id: str
    partition: int
    code: str
    message: str
    #: Instance made or moved by the request.
    instance_id: str = ""
    answered_us: int = 0


# ── one transaction of an owner ───────────────────────────────────────────────────────────────────────


class CommitBatch(msgspec.Struct):
    """Everything one owner wants written in one transaction.

    At most one move per instance. `history` rows of an instance whose move matched nothing are dropped
    unless ``unconditional``. `inserts` are new instances of fires: one whose (trigger, instant, shard)
    exists is left out (I8). `advances` that find another `next_us` are left out together with the inserts
    and history rows of that trigger's fires.
    """

    proofs: list[Proof] = []
    assigns: list[Assign] = []
    successes: list[Success] = []
    ended_attempts: list[EndAttempt] = []
    holds: list[HoldWaiting] = []
    ended_waiting: list[EndWaiting] = []
    cancel_requests: list[RequestCancel] = []
    replays: list[Replay] = []
    inserts: list[Instance] = []
    advances: list[TriggerAdvance] = []
    switches: list[SwitchVersion] = []
    flags: list[SetTaskFlags] = []
    deletions: list[DeleteTask] = []
    history: list[HistoryRow] = []
    answers: list[RequestAnswer] = []


class CommitReport(msgspec.Struct):
    """What of a batch was not written. All empty: everything was."""

    #: Partitions whose proof failed: none of their rows were written.
    lost_partitions: frozenset[int] = frozenset()
    #: Instances whose row was not in the expected state and attempt, or whose fire exists already.
    unmatched: frozenset[str] = frozenset()
    #: Instances whose row the database refused as data, with its safe message.
    rejected: dict[str, str] = {}
    #: Of the assigned instances whose `Assign` wants it.
    payloads: dict[str, bytes] = {}
