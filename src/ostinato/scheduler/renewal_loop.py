"""Keeps the node alive in the database and its shared time true, once a second."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts


class RenewalLoop(Loop):
    """Renews the ownership and samples the database's time."""

    name = "renewal"

    def __init__(self, parts: NodeParts, woken: Sequence[Loop]) -> None:
        """`woken` are the loops that rest while the node does not believe in its partitions."""
        super().__init__(parts.clock, parts.hooks)
        # Belief lasts little longer than a renewal's interval, so failures are no reason to wait for more.
        self.retry_last_us = parts.config.renewal_us
        self._woken = woken
        self._config = parts.config
        self._time = parts.time
        self._ownership = parts.ownership

    async def run_once(self) -> int | None:
        """Renew, then sample."""
        next_us = self._clock.boot_us() + self._config.renewal_us
        was_resting = not self._ownership.is_believed or self._time.is_in_doubt
        try:
            await self._ownership.renew()
        finally:
            # A renewal that was not written need not end the belief, and time goes on in any case.
            await self._time.sample()
            if was_resting and self._ownership.is_believed:
                for loop in self._woken:
                    loop.wake()
        return next_us
