"""A run told to people: one line an event, in order, and the essence of it around what went wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ostinato.core.changes import TriggerRow
from ostinato.core.definition import TaskRow
from ostinato.core.instants import format_instant
from ostinato.core.model import Instance
from ostinato.simulation.history import (
    Event,
    ExecutionBegan,
    ExecutionEnded,
    Fault,
    HistoryCommitted,
    NodeRowCommitted,
    Observed,
    OwnerCommitted,
    Phase,
    RequestAnswered,
    RequestCommitted,
    RowCommitted,
    SubmissionAnswered,
    TaskCommitted,
    Tick,
    TriggerCommitted,
    Violation,
)


class Trace:
    """A listener that keeps every event; give it to ``History.listen`` before the run."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Tick):
            self.events.append(event)

    def lines(self) -> Iterable[str]:
        """The whole run."""
        return (line_of(event) for event in self.events)

    def essence(self, violations: Sequence[Violation]) -> list[str]:
        """What concerns the subjects of the violations, with faults and changes of owners between."""
        subjects = {violation.subject for violation in violations}
        attempts = {
            event.attempt_id
            for event in self.events
            if isinstance(event, ExecutionBegan) and event.instance_id in subjects
        }
        partitions = {
            event.after.partition
            for event in self.events
            if isinstance(event, RowCommitted) and event.after is not None and event.after.id in subjects
        }
        found: list[str] = []
        for event in self.events:
            if _concerns(event, subjects=subjects, attempts=attempts, partitions=partitions):
                found.append(line_of(event))
        return found


def _concerns(event: Event, *, subjects: set[str], attempts: set[str], partitions: set[int]) -> bool:
    match event:
        case Fault() | Phase() | NodeRowCommitted():
            return True
        case RowCommitted():
            row = event.after or event.before
            return row is not None and row.id in subjects
        case HistoryCommitted():
            return event.row.instance_id in subjects
        case OwnerCommitted():
            return not partitions or event.after.partition in partitions
        case ExecutionBegan() | SubmissionAnswered() | RequestAnswered():
            return event.instance_id in subjects
        case RequestCommitted():
            return event.instance_id in subjects or event.request_id in subjects or event.task in subjects
        case ExecutionEnded():
            return event.attempt_id in attempts
        case TaskCommitted() | TriggerCommitted():
            row_of = event.after or event.before
            return row_of is not None and str(row_of.ref) in subjects
        case _:
            return False


def line_of(event: Event) -> str:
    """One event as people read it: time of the run in seconds, what, to whom."""
    return f"{event.at_us / 1e6:12.6f}  {_text(event)}"


def _text(event: Event) -> str:
    match event:
        case Fault():
            end = "over" if event.ends else "BEGINS"
            return f"fault {event.kind} {end}: {event.target} {event.detail}".rstrip()
        case Phase():
            return f"── {event.name} ──"
        case RowCommitted():
            return f"{event.process} [{event.transaction}] {_move(event.before, event.after)}"
        case HistoryCommitted():
            row = event.row
            return (
                f"{event.process} [{event.transaction}]   told {row.instance_id} {row.kind}: {row.sentence}"
            )
        case OwnerCommitted():
            before, after = event.before, event.after
            return (
                f"{event.process} [{event.transaction}] partition {after.partition}: "
                f"{before.owner or 'nobody'}@{before.epoch} → {after.owner or 'nobody'}@{after.epoch}"
            )
        case TaskCommitted():
            return f"{event.process} [{event.transaction}] {_edit(event.before, event.after)}"
        case TriggerCommitted():
            return f"{event.process} [{event.transaction}] {_advance(event.before, event.after)}"
        case ExecutionBegan():
            what = f"{event.instance_id} attempt {event.attempt} ({event.attempt_id})"
            return f"{event.worker} executes {what} on {event.machine}"
        case ExecutionEnded():
            return f"execution of {event.attempt_id} {event.how}"
        case Observed():
            return f"{event.process} says {event.record}"
        case _:
            fields = {name: getattr(event, name) for name in event.__struct_fields__ if name != "at_us"}
            return f"{type(event).__name__} {fields}"


def _move(before: Instance | None, after: Instance | None) -> str:
    if after is None:
        return f"deleted {before.id if before is not None else ''}"
    source = "new" if before is None else f"{before.state}"
    held = f", held {after.hold}" if after.hold is not None else ""
    wish = ", cancel on record" if after.cancel_requested_us is not None else ""
    return (
        f"{after.id} of {after.task} (partition {after.partition}): {source} → {after.state}, "
        f"attempt {after.attempt} {after.attempt_id}, due {format_instant(after.due_us)}{held}{wish}"
    )


def _edit(before: TaskRow | None, after: TaskRow | None) -> str:
    if after is None:
        return f"task {before.ref if before is not None else ''}: deleted"
    flags = "".join(f", {name}" for name in ("paused", "disabled") if getattr(after, name))
    source = "new" if before is None else f"version {before.version}"
    return (
        f"task {after.ref}: {source} → version {after.version}, in force {after.scheduled_version}, "
        f"edited {format_instant(after.updated_us)}{flags}"
    )


def _advance(before: TriggerRow | None, after: TriggerRow | None) -> str:
    row = after or before
    assert row is not None, "it was there before or is there after"
    times = " → ".join("none" if each is None else _next(each) for each in (before, after))
    return f"trigger {row.id} of {row.ref} (version {row.task_version}): next {times}"


def _next(trigger: TriggerRow) -> str:
    return "never" if trigger.next_us is None else format_instant(trigger.next_us)
