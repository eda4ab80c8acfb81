"""Keeps the node's shared time true, once a second; apart from the renewals, which nothing may hold up."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts


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

    async def run_once(self) -> int | None:
        """Sample once."""
        next_us = self._clock.boot_us() + self._config.renewal_us
        was_in_doubt = self._time.is_in_doubt
        await self._time.sample()
        if was_in_doubt and not self._time.is_in_doubt:
            for loop in self._woken:
                loop.wake()
        return next_us
