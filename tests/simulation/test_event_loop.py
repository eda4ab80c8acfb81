"""The loop of many processes: virtual time, order drawn from the seed, pause, crash, slowness."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ostinato.clock import Clock
from ostinato.core.instants import HOUR, MILLISECOND, SECOND
from ostinato.simulation.clocks import ProcessClock
from ostinato.simulation.event_loop import SimulatedLoop, StuckError
from ostinato.simulation.process import Process, current_process
from ostinato.testing.contracts.clock import ClockContract, Run


def run(story: Callable[[SimulatedLoop], Coroutine[Any, Any, None]], seed: int = 1) -> SimulatedLoop:
    loop = SimulatedLoop(seed)
    try:
        loop.run(story(loop))
    finally:
        loop.close()
    assert loop.unhandled == []
    return loop


async def sleep(loop: SimulatedLoop, duration_us: int) -> None:
    clock = loop.true_clock
    await clock.sleep_until_us(clock.boot_us() + duration_us)


class TestProcessClock(ClockContract):
    @pytest.fixture
    def loop(self) -> SimulatedLoop:
        return SimulatedLoop(1)

    @pytest.fixture(params=[0, 300, -300])
    def clock(self, loop: SimulatedLoop, request: pytest.FixtureRequest) -> Clock:
        return ProcessClock(loop, wall_offset_us=HOUR, boot_offset_us=77 * HOUR, drift_ppm=request.param)

    @pytest.fixture
    def run(self, loop: SimulatedLoop) -> Run:
        return loop.run


def test_a_day_of_waiting_takes_no_time() -> None:
    async def story(loop: SimulatedLoop) -> None:
        await sleep(loop, 24 * HOUR)
        assert loop.true_us == 24 * HOUR

    run(story)


def test_what_a_process_starts_belongs_to_it() -> None:
    async def story(loop: SimulatedLoop) -> None:
        process = loop.process("a")
        seen: list[Process] = []

        async def inner() -> None:
            seen.append(current_process())

        async def outer() -> None:
            seen.append(current_process())
            await asyncio.gather(inner(), asyncio.create_task(inner()))
            asyncio.get_running_loop().call_later(0.1, lambda: seen.append(current_process()))
            await asyncio.wait_for(sleep(loop, SECOND), 10)
            async with asyncio.timeout(10):
                await asyncio.to_thread(lambda: seen.append(current_process()))

        await process.spawn(outer())
        assert seen == [process] * 5
        assert current_process() is loop.world

    run(story)


def test_who_wakes_another_process_does_not_lend_it_its_own() -> None:
    async def story(loop: SimulatedLoop) -> None:
        first, second = loop.process("a"), loop.process("b")
        event = asyncio.Event()
        seen: list[Process] = []

        async def wait() -> None:
            await event.wait()
            seen.append(current_process())

        async def wake() -> None:
            event.set()

        waiting = first.spawn(wait())
        await second.spawn(wake())
        await waiting
        assert seen == [first]

    run(story)


def order_of(seed: int) -> list[str]:
    order: list[str] = []

    async def story(loop: SimulatedLoop) -> None:
        def note(name: str) -> None:
            order.append(name)

        for number in range(3):
            for name in "abcd":
                process = loop.process(name)
                process.call_soon(note, f"{name}{number}.1")
                process.call_soon(note, f"{name}{number}.2")
        await sleep(loop, 1)

    run(story, seed)
    return order


def test_the_seed_draws_the_order_between_processes_and_none_within_one() -> None:
    orders = {tuple(order_of(seed)) for seed in range(20)}
    assert len(orders) > 15
    assert order_of(3) == order_of(3)
    for order in orders:
        assert all(order.index(f"{name}0.1") < order.index(f"{name}0.2") for name in "abcd")


def test_a_paused_process_does_what_became_due_when_it_goes_on_in_order() -> None:
    async def story(loop: SimulatedLoop) -> None:
        process = loop.process("a")
        done: list[tuple[str, int]] = []

        async def work(name: str, duration_us: int) -> None:
            await sleep(loop, duration_us)
            done.append((name, loop.true_us))

        for name, duration_us in (("late", 3 * SECOND), ("early", SECOND), ("after", 20 * SECOND)):
            process.spawn(work(name, duration_us))
        await sleep(loop, SECOND // 2)
        process.pause()
        process.call_soon(lambda: done.append(("asked", loop.true_us)))
        await sleep(loop, 9 * SECOND)
        assert done == []
        process.resume()
        await sleep(loop, 30 * SECOND)
        at_us = 9 * SECOND + SECOND // 2
        assert done == [("asked", at_us), ("early", at_us), ("late", at_us), ("after", 20 * SECOND)]

    run(story)


def test_nothing_of_a_crashed_process_ever_runs_again() -> None:
    effects: list[str] = []

    async def story(loop: SimulatedLoop) -> None:
        process = loop.process("a")
        future: asyncio.Future[None] = loop.create_future()

        async def work(wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
            try:
                await wait()
            finally:
                effects.append("finally")
                await sleep(loop, 1)
                effects.append("after finally")

        async def wait_for_future() -> None:
            await future

        process.spawn(work(lambda: sleep(loop, SECOND)))
        process.spawn(work(wait_for_future))
        await sleep(loop, MILLISECOND)
        process.spawn(work(lambda: sleep(loop, SECOND)))
        process.call_soon(effects.append, "callback")
        process.crash()
        process.call_soon(effects.append, "late callback")
        process.spawn(work(lambda: sleep(loop, SECOND)))
        future.set_result(None)
        gc.collect()
        await sleep(loop, 10 * SECOND)
        gc.collect()
        assert effects == []

    run(story)
    gc.collect()
    assert "after finally" not in effects


def test_who_asked_is_told_of_a_crash_once_and_in_order() -> None:
    async def story(loop: SimulatedLoop) -> None:
        process = loop.process("a")
        told: list[object] = []
        process.on_crash(lambda: told.append(1))
        process.on_crash(lambda: told.append(current_process() is loop.world))
        unasked = told.clear
        process.on_crash(unasked)
        process.forget(unasked)
        process.crash()
        process.crash()
        process.on_crash(lambda: told.append("late"))
        assert told == [1, True, "late"]

    run(story)


def test_a_process_may_end_itself() -> None:
    async def story(loop: SimulatedLoop) -> None:
        process = loop.process("a")
        steps: list[str] = []

        async def other() -> None:
            steps.append("other")

        async def work() -> None:
            process.spawn(other())
            process.crash()
            steps.append("the rest of this callback")
            await sleep(loop, 0)
            steps.append("never")

        process.spawn(work())
        await sleep(loop, SECOND)
        assert steps == ["the rest of this callback"]

    run(story)


def test_a_slow_process_pays_for_each_turn_while_others_go_on() -> None:
    async def story(loop: SimulatedLoop) -> None:
        slow, fast = loop.process("slow"), loop.process("fast")
        slow.turn_us = 10 * MILLISECOND

        async def turns(count: int) -> int:
            for _ in range(count):
                await sleep(loop, 0)
            return loop.true_us

        fast_us, slow_us = await asyncio.gather(fast.spawn(turns(50)), slow.spawn(turns(50)))
        assert fast_us == 0
        assert slow_us >= 500 * MILLISECOND

    run(story)


def test_a_loop_that_waits_for_nothing_is_found() -> None:
    async def story(loop: SimulatedLoop) -> None:
        while True:
            await sleep(loop, 0)

    with pytest.raises(StuckError, match="time stands still at 0 µs"):
        run(story)


def test_a_story_that_can_never_end_is_found() -> None:
    async def story(loop: SimulatedLoop) -> None:
        await loop.create_future()

    with pytest.raises(StuckError, match="nothing will ever happen again"):
        run(story)


def test_what_nobody_could_be_told_of_is_kept() -> None:
    loop = SimulatedLoop(1)

    async def story() -> None:
        loop.process("a").call_soon(lambda: 1 // 0)
        await sleep(loop, 1)

    loop.run(story())
    loop.close()
    assert [type(context["exception"]) for context in loop.unhandled] == [ZeroDivisionError]


def test_a_task_that_failed_unheard_is_told_when_the_run_ends() -> None:
    loop = SimulatedLoop(1)

    async def fail() -> None:
        raise ValueError("a bug")

    async def story() -> None:
        process = loop.process("a")
        process.spawn(fail())
        heard = process.spawn(fail())
        with pytest.raises(ValueError, match="a bug"):
            await heard
        for _ in range(500):
            await process.spawn(sleep(loop, 1))

    loop.run(story())
    assert loop.unhandled == []
    loop.close()
    assert [str(context["exception"]) for context in loop.unhandled] == ["a bug"]


def test_a_cancelled_timer_at_the_same_instant_holds_nothing_up() -> None:
    async def story(loop: SimulatedLoop) -> None:
        called_us: list[int] = []
        loop.call_at_us(SECOND, lambda: called_us.append(loop.true_us))
        loop.call_at_us(SECOND, print).cancel()
        await sleep(loop, 5 * SECOND)
        assert called_us == [SECOND]

    run(story)


def test_cancelled_timers_are_not_kept() -> None:
    async def story(loop: SimulatedLoop) -> None:
        for _ in range(10_000):
            loop.call_later(3600, print).cancel()
        assert len(loop._timers) < 1_000

    run(story)


def test_a_clock_has_its_own_rate_and_its_wall_may_jump() -> None:
    async def story(loop: SimulatedLoop) -> None:
        clock = ProcessClock(loop, drift_ppm=1_000)
        boot_us, wall_us = clock.boot_us(), clock.wall_us()
        await clock.sleep_until_us(boot_us + 1_001 * SECOND)
        assert loop.true_us == 1_000 * SECOND
        clock.set_drift(-1_000)
        await sleep(loop, 1_000 * SECOND)
        assert clock.boot_us() - boot_us == 2_000 * SECOND
        clock.jump_wall(-HOUR)
        assert clock.wall_us() - wall_us == 2_000 * SECOND - HOUR
        assert clock.boot_us() - boot_us == 2_000 * SECOND

    run(story)
