"""Tells waiting loops that somebody else has committed work.

A change that falls between a loop's read and its next wait must not be missed, so the signal counts changes,
and remembers for each waiting asyncio task the count at its last return.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from ostinato.clock import Clock


class ChangeSignal:
    """Counts changes and wakes those who wait for the next one. Used from one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 0
        #: Count at the newest return of any waiter: where a task that never waited before starts from.
        self._seen = 0
        self._seen_by: WeakKeyDictionary[asyncio.Task[object], int] = WeakKeyDictionary()
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Somebody has committed something that an owner may have to act on."""
        self._count += 1
        for waiter in self._waiters:
            _set_once(waiter)
        self._waiters.clear()

    async def wait(self, until_boot_us: int) -> bool:
        """True at the next change that this asyncio task has not been told of, False at `until_boot_us`."""
        task = asyncio.current_task()
        seen = self._seen if task is None else self._seen_by.get(task, self._seen)
        if seen == self._count and until_boot_us > self._clock.boot_us():
            await self._wait_for_next(until_boot_us)
        changed = seen != self._count
        self._seen = self._count
        if task is not None:
            self._seen_by[task] = self._count
        return changed

    async def _wait_for_next(self, until_boot_us: int) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        alarm = asyncio.ensure_future(self._clock.sleep_until_us(until_boot_us))
        alarm.add_done_callback(lambda _: _set_once(waiter))
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            alarm.cancel()


def _set_once(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
