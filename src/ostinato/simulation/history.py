"""What really happened in a run, for an observer who sees every process and the database at once.

Everything is told at the moment at which it happens, in one order, by whoever makes it happen: the simulated
database at each commit, the simulated worker at each start and end of user code, the client at each answer
that it got, the driver of the faults. Times are true time of the run: microseconds since it began, of no
process's clock. Instants inside rows are those of the clocks that wrote them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from ostinato.core.definition import TaskRow
from ostinato.core.model import HistoryRow, Instance
from ostinato.observe.records import Record
from ostinato.store.batches import Proof, TriggerRow


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Base of everything that happens; `at_us` is true time."""

    at_us: int


# ── the database ──────────────────────────────────────────────────────────────────────────────────────


class RowCommitted(Event, frozen=True, kw_only=True):
    """An instance's row is in the database as `after`; None: it was deleted by retention.

    `before` is None for an insert. `proof` is what the writer proved, None for an insert by anyone. All rows
    of one transaction carry the same number, and no other transaction's lie between them.
    """

    transaction: int
    process: str
    proof: Proof | None
    before: Instance | None
    after: Instance | None


class HistoryCommitted(Event, frozen=True, kw_only=True):
    """A row of the history of an instance, written by the same transaction as its move."""

    transaction: int
    process: str
    row: HistoryRow


class OwnerCommitted(Event, frozen=True, kw_only=True):
    """A partition has another owner or epoch; an empty owner: nobody."""

    transaction: int
    process: str
    before: Proof
    after: Proof


class NodeRowCommitted(Event, frozen=True, kw_only=True):
    """The row of a node has come (True) or gone (False)."""

    transaction: int
    process: str
    node_id: str
    is_there: bool


class TaskCommitted(Event, frozen=True, kw_only=True):
    """A task is new (`before` None), has another version or flag, or was deleted (`after` None)."""

    transaction: int
    process: str
    before: TaskRow | None
    after: TaskRow | None


class TriggerCommitted(Event, frozen=True, kw_only=True):
    """A trigger has come into force (`before` None), moved on, or is no longer in force (`after` None)."""

    transaction: int
    process: str
    before: TriggerRow | None
    after: TriggerRow | None


class RequestCommitted(Event, frozen=True, kw_only=True):
    """A request was made, or (`answer_code` not empty) answered."""

    transaction: int
    process: str
    request_id: str
    kind: str
    instance_id: str = ""
    namespace: str = ""
    task: str = ""
    answer_code: str = ""


# ── workers ───────────────────────────────────────────────────────────────────────────────────────────


class ExecutionBegan(Event, frozen=True, kw_only=True):
    """User code of an attempt has begun. `machine` is where, `worker` the process that had it started."""

    machine: str
    worker: str
    namespace: str
    task: str
    instance_id: str
    attempt: int
    attempt_id: str
    partition: int
    is_strict: bool = True


class ExecutionEnded(Event, frozen=True, kw_only=True):
    """User code of an attempt has ended, by itself or because its process was ended."""

    attempt_id: str
    how: Literal["returned", "raised", "killed"]


# ── clients ───────────────────────────────────────────────────────────────────────────────────────────


class SubmissionAnswered(Event, frozen=True, kw_only=True):
    """A client has been told that its submission was accepted (I2 counts from here), or why not.

    An `error_code` of an ambiguous answer leaves open whether it was written. `asked_us` is when it was first
    sent, and `chosen_id` the id that it asked for, where both are known.
    """

    process: str
    instance_id: str
    task: str
    key: str = ""
    error_code: str = ""
    asked_us: int | None = None
    chosen_id: str = ""


class RequestAnswered(Event, frozen=True, kw_only=True):
    """A client has read the answer to its request."""

    process: str
    request_id: str
    kind: str
    instance_id: str
    answer_code: str


# ── the run ───────────────────────────────────────────────────────────────────────────────────────────


class Fault(Event, frozen=True, kw_only=True):
    """Something was broken (`ends` False) or mended (True). `kind`: a word of docs/simulation.md's table."""

    kind: str
    target: str
    detail: str = ""
    ends: bool = False


class Phase(Event, frozen=True, kw_only=True):
    """The run has entered a phase; after ``healed`` nothing is broken any more."""

    name: Literal["safety", "healed", "ended"]


class Tick(Event, frozen=True, kw_only=True):
    """About a second of the healed phase has gone by: checkers of what must end in time look now."""


class Observed(Event, frozen=True, kw_only=True):
    """A process has handed a record to its hooks."""

    process: str
    record: Record


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A checker says that what must hold does not. `at_us`: when it was seen, in true time."""

    invariant: str
    at_us: int
    subject: str
    sentence: str


Listener = Callable[[Event], None]


class History:
    """Hands each event to every listener, in the order in which they happen. Keeps nothing itself."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        """`now_us` is true time."""
        self.now_us = now_us
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def add(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)
