"""The clocks of one simulated machine: each goes at its own rate, and its wall time may jump.

::

    true time (the loop's) ──× (1 + drift)──► boot time ──+ offset──► wall time
                                              never goes back         jumps

Boot time goes on while processes are paused, as ``CLOCK_BOOTTIME`` does while a machine sleeps.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, cast

from ostinato.simulation.event_loop import SimulatedLoop, Sleep, wake
from ostinato.testing.virtual_clock import BOOT_START_US, START_US

_MILLION = 1_000_000


class ProcessClock:
    """The ``Clock`` of every process of one machine; `drift_ppm` in parts per million."""

    def __init__(
        self,
        loop: SimulatedLoop,
        *,
        wall_offset_us: int = 0,
        boot_offset_us: int = 0,
        drift_ppm: int = 0,
    ) -> None:
        """`wall_offset_us` is how far its wall time is ahead of the true one, `boot_offset_us` its origin."""
        self._loop = loop
        self._drift_ppm = drift_ppm
        #: Boot time at `_base_true_us`; both move when the rate changes.
        self._base_true_us = loop.true_us
        self._base_boot_us = BOOT_START_US + boot_offset_us + loop.true_us
        self._wall_ahead_us = START_US + wall_offset_us - BOOT_START_US - boot_offset_us

    @property
    def drift_ppm(self) -> int:
        """How much faster than true time it goes."""
        return self._drift_ppm

    def wall_us(self) -> int:
        return self.boot_us() + self._wall_ahead_us

    def boot_us(self) -> int:
        passed_us = self._loop.true_us - self._base_true_us
        if self._drift_ppm:
            passed_us = passed_us * (_MILLION + self._drift_ppm) // _MILLION
        return self._base_boot_us + passed_us

    def sleep_until_us(self, boot_us: int) -> Coroutine[Any, Any, None]:
        """As the protocol says. A future, which asyncio waits for without a task of its own."""
        sleep = Sleep(loop=self._loop)
        wait_us = boot_us - self.boot_us()
        if wait_us <= 0:
            sleep.handle = self._loop.call_soon(wake, sleep)
        else:
            at_us = self._loop.true_us + (self.true_us_for(wait_us) if self._drift_ppm else wait_us)
            sleep.handle = self._loop.call_at_us(at_us, self._on_alarm, sleep, boot_us)
        return cast(Coroutine[Any, Any, None], sleep)

    def _on_alarm(self, sleep: Sleep, boot_us: int) -> None:
        # Its rate may have changed meanwhile.
        wait_us = boot_us - self.boot_us()
        if wait_us > 0:
            at_us = self._loop.true_us + self.true_us_for(wait_us)
            sleep.handle = self._loop.call_at_us(at_us, self._on_alarm, sleep, boot_us)
        else:
            wake(sleep)

    def jump_wall(self, by_us: int) -> None:
        """Somebody sets the wall time, forward or back; boot time knows nothing of it."""
        self._wall_ahead_us += by_us

    def set_drift(self, drift_ppm: int) -> None:
        """Go at another rate from now on. Who sleeps already may wake late by what that changes."""
        self._base_boot_us, self._base_true_us = self.boot_us(), self._loop.true_us
        self._drift_ppm = drift_ppm

    def true_us_for(self, boot_us: int) -> int:
        """True time that passes until so much boot time has, rounded up."""
        if not self._drift_ppm:
            return boot_us
        return -(-boot_us * _MILLION // (_MILLION + self._drift_ppm))
