"""Shared time: the database's time, carried forward by a monotonic clock (design section 3).

Due times, windows and fires are judged by this time alone, so that nodes with skewed clocks agree. A sample
tells the time only as exactly as its way there and back was short: the clock is moved no further than the
sample proves it wrong, so that a slow answer makes nobody early (I4). One that is more than 5 s off what was
expected is not believed until others have said the same for 10 s; until then time triggers are held. So a
clock that jumps by years and is set right again fires nothing, and leaves no trigger behind whose next fire
is years away (C165). What may move the clock without a doubt, up to 5 s, ends no doubt and begins none anew:
a clock that is set right in steps, or two servers that answer in turn, would be waited for without end.
"""

from __future__ import annotations

from typing import NamedTuple

from ostinato.clock import Clock
from ostinato.core.instants import SECOND
from ostinato.store.protocol import Store

JUMP_US = 5 * SECOND
#: So long the samples have to confirm a jump.
CONFIRM_AFTER_US = 10 * SECOND


class _Doubt(NamedTuple):
    """A jump that is not believed yet."""

    #: Moved by the samples as that of the clock is.
    offset_us: int
    since_boot_us: int


class SharedTime:
    """Time of the database; `sample` is called about once a second."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._offset_us: int | None = None
        self._doubt: _Doubt | None = None

    @property
    def is_in_doubt(self) -> bool:
        """A sample jumped and is not confirmed yet: fire nothing."""
        return self._doubt is not None

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
        received_us = self._clock.boot_us()
        low_us, high_us = database_us - received_us, database_us - sent_us
        if self._offset_us is None:
            self._offset_us = low_us
            return 0
        nearest_us = min(max(self._offset_us, low_us), high_us)
        off_us = nearest_us - self._offset_us
        doubt = self._doubt
        if doubt is None or not low_us - JUMP_US <= doubt.offset_us <= high_us + JUMP_US:
            # However long its answer took, it shows the jump no earlier than it shows it.
            doubt = _Doubt(nearest_us, received_us)
        else:
            doubt = doubt._replace(offset_us=min(max(doubt.offset_us, low_us), high_us))
        if abs(off_us) <= JUMP_US or sent_us - doubt.since_boot_us >= CONFIRM_AFTER_US:
            self._offset_us, self._doubt = nearest_us, None
        else:
            self._doubt = doubt
        return off_us
