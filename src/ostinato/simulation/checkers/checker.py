"""What every checker is: it is told events, and says what they violate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Protocol

import msgspec

from ostinato.core.changes import Proof
from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.model import HistoryRow, Instance
from ostinato.simulation.history import (
    Event,
    NodeRowCommitted,
    OwnerCommitted,
    RequestCommitted,
    RowCommitted,
    TaskCommitted,
    TriggerCommitted,
    Violation,
)

Report = Callable[[Violation], None]


class Known(Protocol):
    """What a checker may know of the cluster beside its history."""

    @property
    def ownership_lease_us(self) -> int: ...

    @property
    def worker_lease_us(self) -> int: ...

    @property
    def time_tolerance_us(self) -> int:
        """How far a node's idea of the shared time may be from the database's."""
        ...

    def shared_us(self, at_us: int) -> int:
        """The database's time at a true time that is hardly past."""
        ...

    def believed_us(self, at_us: int) -> tuple[int, int]:
        """Between which times a node may lawfully be at a true time that is hardly past.

        Both are the database's time, but for a clock that has just jumped: nodes hear of that as they ask.
        """
        ...

    @property
    def has_session_locks(self) -> bool:
        """Whether a node may be found gone by its lock, and not by its counter alone."""
        ...

    def believed(self) -> Iterable[Proof]:
        """What each node that lives decides about at this moment, by its own belief."""
        ...

    @property
    def slot_count(self) -> int:
        """Slots of each pool of a worker."""
        ...

    def labels_of(self, worker_name: str) -> Mapping[str, str]:
        """What a worker carries; nothing where it is not known."""
        ...

    @property
    def key_lifetime_us(self) -> int:
        """How long an idempotency key lives from the creation of its instance."""
        ...

    def definition(self, ref: TaskRef, version: int) -> TaskDefinition | None:
        """A version of a task as it was committed."""
        ...


class Transaction(Event, frozen=True, kw_only=True):
    """Everything that one transaction has committed; told when it is complete, in place of its parts."""

    number: int
    process: str
    rows: list[RowCommitted] = msgspec.field(default_factory=list)
    history: list[HistoryRow] = msgspec.field(default_factory=list)
    owners: list[OwnerCommitted] = msgspec.field(default_factory=list)
    nodes: list[NodeRowCommitted] = msgspec.field(default_factory=list)
    tasks: list[TaskCommitted] = msgspec.field(default_factory=list)
    triggers: list[TriggerCommitted] = msgspec.field(default_factory=list)
    requests: list[RequestCommitted] = msgspec.field(default_factory=list)

    def told_of(self, instance_id: str) -> list[HistoryRow]:
        """Rows of the history of an instance, by this transaction."""
        return [row for row in self.history if row.instance_id == instance_id]


class Checker:
    """Base of all; each costs about the same per event, however long the run is."""

    #: Of the design, or a word where it has no number.
    invariant: ClassVar[str]
    #: It is told these alone.
    listens: ClassVar[tuple[type[Event], ...]]

    def __init__(self, known: Known, report: Report) -> None:
        self.known = known
        self._report = report

    def on(self, event: Event) -> None:
        """Something has happened."""
        raise NotImplementedError

    def finish(self, at_us: int) -> None:
        """The run is over; what should have happened by now is said here."""

    def violate(self, at_us: int, subject: str, sentence: str) -> None:
        self._report(Violation(invariant=self.invariant, at_us=at_us, subject=subject, sentence=sentence))


def changed(row: RowCommitted) -> tuple[Instance, Instance] | None:
    """Before and after of a row that was there and stays; None for an insert and a deletion."""
    if row.before is None or row.after is None:
        return None
    return row.before, row.after
