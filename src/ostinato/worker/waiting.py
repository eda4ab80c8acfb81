"""Waiting on the injected clock: with a deadline, for an alarm that may be set earlier, for more to come."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from ostinato.clock import Clock
from ostinato.core.instants import MILLISECOND

Value = TypeVar("Value")


#: How long what follows a batch gathers: at least, for each item of that batch, and at most.
GATHERING_US_MIN = 2 * MILLISECOND
GATHERING_US_EACH = 100
GATHERING_US_MAX = 5 * MILLISECOND


def gathering_us(count: int) -> int:
    """How long to wait for the next batch after one of `count` items, so that batches grow with the load.

    Whatever comes alone, later than that, waits for nothing.
    """
    return min(GATHERING_US_MIN + count * GATHERING_US_EACH, GATHERING_US_MAX)


async def within(clock: Clock, work: Coroutine[object, object, Value], *, limit_us: int) -> Value:
    """What `work` returns, if it does within `limit_us`. Otherwise it is cancelled: ``TimeoutError``."""
    working = asyncio.ensure_future(work)
    limit = asyncio.ensure_future(clock.sleep_until_us(clock.boot_us() + limit_us))
    try:
        await asyncio.wait([working, limit], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise TimeoutError
        return working.result()
    finally:
        limit.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait([working])


class Alarm:
    """Wakes one waiter at a time that anybody may bring forward."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._earlier = asyncio.Event()
        self._target_us: int | None = None

    def at_latest(self, at_us: int) -> None:
        """Wake the waiter at `at_us` (boot time) or before."""
        if self._target_us is None or at_us < self._target_us:
            self._target_us = at_us
            self._earlier.set()

    async def wait(self, target_us: int | None) -> None:
        """Return at `target_us`, or when an earlier time was set; None waits for that alone."""
        self._earlier.clear()
        self._target_us = target_us
        waiters: list[asyncio.Future[object]] = [asyncio.ensure_future(self._earlier.wait())]
        if target_us is not None:
            waiters.append(asyncio.ensure_future(self._clock.sleep_until_us(target_us)))
        try:
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()
