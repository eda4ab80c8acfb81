"""Wakes the loops when somebody else has committed work, or when nobody has said so for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ostinato.core.instants import MILLISECOND
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts

#: What a hint means for the loops that start nothing may wait so long. A burst of hints, one a submission, is
#: one round for each of them, and none of theirs stands before the round that starts what was submitted.
_COALESCED_US = 10 * MILLISECOND


class WatchLoop(Loop):
    """Waits on the store's hints."""

    name = "watch"
    round_us_max = None

    def __init__(self, parts: NodeParts, *, first: Loop, then: Sequence[Loop]) -> None:
        """`first` is woken at once, the others a moment later."""
        super().__init__(parts.clock, parts.hooks)
        self._config = parts.config
        self._first = first
        self._then = then
        self._store = parts.store
        self._waking: asyncio.Task[None] | None = None

    async def run_once(self) -> int | None:
        """Wait for one hint and pass it on."""
        await self._store.wait_for_change(self._clock.boot_us() + self._config.safety_poll_us)
        self._first.wake()
        if self._waking is None or self._waking.done():
            # By one task: to put off each of them costs as much as the round that starts what was submitted.
            self._waking = asyncio.create_task(self._wake_others(self._clock.boot_us() + _COALESCED_US))
        return self._clock.boot_us()

    async def _wake_others(self, at_us: int) -> None:
        await self._clock.sleep_until_us(at_us)
        for loop in self._then:
            loop.wake()

    async def stop(self) -> None:
        await super().stop()
        waking, self._waking = self._waking, None
        if waking is not None:
            waking.cancel()
            await asyncio.wait([waking])
