"""Every failure, decision, refusal and person's act leaves a row of the history with its move."""

from __future__ import annotations

from ostinato.core.model import HistoryKind, HistoryRow, Instance
from ostinato.core.states import TERMINAL_STATES, State
from ostinato.simulation.checkers.checker import Checker, Transaction
from ostinato.simulation.history import Event

_ENDS_OF_ATTEMPTS = {
    State.RETRY_WAITING: (HistoryKind.RETRY, HistoryKind.REFUSED, HistoryKind.HANDED_BACK),
    State.FAILED: (HistoryKind.GAVE_UP,),
    State.CANCELLED: (HistoryKind.CANCELLED,),
}
_ENDS_OF_WAITING = {
    State.FAILED: (HistoryKind.EXPIRED,),
    State.CANCELLED: (HistoryKind.CANCELLED,),
    State.SKIPPED: (HistoryKind.SKIPPED,),
}


class EverythingTold(Checker):
    """Looks for the row that each move must leave."""

    invariant = "told"
    listens = (Transaction,)

    def on(self, event: Event) -> None:
        assert isinstance(event, Transaction), "it listens to nothing else"
        for row in event.rows:
            if row.after is not None:
                self._check(event, row.before, row.after)

    def _check(self, event: Transaction, before: Instance | None, after: Instance) -> None:
        kinds = _kinds(before, after)
        if not kinds:
            return
        found = [row for row in event.told_of(after.id) if row.kind in kinds]
        source = "nothing" if before is None else before.state
        if not found:
            wanted = " or ".join(kinds)
            self.violate(event.at_us, after.id, f"from {source} to {after.state}, and no row tells: {wanted}")
            return
        told = found[-1]
        if not told.sentence:
            self.violate(event.at_us, after.id, f"the row of {told.kind} says nothing")
        if before is not None and before.state is State.RUNNING and after.state is not State.RUNNING:
            self._check_attempt(event.at_us, before, after, told=told)

    def _check_attempt(self, at_us: int, before: Instance, after: Instance, *, told: HistoryRow) -> None:
        if told.attempt_id != before.attempt_id:
            self.violate(
                at_us, after.id, f"the row tells of attempt {told.attempt_id}, not {before.attempt_id}"
            )
        if not told.code or told.failure is None:
            self.violate(at_us, after.id, f"the row of attempt {before.attempt} does not say how it ended")
        if after.state is State.RETRY_WAITING and told.due_us != after.due_us:
            self.violate(
                at_us, after.id, f"the row says due at {told.due_us}, and it is due at {after.due_us}"
            )


def _kinds(before: Instance | None, after: Instance) -> tuple[HistoryKind, ...]:
    """Of which kinds one row must be there; none on the uneventful path."""
    if before is None:
        return (HistoryKind.SKIPPED,) if after.state is State.SKIPPED else ()
    if before.state in TERMINAL_STATES:
        return (HistoryKind.REPLAYED,) if after.state is State.PENDING else ()
    if before.state is State.RUNNING and after.state is State.RUNNING:
        was_asked = before.cancel_requested_us is None and after.cancel_requested_us is not None
        return (HistoryKind.CANCEL_REQUESTED,) if was_asked else ()
    return (_ENDS_OF_ATTEMPTS if before.state is State.RUNNING else _ENDS_OF_WAITING).get(after.state, ())
