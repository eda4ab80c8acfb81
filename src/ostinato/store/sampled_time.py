"""The store's time for those who submit, without a question to the database each time.

The owner's loops keep a time of their own (``scheduler.shared_time``), which also knows whom to believe after
a jump. Who inserts decides nothing by it: a sample of a second ago, carried forward, is as good as a new one.
"""

from __future__ import annotations

from ostinato.clock import Clock
from ostinato.core.instants import SECOND
from ostinato.store.protocol import Store

#: So long a sample is carried forward.
_SAMPLE_US_MAX = SECOND


class SampledTime:
    """The time of `store`, asked for once a second at most and carried forward by the monotonic clock."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._sampled_boot_us: int | None = None
        self._offset_us = 0

    async def now_us(self) -> int:
        """UTC. Goes back only where the store's own time does. Raises what the store raises."""
        boot_us = self._clock.boot_us()
        if self._sampled_boot_us is None or boot_us - self._sampled_boot_us >= _SAMPLE_US_MAX:
            boot_us = await self._sample(sent_us=boot_us)
        return boot_us + self._offset_us

    async def _sample(self, *, sent_us: int) -> int:
        store_us = await self._store.now_us()
        received_us = self._clock.boot_us()
        # It was true at some moment on the way, so that is how far it proves what was carried forward wrong.
        earliest_us, latest_us = store_us - received_us, store_us - sent_us
        if self._sampled_boot_us is None:
            self._offset_us = earliest_us
        self._offset_us = min(max(self._offset_us, earliest_us), latest_us)
        self._sampled_boot_us = received_us
        return received_us
