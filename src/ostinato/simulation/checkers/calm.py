"""Since when nothing has been broken: some rules hold at once then, and later where something is."""

from __future__ import annotations

from collections import Counter

from ostinato.simulation.history import Fault
from ostinato.store.server.database import DEADLINE_US

#: So long after its end a fault may still be felt: a connection that broke unnoticed is given up at the
#: deadline of the call that waits for its answer, and until then the loop that has made it stands still.
_AFTERMATH_US = {"answers_lost": DEADLINE_US}


class Calm:
    """Told every fault; times are true time."""

    def __init__(self) -> None:
        self._under_way: Counter[tuple[str, str]] = Counter()
        #: With what has come of it.
        self._ended_us = 0
        #: Whether anything has been broken at all.
        self.is_unbroken = True

    def take(self, fault: Fault) -> None:
        """A fault has begun or ended."""
        self.is_unbroken = False
        self._under_way[fault.kind, fault.target] += -1 if fault.ends else 1
        self._ended_us = max(self._ended_us, fault.at_us + _AFTERMATH_US.get(fault.kind, 0))

    def since_us(self, at_us: int) -> int:
        """When the last fault was over, which may be yet to come; `at_us` while one is under way."""
        return at_us if any(self._under_way.values()) else self._ended_us
