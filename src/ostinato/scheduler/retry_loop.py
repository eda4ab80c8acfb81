"""Waiting instances that can no longer start in time fail, with what held them (design section 4).

Due retries are started by the dispatch loop like all due work; this loop watches the end of retry windows and
queue time-outs, so that nobody waits for a retry that can not come.
"""

from __future__ import annotations

from ostinato.clock import Clock
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.expire import expire
from ostinato.observe.hooks import Hooks
from ostinato.scheduler.committer import Committer
from ostinato.scheduler.config import NodeConfig
from ostinato.scheduler.definitions import Definitions
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.ownership import Ownership
from ostinato.scheduler.shared_time import SharedTime
from ostinato.store.protocol import Store


class RetryLoop(Loop):
    """Ends what has waited too long; wakes at the next such moment."""

    name = "retry"

    def __init__(
        self,
        config: NodeConfig,
        *,
        store: Store,
        clock: Clock,
        hooks: Hooks,
        time: SharedTime,
        ownership: Ownership,
        committer: Committer,
        definitions: Definitions,
    ) -> None:
        super().__init__(clock, hooks)
        self._config = config
        self._store = store
        self._time = time
        self._ownership = ownership
        self._committer = committer
        self._definitions = definitions

    async def run_once(self) -> int | None:
        """End up to one batch."""
        partitions = self._ownership.owned()
        if not partitions:
            return None
        now_us = self._time.now_us()
        limit = self._config.batch_count
        found = await self._store.find_expired(partitions, now_us=now_us, limit=limit)
        if found:
            await self._definitions.load(found)
            effects = Effects()
            for instance in found:
                definition = self._definitions.pinned(instance.ref, instance.task_version)
                if definition is not None:
                    expire(instance, definition, now_us=now_us, into=effects)
            await self._committer.commit(effects)
        if len(found) == limit:
            return self._clock.boot_us()
        next_us = await self._store.next_expiry_us(partitions)
        # Exactly at its end a window is still open; a microsecond later it is not.
        return None if next_us is None else self._time.boot_at(next_us + 1)
