"""The gate that submissions pass: measures what waits, lets them through, slows them down, or refuses them.

Each process that takes submissions has one of its own and measures for itself, so that nobody has to be asked
and none goes on by what another once said. Between two measurements what has passed here counts on top. It
may have started long ago, so a level that only this sum reaches is measured before anybody is held back for
it, and waited for where measuring would become dear.

No connection is held while a submission waits. Fires, retries, replays and requests do not come here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from ostinato.clock import Clock
from ostinato.control.names import validate_key
from ostinato.control.shapes.cluster import PressureShape
from ostinato.control.submit import KEY_LIFETIME_US, SubmitRequest
from ostinato.core.ids import is_id
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.pressure import DELAY_US_MAX, Level, Limits, level_of
from ostinato.errors import OstinatoError, UnavailableError
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import PressureChanged, PressureMeasured, SubmissionsHeldBack
from ostinato.store.batches import InstanceFilter
from ostinato.store.protocol import Store
from ostinato.store.sampled_time import SampledTime

#: An older measurement is not gone by.
STALE_US = 1_500 * MILLISECOND
#: Least time between two measurements, and how many times as long as one takes.
_BETWEEN_US = 50 * MILLISECOND
_BETWEEN_FACTOR = 10
#: Submissions that wait at once; below what a node answers at once, which has to be left for other requests.
DELAYED_COUNT_MAX = 32
#: When a refused submission is worth another try.
RETRY_AFTER_US = SECOND


class PressureGate:
    """What one process knows of the backlog, and does about it."""

    def __init__(self, store: Store, limits: Limits, *, clock: Clock, hooks: Hooks | None = None) -> None:
        self.limits = limits
        self._store = store
        self._clock = clock
        self._time = SampledTime(store, clock)
        self._hooks = Hooks() if hooks is None else hooks
        self._measuring = asyncio.Lock()
        #: As it was last measured.
        self._level = Level.GREEN
        self._count = 0
        self._measured_boot_us: int | None = None
        self._took_us = 0
        self._failure: OstinatoError | None = None
        self._failure_count = 0
        #: Instances whose submission was let in: those under way, and those done since the measurement.
        self._under_way = 0
        self._passed = 0
        self._delayed_count = 0

    async def look(self) -> PressureShape:
        """How things stand, by a measurement that is not stale. Raises what the store raises."""
        await self._measured()
        return PressureShape(
            level=self._level.word, waiting=self._count, yellow=self.limits.yellow, red=self.limits.red
        )

    async def measure(self) -> None:
        """Count what waits. Raises what the store raises."""
        async with self._measuring:
            await self._measure()

    @asynccontextmanager
    async def passing(self, requests: Sequence[SubmitRequest]) -> AsyncGenerator[None, None]:
        """Around the insertion of `requests`, all or none. Waits where the level is yellow.

        Raises ``BACKPRESSURE`` where it is red, but for what has been accepted already and is repeated, which
        is answered; and what the store raises. The level is that before the requests, however many they are.
        """
        level = await self._level_for_new()
        if level is Level.RED and not await self._are_accepted(requests):
            raise self._refusal(len(requests), f"{self._sum()} instances wait to start")
        if level is Level.YELLOW and self._delayed_count >= DELAYED_COUNT_MAX:
            raise self._refusal(len(requests), f"{self._delayed_count} submissions wait their turn already")
        self._under_way += len(requests)
        try:
            if level is Level.YELLOW:
                await self._delay(len(requests))
            yield
        finally:
            self._under_way -= len(requests)
            self._passed += len(requests)

    # ── measuring ────────────────────────────────────────────────────────────────────────────────────

    def _sum(self) -> int:
        return self._count + self._under_way + self._passed

    def _sum_level(self) -> Level:
        return level_of(self._sum(), self.limits, before=self._level)

    async def _level_for_new(self) -> Level:
        """The level that a submission meets: one that only the sum reaches is waited for to be measured."""
        gives_up_us = self._clock.boot_us() + DELAY_US_MAX
        while True:
            await self._measured()
            level = self._sum_level()
            if level is self._level or self._clock.boot_us() >= gives_up_us:
                return level
            await self._clock.sleep_until_us(min(self._measurable_boot_us(), gives_up_us))

    def _measurable_boot_us(self) -> int:
        """When the next measurement may be made for the sum."""
        return (self._measured_boot_us or 0) + max(_BETWEEN_US, _BETWEEN_FACTOR * self._took_us)

    async def _measured(self) -> None:
        if not self._is_due():
            return
        failure_count = self._failure_count
        async with self._measuring:
            # A database that is away would keep each of those who wait here for as long as all before it.
            if self._failure is not None and self._failure_count != failure_count:
                raise self._failure
            if self._is_due():
                await self._measure()

    def _is_due(self) -> bool:
        if self._measured_boot_us is None:
            return True
        now_us = self._clock.boot_us()
        if now_us - self._measured_boot_us >= STALE_US:
            return True
        return self._sum_level() > self._level and now_us >= self._measurable_boot_us()

    async def _measure(self) -> None:
        passed = self._passed
        began_us = self._clock.boot_us()
        try:
            now_us = await self._time.now_us()
            self._count = await self._store.count_waiting(now_us=now_us, limit=self.limits.count_max)
        except OstinatoError as error:
            self._failure, self._failure_count = error, self._failure_count + 1
            raise
        # What came through meanwhile may have been counted, and may not.
        self._passed -= passed
        self._measured_boot_us = began_us
        self._took_us = self._clock.boot_us() - began_us
        before, self._level = self._level, level_of(self._count, self.limits, before=self._level)
        self._hooks.emit(PressureMeasured(level=self._level, waiting_count=self._count))
        if self._level is not before:
            self._hooks.emit(
                PressureChanged(
                    level=self._level.word,
                    before=before.word,
                    waiting_count=self._count,
                    yellow=self.limits.yellow,
                    red=self.limits.red,
                )
            )

    # ── holding back ─────────────────────────────────────────────────────────────────────────────────

    async def _delay(self, count: int) -> None:
        self._delayed_count += 1
        self._hooks.emit(SubmissionsHeldBack(how="delayed", count=count))
        try:
            await self._clock.sleep_until_us(
                self._clock.boot_us() + self.limits.delay_us(self._sum() - count)
            )
        finally:
            self._delayed_count -= 1

    def _refusal(self, count: int, why: str) -> UnavailableError:
        self._hooks.emit(SubmissionsHeldBack(how="refused", count=count))
        return UnavailableError(
            "BACKPRESSURE",
            f"{why}, so no more are accepted for now",
            hint="nothing was submitted; repeat it a little later, or have more workers",
        )

    async def _are_accepted(self, requests: Sequence[SubmitRequest]) -> bool:
        """Whether every one of `requests` has its instance: by the id that it chose, or by its key."""
        if requests and not await self._is_accepted(requests[0]):
            return False
        # Only now the others, as a flood of new ones is refused by the first.
        found = await self._store.get_instances([request.id for request in requests if request.id])
        for request in requests:
            if request.id not in found and not await self._has_live_key(request):
                return False
        return True

    async def _is_accepted(self, request: SubmitRequest) -> bool:
        if is_id(request.id) and await self._store.get_instances([request.id]):
            return True
        return await self._has_live_key(request)

    async def _has_live_key(self, request: SubmitRequest) -> bool:
        """Raises ``INVALID_VALUE`` for what is no key."""
        if request.key == "":
            return False
        validate_key(request.key)
        where = InstanceFilter(namespace=request.namespace, task=request.task, key=request.key)
        found = (await self._store.list_instances(where, cursor=None, limit=1)).instances
        return bool(found) and found[0].created_us + KEY_LIFETIME_US > await self._time.now_us()


def passing(
    gate: PressureGate | None, requests: Sequence[SubmitRequest]
) -> AbstractAsyncContextManager[None]:
    """As `PressureGate.passing`; without a gate everything passes at once."""
    return nullcontext() if gate is None else gate.passing(requests)
