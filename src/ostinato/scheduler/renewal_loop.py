"""Keeps the node alive in the database, once a second; what it calls has a connection of its own."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts


class RenewalLoop(Loop):
    """Renews the ownership."""

    name = "renewal"

    def __init__(self, parts: NodeParts, woken: Sequence[Loop], *, membership: Loop) -> None:
        """`woken` are the loops that rest while the node does not believe in its partitions."""
        super().__init__(parts.clock, parts.hooks)
        # Belief lasts little longer than a renewal's interval, so failures are no reason to wait for more.
        self.retry_last_us = parts.config.renewal_us
        self._woken = woken
        self._membership = membership
        self._config = parts.config
        self._ownership = parts.ownership

    async def run_once(self) -> int | None:
        """Renew once."""
        next_us = self._clock.boot_us() + self._config.renewal_us
        was_resting = not self._ownership.is_believed
        try:
            await self._ownership.renew()
        finally:
            # A renewal that was not written need not end the belief.
            if was_resting and self._ownership.is_believed:
                for loop in self._woken:
                    loop.wake()
        if not self._ownership.is_registered:
            # The identity has ended: join anew at once.
            self._membership.wake()
        return next_us
