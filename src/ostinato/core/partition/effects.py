"""What one step wants done: rows for one transaction, and what follows once they are committed."""

from __future__ import annotations

import msgspec

from ostinato.core.changes import CommitBatch
from ostinato.core.definition import TaskRef
from ostinato.core.failure.failure import Failure
from ostinato.core.partition.running import RunningAttempt
from ostinato.core.states import State


class EndedAttempt(msgspec.Struct, kw_only=True):
    """An attempt that this batch ends, for memory, acknowledgement and observation."""

    instance_id: str
    partition: int
    ref: TaskRef
    attempt: int
    attempt_id: str
    worker_id: str
    worker_name: str
    #: ``success``, ``failed``, ``lost``, ``cancelled`` or ``unstarted``.
    outcome: str
    state: State
    retry_count: int
    run_us: int | None = None
    failure: Failure | None = None
    #: Short stable name of what decided, its sentence, and the next due time.
    rule: str = ""
    sentence: str = ""
    due_us: int | None = None


class CancelSignal(msgspec.Struct, frozen=True):
    """Tell the worker to end an attempt, once the wish is on record."""

    instance_id: str
    partition: int
    attempt_id: str
    worker_id: str
    reason: str


class EndedWaiting(msgspec.Struct, frozen=True):
    """An instance that ends without an attempt, for observation."""

    instance_id: str
    partition: int
    ref: TaskRef
    attempt: int
    state: State
    reason: str


class FiredInstance(msgspec.Struct, frozen=True):
    """An instance that a trigger has made, for observation."""

    instance_id: str
    partition: int
    ref: TaskRef
    trigger_id: str
    fire_us: int
    lateness_us: int
    #: Empty when it may run; else why it was born ``skipped``.
    skipped_reason: str = ""


class RefusedOutcome(msgspec.Struct, frozen=True):
    """An outcome that does not count (I6)."""

    instance_id: str
    partition: int
    ref: TaskRef
    attempt: int
    attempt_id: str
    reason: str


class Effects(msgspec.Struct):
    """Everything that one step wants."""

    batch: CommitBatch = msgspec.field(default_factory=CommitBatch)
    started: list[RunningAttempt] = []
    ended: list[EndedAttempt] = []
    cancel_signals: list[CancelSignal] = []
    ended_waiting: list[EndedWaiting] = []
    fired: list[FiredInstance] = []
    refused: list[RefusedOutcome] = []

    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not any(getattr(self.batch, field) for field in self.batch.__struct_fields__)
