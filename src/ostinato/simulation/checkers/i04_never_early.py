"""I4: no attempt is assigned before its due time, no instance of a fire made before its fire time."""

from __future__ import annotations

from ostinato.core.model import Instance
from ostinato.core.states import State
from ostinato.simulation.checkers.checker import Checker, Transaction
from ostinato.simulation.history import Event, RowCommitted


class NeverEarly(Checker):
    """Compares with what the writer said the time was, and with the database's own time.

    Where the database's clock has jumped within the last minute, either time may be the one that a node
    acts by: nothing is before its time that is after it by one of the two.
    """

    invariant = "I4"
    listens = (Transaction,)

    def on(self, event: Event) -> None:
        assert isinstance(event, Transaction), "it listens to nothing else"
        for row in event.rows:
            after = row.after
            if after is None:
                continue
            if row.before is None:
                self._check_fire(event.at_us, after)
            elif after.state is State.RUNNING and row.before.state is not State.RUNNING:
                self._check_start(row, row.before, after)

    def _check_fire(self, at_us: int, instance: Instance) -> None:
        if instance.fire_us is None:
            return
        early_us = instance.fire_us - instance.created_us
        if early_us > 0:
            self.violate(at_us, instance.id, f"made {early_us} us before its fire time, by its own words")
        self._check_shared(at_us, instance.id, what="made", due_us=instance.fire_us)

    def _check_start(self, row: RowCommitted, before: Instance, after: Instance) -> None:
        early_us = before.due_us - (after.assigned_us or 0)
        if early_us > 0:
            self.violate(row.at_us, after.id, f"assigned {early_us} us before it was due, by its own words")
        self._check_shared(row.at_us, after.id, what="assigned", due_us=before.due_us)

    def _check_shared(self, at_us: int, instance_id: str, *, what: str, due_us: int) -> None:
        _, latest_us = self.known.believed_us(at_us)
        early_us = due_us - latest_us
        if early_us > self.known.time_tolerance_us:
            self.violate(at_us, instance_id, f"{what} {early_us} us before its time by the database's clock")
