"""Instances, outcomes and rows of the history, as they travel between core, store and wire."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ostinato.core.definition import TaskRef
from ostinato.core.failure.failure import Failure
from ostinato.core.retry.counters import Counters
from ostinato.core.states import Hold, State


class Instance(msgspec.Struct, kw_only=True):
    """One run of a task: the whole row. Times ``*_us`` are UTC instants, None where it has not happened."""

    id: str
    namespace: str
    task: str
    task_version: int
    partition: int
    state: State
    priority: int
    #: Not to be started before (I4); a retry moves it.
    due_us: int
    created_us: int
    payload: bytes = b"{}"
    #: Starts at 1; a replay begins the next (I7).
    generation: int = 1
    #: Number of the newest attempt, 0 before the first; only ever rises.
    attempt: int = 0
    attempt_id: str = ""
    worker_id: str = ""
    worker_name: str = ""
    counters: Counters = Counters()
    hold: Hold | None = None
    #: Why it is in this state, in words; empty on the uneventful path.
    reason: str = ""
    #: It fails if no attempt has started by then (queue time-out or retry window).
    expires_us: int | None = None
    fire_trigger: str = ""
    #: Scheduled instant of the fire that made it.
    fire_us: int | None = None
    shard: int = 0
    shard_total: int = 1
    key: str = ""
    assigned_us: int | None = None
    started_us: int | None = None
    finished_us: int | None = None
    cancel_requested_us: int | None = None
    cancel_reason: str = ""
    #: JSON.
    result: bytes | None = None
    #: Failure of the newest failed attempt.
    failure: Failure | None = None

    @property
    def ref(self) -> TaskRef:
        return TaskRef(self.namespace, self.task)

    @property
    def running_since_us(self) -> int | None:
        """Start of the attempt that runs, or its assignment while only that is known; None if none runs."""
        if self.state is not State.RUNNING:
            return None
        return self.assigned_us if self.started_us is None else self.started_us


class Outcome(msgspec.Struct, kw_only=True):
    """How one attempt ended, as its worker reports it; named by instance, attempt and attempt id (I6)."""

    instance_id: str
    attempt: int
    attempt_id: str
    started_us: int | None
    finished_us: int
    #: JSON of the returned value; None when it failed.
    result: bytes | None = None
    failure: Failure | None = None
    #: It never ran: refused, or handed back by a drain. Counts nothing.
    unstarted_reason: str = ""
    #: Of the instance, where its worker knows it: tells whom to send it to. It is not sent itself.
    partition: int | None = None


class HistoryKind(StrEnum):
    """What a row of the history tells. The uneventful path leaves none.

    An attempt that ends badly leaves one row, which holds its failure and the decision taken on it:
    ``retry``, ``gave_up``, ``refused``, ``handed_back`` or ``cancelled``.
    """

    RETRY = "retry"
    GAVE_UP = "gave_up"
    REFUSED = "refused"
    HANDED_BACK = "handed_back"
    LATE_RESULT = "late_result"
    EXPIRED = "expired"
    SKIPPED = "skipped"
    MISFIRE = "misfire"
    CANCEL_REQUESTED = "cancel_requested"
    CANCELLED = "cancelled"
    REPLAYED = "replayed"
    ADOPTED = "adopted"


class HistoryRow(msgspec.Struct, kw_only=True):
    """One fact about an instance, with its cause in words."""

    instance_id: str
    partition: int
    at_us: int
    kind: HistoryKind
    sentence: str
    generation: int = 1
    attempt: int = 0
    attempt_id: str = ""
    worker_name: str = ""
    #: Of the failure, where there is one.
    code: str = ""
    category: str = ""
    failure: Failure | None = None
    started_us: int | None = None
    #: Next due time that a decision set.
    due_us: int | None = None
    #: Who asked, for a person's act.
    by: str = ""
    #: Written even when the move of the same instance in this batch matched nothing.
    unconditional: bool = False


class OutputChunk(msgspec.Struct, kw_only=True):
    """A run of lines that an attempt wrote, in order of `sequence` within the attempt."""

    instance_id: str
    attempt: int
    attempt_id: str
    sequence: int
    at_us: int
    #: ``stdout``, ``stderr`` or ``log``.
    stream: str
    text: str
