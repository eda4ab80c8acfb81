"""Measures what waits and what runs, for the metrics."""

from __future__ import annotations

from ostinato.control.cluster import CLUSTER_PARTITION
from ostinato.core.states import LIVE_STATES, State
from ostinato.observe.records import BacklogMeasured
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts
from ostinato.store.batches import InstanceFilter

#: In the order of the enumeration, so that the same run asks the same question.
_LIVE = tuple(state for state in State if state in LIVE_STATES)


#: Rows counted one by one where an index alone does not tell; beyond it the metric is a lower bound.
COUNT_MAX = 1_000_000


class BacklogLoop(Loop):
    """Counts the instances that have not ended; at one node, so that the sum over all nodes is right."""

    name = "backlog"

    def __init__(self, parts: NodeParts) -> None:
        super().__init__(parts.clock, parts.hooks)
        self._config = parts.config
        self._store = parts.store
        self._ownership = parts.ownership
        self._has_counted = False

    async def run_once(self) -> int | None:
        """Count once; where another node counts from now on, say 0."""
        next_us = self._clock.boot_us() + self._config.backlog_us
        if CLUSTER_PARTITION not in self._ownership.memory.epochs:
            if self._has_counted:
                self._has_counted = False
                self._hooks.emit(BacklogMeasured(by_state=dict.fromkeys(_LIVE, 0)))
            return next_us
        self._has_counted = True
        counts = await self._store.count_instances(InstanceFilter(states=_LIVE), limit=COUNT_MAX)
        self._hooks.emit(BacklogMeasured(by_state={state: counts.by_state.get(state, 0) for state in _LIVE}))
        return self._clock.boot_us() + self._config.backlog_us
