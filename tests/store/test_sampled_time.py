"""The time by which submissions are dated is the store's, asked for once a second; it does not go back."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from ostinato.core.instants import DAY, MILLISECOND, SECOND
from ostinato.store.sampled_time import SampledTime
from ostinato.testing.virtual_clock import VirtualClock, run_virtual


class _Store:
    """Tells the time of a database to which it is `there_us` and from which it is `back_us`."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.skew_us = self.there_us = self.back_us = self.asked = 0

    async def now_us(self) -> int:
        self.asked += 1
        await self._clock.sleep_until_us(self._clock.boot_us() + self.there_us)
        now_us = self._clock.wall_us() + self.skew_us
        await self._clock.sleep_until_us(self._clock.boot_us() + self.back_us)
        return now_us


async def _after(clock: VirtualClock, duration_us: int) -> None:
    await clock.sleep_until_us(clock.boot_us() + duration_us)


def _run(story: Coroutine[Any, Any, None]) -> None:
    run_virtual(story)


def test_the_store_is_asked_once_a_second_at_most() -> None:
    async def story() -> None:
        clock = VirtualClock()
        store = _Store(clock)
        time = SampledTime(store, clock)  # type: ignore[arg-type]  # it is only ever asked for the time
        for _ in range(30):
            assert await time.now_us() == clock.wall_us()
            await _after(clock, 100 * MILLISECOND)
        assert store.asked == 3

    _run(story())


def test_an_answer_that_was_long_on_its_way_dates_no_submission_before_the_one_before_it() -> None:
    async def story() -> None:
        clock = VirtualClock()
        store = _Store(clock)
        time = SampledTime(store, clock)  # type: ignore[arg-type]  # as above
        earlier_us = await time.now_us()
        store.back_us = 5 * SECOND
        await _after(clock, SECOND)
        late_us = await time.now_us()
        assert late_us == clock.wall_us() > earlier_us

    _run(story())


def test_it_is_never_ahead_of_the_store() -> None:
    async def story() -> None:
        clock = VirtualClock()
        store = _Store(clock)
        store.there_us, store.back_us = 300 * MILLISECOND, 200 * MILLISECOND
        time = SampledTime(store, clock)  # type: ignore[arg-type]  # as above
        assert clock.wall_us() - 500 * MILLISECOND <= await time.now_us() <= clock.wall_us()

    _run(story())


def test_a_jump_of_the_stores_clock_is_followed_within_a_second() -> None:
    async def story() -> None:
        clock = VirtualClock()
        store = _Store(clock)
        time = SampledTime(store, clock)  # type: ignore[arg-type]  # as above
        for skew_us in (DAY, -DAY):
            await time.now_us()
            store.skew_us = skew_us
            await _after(clock, SECOND)
            assert await time.now_us() == clock.wall_us() + skew_us

    _run(story())
