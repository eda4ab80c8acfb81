"""The clock protocol, and the clock of the machine.

Two time bases that must never be mixed:

* ``wall_us``: UTC, microseconds since 1970. What people see; may jump.
* ``boot_us``: microseconds of a clock that never goes back and counts suspended time (``CLOCK_BOOTTIME``).
  What leases, time-outs and waits use. Its origin is arbitrary, and in production shifted by a random
  offset, so that code which mixes the two fails at once.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Protocol

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """What the scheduler, workers and stores know of time."""

    def wall_us(self) -> int:
        """Now as a UTC instant in microseconds."""
        ...

    def boot_us(self) -> int:
        """Now on the monotonic clock that counts suspended time, in microseconds."""
        ...

    async def sleep_until_us(self, boot_us: int) -> None:
        """Return once ``boot_us()`` has reached `boot_us`; after one turn of the loop when it already has."""
        ...


class SystemClock:
    """The machine's clocks."""

    def __init__(self, offset_us: int | None = None) -> None:
        """`offset_us` shifts ``boot_us``; processes of one worker share it to compare deadlines."""
        self.offset_us = random.SystemRandom().randrange(10**12, 10**13) if offset_us is None else offset_us

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def boot_us(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1000 + self.offset_us

    async def sleep_until_us(self, boot_us: int) -> None:
        await asyncio.sleep(max(0, boot_us - self.boot_us()) / 1e6)  # noqa: TID251 - the one place that may sleep
