"""Since when nothing has been broken: some rules hold at once then, and later where something is."""

from __future__ import annotations

from collections import Counter

from ostinato.simulation.history import Fault


class Calm:
    """Told every fault; times are true time."""

    def __init__(self) -> None:
        self._under_way: Counter[tuple[str, str]] = Counter()
        self._ended_us = 0
        #: Whether anything has been broken at all.
        self.is_unbroken = True

    def take(self, fault: Fault) -> None:
        """A fault has begun or ended."""
        self.is_unbroken = False
        self._under_way[fault.kind, fault.target] += -1 if fault.ends else 1
        self._ended_us = fault.at_us

    def since_us(self, at_us: int) -> int:
        """When the last fault ended; `at_us` while one is under way."""
        return at_us if any(self._under_way.values()) else self._ended_us
