"""Deletes what ended longer ago than its retention, in small batches between other work."""

from __future__ import annotations

from ostinato.control.cluster import CLUSTER_PARTITION
from ostinato.core.instants import HOUR
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts

ROUND_US = HOUR
#: A key is kept for so long after its end: what was submitted while it lived may arrive late.
KEYS_KEPT_US = HOUR
#: Small, since every other commit waits behind a deletion on SQLite.
BATCH_COUNT = 500


class RetentionLoop(Loop):
    """Finished instances, with their history and output, go after their retention.

    One node does this for all: the owner of the cluster's own partition.
    """

    name = "retention"

    def __init__(self, parts: NodeParts) -> None:
        super().__init__(parts.clock, parts.hooks)
        self._config = parts.config
        self._store = parts.store
        self._time = parts.time
        self._ownership = parts.ownership

    async def run_once(self) -> int | None:
        """Delete one batch; the next follows at once while there is more."""
        if CLUSTER_PARTITION not in self._ownership.owned():
            return self._clock.boot_us() + ROUND_US
        now_us = self._time.now_us()
        deleted = await self._store.delete_finished(
            success_before_us=now_us - self._config.success_retention_us,
            other_before_us=now_us - self._config.other_retention_us,
            keys_before_us=now_us - KEYS_KEPT_US,
            limit=BATCH_COUNT,
        )
        return self._clock.boot_us() + (0 if deleted == BATCH_COUNT else ROUND_US)
