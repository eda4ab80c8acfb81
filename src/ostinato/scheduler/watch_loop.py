"""Wakes the loops when somebody else has committed work, or when nobody has said so for a while."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts


class WatchLoop(Loop):
    """Waits on the store's hints."""

    name = "watch"
    round_us_max = None

    def __init__(self, parts: NodeParts, woken: Sequence[Loop]) -> None:
        super().__init__(parts.clock, parts.hooks)
        self._config = parts.config
        self._woken = woken
        self._store = parts.store

    async def run_once(self) -> int | None:
        """Wait for one hint and pass it on."""
        await self._store.wait_for_change(self._clock.boot_us() + self._config.safety_poll_us)
        for loop in self._woken:
            loop.wake()
        return self._clock.boot_us()
