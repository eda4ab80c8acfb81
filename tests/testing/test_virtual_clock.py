"""Virtual time: it jumps, it is exact, and it does not run out after half a year."""

from __future__ import annotations

import asyncio

import pytest

from ostinato.core.instants import DAY, MICROSECOND, SECOND
from ostinato.testing.virtual_clock import START_US, VirtualClock, run_virtual


@pytest.mark.parametrize("duration_us", [MICROSECOND, SECOND, DAY, 195 * DAY, 4000 * DAY])
def test_a_sleep_ends_at_its_time_and_not_before(duration_us: int) -> None:
    async def story() -> tuple[int, int]:
        clock = VirtualClock()
        began_us = clock.boot_us()
        await clock.sleep_until_us(began_us + duration_us)
        # A second one from there, where the seconds no longer fit a float exactly.
        await clock.sleep_until_us(began_us + 2 * duration_us)
        return clock.boot_us() - began_us, clock.wall_us() - START_US

    boot_us, wall_us = run_virtual(story())
    assert boot_us == wall_us
    assert 2 * duration_us <= boot_us <= 2 * duration_us + 2


def test_sleepers_wake_in_the_order_of_their_times() -> None:
    async def story() -> list[int]:
        clock, woken = VirtualClock(), list[int]()

        async def sleeper(seconds: int) -> None:
            await clock.sleep_until_us(clock.boot_us() + seconds * SECOND)
            woken.append(seconds)

        await asyncio.gather(*(sleeper(seconds) for seconds in (5, 1, 3, 2, 4)))
        return woken

    assert run_virtual(story()) == [1, 2, 3, 4, 5]


def test_it_refuses_a_loop_of_real_time() -> None:
    async def story() -> int:
        return VirtualClock().boot_us()

    with pytest.raises(RuntimeError, match="run_virtual"):
        asyncio.run(story())
