"""Liveness: once everything is mended, whatever was due by then ends, and what waits says truly why."""

from __future__ import annotations

from ostinato.core.definition import TaskRef, TaskRow
from ostinato.core.model import Instance
from ostinato.core.schedule.overlap import stands_before
from ostinato.core.states import TERMINAL_STATES, Hold, State
from ostinato.simulation.checkers.checker import Checker, Known, Report, Transaction
from ostinato.simulation.checkers.queue_order import rank_us
from ostinato.simulation.history import Event, Phase


class Liveness(Checker):
    """Knows what has not ended; `unfinished` is what a run still waits for."""

    invariant = "liveness"
    listens = (Transaction, Phase)

    def __init__(self, known: Known, report: Report) -> None:
        super().__init__(known, report)
        self._live: dict[str, Instance] = {}
        self._live_counts: dict[TaskRef, int] = {}
        self._tasks: dict[TaskRef, TaskRow] = {}
        self._healed_us: int | None = None
        #: When something that was made before the healing, or goes before such, was moved last, in true time.
        self.moved_us = 0

    def on(self, event: Event) -> None:
        match event:
            case Transaction():
                self._take(event)
            case Phase() if event.name == "healed":
                self._healed_us = self.known.shared_us(event.at_us)

    def unfinished(self, at_us: int) -> list[Instance]:
        """What was made before the healing, is due, and is neither ended nor held for a cause that lasts."""
        healed_us = self._healed_us
        if healed_us is None:
            return list(self._live.values())
        now_us = self.known.shared_us(at_us)
        later: dict[TaskRef, list[Instance]] = {}
        for instance in self._live.values():
            if instance.hold is None and instance.attempt == 0 and instance.due_us > now_us:
                later.setdefault(instance.ref, []).append(instance)
        return [
            instance
            for instance in self._live.values()
            if instance.created_us <= healed_us
            and not self._may_wait(instance, now_us)
            # What is queued waits for all that is older, be that due in an hour.
            and not (
                instance.hold is Hold.OVERLAP
                and any(stands_before(other, instance) for other in later.get(instance.ref, []))
            )
        ]

    def finish(self, at_us: int) -> None:
        if self._healed_us is None:
            return
        for instance in self.unfinished(at_us):
            why = f"held as {instance.hold}" if instance.hold is not None else "not held"
            self.violate(
                at_us,
                instance.id,
                f"of task {instance.task}, {instance.state} ({why}, {instance.reason or 'no reason'}), "
                f"attempt {instance.attempt}, did not end",
            )

    def _take(self, event: Transaction) -> None:
        for change in event.tasks:
            if change.after is not None:
                self._tasks[change.after.ref] = change.after
            elif change.before is not None:
                self._tasks.pop(change.before.ref, None)
        for row in event.rows:
            before, after = row.before, row.after
            if before is not None and before.state not in TERMINAL_STATES:
                self._live.pop(before.id, None)
            if after is not None and after.state not in TERMINAL_STATES:
                self._live[after.id] = after
            if before is not None and self._concerns(before):
                self.moved_us = event.at_us

    def _concerns(self, moved: Instance) -> bool:
        """Whether what waits since before the healing has come nearer to its end."""
        healed_us = self._healed_us
        if healed_us is None:
            return False
        return moved.created_us <= healed_us or any(
            rank_us(moved) <= rank_us(waiting)
            for waiting in self._live.values()
            if waiting.created_us <= healed_us
        )

    def _may_wait(self, instance: Instance, now_us: int) -> bool:
        if instance.state is State.RUNNING:
            return False
        if instance.due_us > now_us:
            # A retry of what was due before is waited for; what was submitted for later is not.
            return instance.attempt == 0
        task = self._tasks.get(instance.ref)
        return instance.hold is Hold.PAUSED and task is not None and task.paused
