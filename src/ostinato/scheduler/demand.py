"""Due work that a node could place if workers had promised it more slots, by pool (docs/cluster.md, Workers).

A number for the sharing of credits between nodes, not a count: it says that there is some, and roughly how
much, so that a worker promises its free slots where they are of use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ostinato.core.definition import TaskDefinition
from ostinato.core.instants import SECOND
from ostinato.core.routing import RoutingRound
from ostinato.core.states import Hold

#: Where no slot is free, the queue is looked at no more often than this.
LOOK_US = SECOND


class Demand:
    """What the newest round could not place for want of a slot, until the next round."""

    def __init__(self) -> None:
        self._by_pool: Counter[str] = Counter()
        self._looked_us: int | None = None

    @property
    def by_pool(self) -> dict[str, int]:
        """Attempts by pool, pools without any left out."""
        return dict(self._by_pool)

    def is_due(self, boot_us: int) -> bool:
        """Whether a node without free slots should look what is due; True at most once in `LOOK_US`."""
        if self._looked_us is not None and boot_us - self._looked_us < LOOK_US:
            return False
        self._looked_us = boot_us
        return True

    def measured(self, waiting: Iterable[TaskDefinition], routing: RoutingRound) -> None:
        """A round is over: these are due and have no slot. What no connected worker could run is left out."""
        self._by_pool = Counter(
            definition.pool for definition in waiting if routing.unplaced(definition).hold is Hold.BUSY
        )
