"""Deletes what ended longer ago than its retention, in small batches between other work."""

from __future__ import annotations

from ostinato.clock import Clock
from ostinato.core.instants import HOUR
from ostinato.observe.hooks import Hooks
from ostinato.scheduler.config import NodeConfig
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.ownership import Ownership
from ostinato.scheduler.shared_time import SharedTime
from ostinato.store.protocol import Store

ROUND_US = HOUR
#: Small, since every other commit waits behind a deletion on SQLite.
BATCH_COUNT = 500


class RetentionLoop(Loop):
    """Finished instances, with their history and output, go after their retention."""

    name = "retention"

    def __init__(
        self,
        config: NodeConfig,
        *,
        store: Store,
        clock: Clock,
        hooks: Hooks,
        time: SharedTime,
        ownership: Ownership,
    ) -> None:
        super().__init__(clock, hooks)
        self._config = config
        self._store = store
        self._time = time
        self._ownership = ownership

    async def run_once(self) -> int | None:
        """Delete one batch; the next follows at once while there is more."""
        if not self._ownership.owned():
            return None
        now_us = self._time.now_us()
        deleted = await self._store.delete_finished(
            success_before_us=now_us - self._config.success_retention_us,
            other_before_us=now_us - self._config.other_retention_us,
            limit=BATCH_COUNT,
        )
        return self._clock.boot_us() + (0 if deleted == BATCH_COUNT else ROUND_US)
