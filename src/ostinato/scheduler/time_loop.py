"""Keeps the node's shared time true, once a second; apart from the renewals, which nothing may hold up."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.observe.records import ClockJumped, ClockTrusted
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts
from ostinato.scheduler.shared_time import JUMP_US


class TimeLoop(Loop):
    """Samples the database's time."""

    name = "time"

    def __init__(self, parts: NodeParts, woken: Sequence[Loop]) -> None:
        """`woken` are the loops that rest while the time is in doubt."""
        super().__init__(parts.clock, parts.hooks)
        self.retry_last_us = parts.config.renewal_us
        self._woken = woken
        self._config = parts.config
        self._time = parts.time
        self._doubted_since_us = 0

    async def run_once(self) -> int | None:
        """Sample once."""
        next_us = self._clock.boot_us() + self._config.renewal_us
        was_in_doubt = self._time.is_in_doubt
        off_us = await self._time.sample()
        if not was_in_doubt and self._time.is_in_doubt:
            self._doubted_since_us = self._clock.boot_us()
            self._hooks.emit(ClockJumped(off_us=off_us))
        if was_in_doubt and not self._time.is_in_doubt:
            held_us = self._clock.boot_us() - self._doubted_since_us
            self._hooks.emit(ClockTrusted(has_changed=abs(off_us) > JUMP_US, held_us=held_us))
            for loop in self._woken:
                loop.wake()
        return next_us
