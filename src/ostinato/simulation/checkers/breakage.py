"""No loop of a node meets a fault of ours: an internal error, or a rule that it finds broken itself."""

from __future__ import annotations

from ostinato.errors import CODES
from ostinato.observe.records import InvariantBroken, LoopFailed
from ostinato.simulation.checkers.checker import Checker
from ostinato.simulation.history import Event, Observed

#: Codes that say nothing about the world, so that it is our own fault.
_OURS = frozenset({"INTERNAL", "INVARIANT"})


class Breakage(Checker):
    """Reads what nodes and workers hand to their hooks."""

    invariant = "breakage"
    listens = (Observed,)

    def on(self, event: Event) -> None:
        assert isinstance(event, Observed), "it listens to nothing else"
        record = event.record
        if isinstance(record, InvariantBroken):
            self.violate(
                event.at_us, record.subject or event.process, f"{record.name}: {record.error_message}"
            )
        elif isinstance(record, LoopFailed) and (
            record.error_code in _OURS or record.error_code not in CODES
        ):
            self.violate(
                event.at_us,
                event.process,
                f"the {record.loop} loop failed: {record.error_code}: {record.error_message}"
                f"\n{record.traceback}",
            )
