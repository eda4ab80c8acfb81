"""Keeps the node alive in the database and its shared time true, once a second."""

from __future__ import annotations

from ostinato.clock import Clock
from ostinato.observe.hooks import Hooks
from ostinato.scheduler.config import NodeConfig
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.ownership import Ownership
from ostinato.scheduler.shared_time import SharedTime


class RenewalLoop(Loop):
    """Renews the ownership and samples the database's time."""

    name = "renewal"

    def __init__(
        self, config: NodeConfig, *, clock: Clock, hooks: Hooks, time: SharedTime, ownership: Ownership
    ) -> None:
        super().__init__(clock, hooks)
        self._config = config
        self._time = time
        self._ownership = ownership

    async def run_once(self) -> int | None:
        """Renew, then sample."""
        next_us = self._clock.boot_us() + self._config.renewal_us
        await self._ownership.renew()
        await self._time.sample()
        return next_us
