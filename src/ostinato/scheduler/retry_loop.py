"""Waiting instances that can no longer start in time fail, with what held them (design section 4).

Due retries are started by the dispatch loop like all due work; this loop watches the end of retry windows and
queue time-outs, so that nobody waits for a retry that can not come.
"""

from __future__ import annotations

from ostinato.core.partition.effects import Effects
from ostinato.core.partition.expire import expire
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts


class RetryLoop(Loop):
    """Ends what has waited too long; wakes at the next such moment."""

    name = "retry"

    def __init__(self, parts: NodeParts) -> None:
        super().__init__(parts.clock, parts.hooks)
        self._config = parts.config
        self._store = parts.store
        self._time = parts.time
        self._ownership = parts.ownership
        self._committer = parts.committer
        self._definitions = parts.definitions

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
