"""Wakes the loops when somebody else has committed work, or when nobody has said so for a while."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.clock import Clock
from ostinato.observe.hooks import Hooks
from ostinato.scheduler.config import NodeConfig
from ostinato.scheduler.loop import Loop
from ostinato.store.protocol import Store


class WatchLoop(Loop):
    """Waits on the store's hints."""

    name = "watch"

    def __init__(
        self, config: NodeConfig, woken: Sequence[Loop], *, store: Store, clock: Clock, hooks: Hooks
    ) -> None:
        super().__init__(clock, hooks)
        self._config = config
        self._woken = woken
        self._store = store

    async def run_once(self) -> int | None:
        """Wait for one hint and pass it on."""
        await self._store.wait_for_change(self._clock.boot_us() + self._config.safety_poll_us)
        for loop in self._woken:
            loop.wake()
        return self._clock.boot_us()
