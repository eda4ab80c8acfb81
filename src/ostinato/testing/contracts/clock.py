"""Contract of clocks: two time bases, neither of which a sleep may betray."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from ostinato.clock import Clock
from ostinato.core.instants import DAY, MILLISECOND, SECOND

#: Runs a coroutine to its end on the loop that the clock belongs to.
Run: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]


class ClockContract:
    """Derive and give two fixtures: ``clock``, and ``run``, a ``Run``."""

    def test_a_sleep_ends_at_its_time_and_never_before(self, clock: Clock, run: Run) -> None:
        async def story() -> None:
            for wait_us in (0, 1, 999, MILLISECOND, 20 * MILLISECOND):
                until_us = clock.boot_us() + wait_us
                await clock.sleep_until_us(until_us)
                assert clock.boot_us() >= until_us

        run(story())

    def test_a_time_that_has_passed_is_returned_from_at_once(self, clock: Clock, run: Run) -> None:
        async def story() -> None:
            before_us = clock.boot_us()
            await clock.sleep_until_us(before_us - DAY)
            assert clock.boot_us() - before_us < SECOND

        run(story())

    def test_a_sleep_lets_others_run_even_if_it_is_over(self, clock: Clock, run: Run) -> None:
        async def story() -> None:
            turns: list[str] = []

            async def other() -> None:
                turns.append("other")

            task = asyncio.create_task(other())
            await clock.sleep_until_us(clock.boot_us() - 1)
            await task
            turns.append("sleeper")
            assert turns == ["other", "sleeper"]

        run(story())

    def test_monotonic_time_never_goes_back_and_keeps_pace_with_the_wall(
        self, clock: Clock, run: Run
    ) -> None:
        async def story() -> None:
            boot_us, wall_us = clock.boot_us(), clock.wall_us()
            for _ in range(20):
                later_us = clock.boot_us()
                assert later_us >= boot_us
                await clock.sleep_until_us(later_us + MILLISECOND)
            passed_us = clock.boot_us() - boot_us
            assert passed_us >= 20 * MILLISECOND
            assert abs((clock.wall_us() - wall_us) - passed_us) < SECOND

        run(story())

    def test_the_two_time_bases_are_told_apart_at_a_glance(self, clock: Clock, run: Run) -> None:
        """Code that mixes them must fail at once, not after years."""

        async def story() -> None:
            assert abs(clock.wall_us() - clock.boot_us()) > 365 * DAY

        run(story())

    def test_a_cancelled_sleep_ends_at_once(self, clock: Clock, run: Run) -> None:
        async def story() -> None:
            began_us = clock.boot_us()
            sleeper = asyncio.ensure_future(clock.sleep_until_us(began_us + DAY))
            await clock.sleep_until_us(began_us + MILLISECOND)
            sleeper.cancel()
            await asyncio.wait([sleeper])
            assert sleeper.cancelled()
            assert clock.boot_us() - began_us < DAY

        run(story())
