"""Shared time: the database's time, carried forward by a monotonic clock (design section 3).

Due times, windows and fires are judged by this time alone, so that nodes with skewed clocks agree. A sample
tells the time only as exactly as its way there and back was short: the clock is moved no further than the
sample proves it wrong, so that a slow answer makes nobody early (I4). One that is more than 5 s off what was
expected is not believed until the next one confirms it; until then time triggers are held, so that a clock
which jumps by years fires nothing.
"""

from __future__ import annotations

from ostinato.clock import Clock
from ostinato.core.instants import SECOND
from ostinato.store.protocol import Store

JUMP_US = 5 * SECOND
#: A second sample confirms a jump when it lands this close to the first.
CONFIRM_US = SECOND


class SharedTime:
    """Time of the database; `sample` is called about once a second."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._offset_us: int | None = None
        self._doubted_offset_us: int | None = None

    @property
    def is_in_doubt(self) -> bool:
        """A sample jumped and is not confirmed yet: fire nothing."""
        return self._doubted_offset_us is not None

    def now_us(self) -> int:
        """UTC instant on which all nodes agree."""
        offset_us = self._offset_us
        return self._clock.wall_us() if offset_us is None else self._clock.boot_us() + offset_us

    def boot_at(self, instant_us: int) -> int:
        """Reading of the node's monotonic clock at a shared instant."""
        return self._clock.boot_us() + instant_us - self.now_us()

    async def sample(self) -> int:
        """Ask the database. Returns how far it was off, 0 for the first sample."""
        sent_us = self._clock.boot_us()
        database_us = await self._store.now_us()
        # The answer was true at some moment in between, however long either way took.
        low_us, high_us = database_us - self._clock.boot_us(), database_us - sent_us
        if self._offset_us is None:
            self._offset_us = low_us
            return 0
        nearest_us = min(max(self._offset_us, low_us), high_us)
        off_us = nearest_us - self._offset_us
        doubted_us = self._doubted_offset_us
        is_confirmed = doubted_us is not None and low_us - CONFIRM_US <= doubted_us <= high_us + CONFIRM_US
        if abs(off_us) <= JUMP_US or is_confirmed:
            self._offset_us, self._doubted_offset_us = nearest_us, None
        else:
            self._doubted_offset_us = nearest_us
        return off_us
