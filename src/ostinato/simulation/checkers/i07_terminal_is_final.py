"""I7: only an explicit replay leaves a terminal state, as a new generation; moves follow the one table."""

from __future__ import annotations

from ostinato.core.model import HistoryKind, Instance
from ostinato.core.states import TERMINAL_STATES, State, is_legal
from ostinato.simulation.checkers.checker import Checker, Transaction, changed
from ostinato.simulation.history import Event


class TerminalIsFinal(Checker):
    """Looks at the two sides of every change."""

    invariant = "I7"
    listens = (Transaction,)

    def on(self, event: Event) -> None:
        assert isinstance(event, Transaction), "it listens to nothing else"
        for row in event.rows:
            both = changed(row)
            if both is None:
                continue
            before, after = both
            if before.state in TERMINAL_STATES:
                self._check_replay(event, before, after)
            elif after.generation != before.generation:
                self.violate(event.at_us, after.id, f"a new generation begins while it is {before.state}")
            elif before.state is not after.state and not is_legal(before.state, after.state):
                self.violate(event.at_us, after.id, f"it moved from {before.state} to {after.state}")

    def _check_replay(self, event: Transaction, before: Instance, after: Instance) -> None:
        if after.state is not State.PENDING or after.generation != before.generation + 1:
            self.violate(
                event.at_us,
                after.id,
                f"it had ended as {before.state} and became {after.state} "
                f"(generation {before.generation}, then {after.generation})",
            )
            return
        if not any(row.kind is HistoryKind.REPLAYED for row in event.told_of(after.id)):
            self.violate(event.at_us, after.id, f"it left {before.state} and nobody had asked for a replay")
        if not any(
            request.kind == "replay" and request.instance_id == after.id and request.answer_code == "OK"
            for request in event.requests
        ):
            self.violate(event.at_us, after.id, f"it left {before.state} and no replay was answered")
