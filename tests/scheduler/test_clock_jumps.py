"""C165, C167: clocks that jump by years and come back, and a node that is suspended; on virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import psutil
import pytest
from support.cluster import python_task, value_of
from support.fleet import OWNERSHIP_LEASE_US, WORKER_LEASE_US, Fleet, FleetNode, lasting

from ostinato.core.definition import TaskDefinition
from ostinato.core.instants import DAY, MINUTE, SECOND
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.schedule.trigger import CronTrigger, IntervalTrigger
from ostinato.core.states import State
from ostinato.observe.records import ClockJumped, ClockTrusted, NodeRejoined, PartitionsLost
from ostinato.scheduler.retention_loop import KEYS_KEPT_US, ROUND_US
from ostinato.scheduler.shared_time import SharedTime
from ostinato.testing.virtual_clock import START_US, VirtualClock, run_virtual

TEN_YEARS_US = 3_652 * DAY
#: From the start of virtual time to 2200-01-01.
TO_2200_US = 63_553 * DAY
JUMPS_US = [TEN_YEARS_US, TO_2200_US, -TEN_YEARS_US]
JUMPED_US = 5 * SECOND
RSS_BYTES_MAX = 50 << 20

#: By task: when it fires.
FIRES_EVERY_US = {"each-second": SECOND, "each-minute": MINUTE, "made-up": 10 * SECOND}


def tasks() -> list[TaskDefinition]:
    """Tasks of which a decade would make up anything from one fire to 315 million."""
    fire_all = IntervalTrigger(every_us=10 * SECOND, anchor_us=START_US, misfire="fire_all")
    return [
        python_task("each-second", triggers=(CronTrigger(cron="* * * * * *"),), overlap="allow"),
        python_task("each-minute", triggers=(CronTrigger(cron="* * * * *"),), overlap="allow"),
        python_task("made-up", triggers=(fire_all,), overlap="allow"),
        python_task("daily", triggers=(CronTrigger(cron="0 0 * * *"),)),
        python_task(
            "t", retry=RetryPolicy(interval_us=MINUTE, window_us=MINUTE * 10), queue_timeout_us=MINUTE
        ),
    ]


class JumpingDatabase:
    """Shifts the time that a fleet's store tells, for everyone."""

    def __init__(self, fleet: Fleet) -> None:
        self.skew_us = 0
        self._now_us = fleet.witness.now_us
        fleet.witness.now_us = self.now_us  # type: ignore[method-assign]  # the clock of its machine

    async def now_us(self) -> int:
        return await self._now_us() + self.skew_us


async def fired(fleet: Fleet, task: str) -> list[int]:
    """Instants for which a task has an instance, in order."""
    return sorted(row.fire_us for row in await fleet.instances() if row.task == task and row.fire_us)


def regular(task: str, *, until_us: int) -> list[int]:
    every_us = FIRES_EVERY_US[task]
    return list(range(START_US + every_us, until_us + 1, every_us))


def test_c165_a_node_whose_wall_clock_jumps_by_years_and_back_changes_nothing() -> None:
    async def story() -> None:
        fleet = Fleet()
        first, second, third = await fleet.open("a b c", *tasks())
        before = [set(member.owned) for member in (first, second, third)]
        for skew_us in JUMPS_US:
            await fleet.sleep(10 * SECOND)
            second.gate.skew_us = skew_us
            await fleet.sleep(JUMPED_US)
            second.gate.skew_us = 0
        await fleet.sleep(2 * MINUTE)
        for task in ("each-second", "each-minute"):
            assert await fired(fleet, task) == regular(task, until_us=fleet.clock.wall_us() - 1)
        assert before == [member.owned for member in (first, second, third)]
        assert [member.seen(ClockJumped) for member in (first, second, third)] == [[], [], []]
        await fleet.close()

    run_virtual(story())


@pytest.mark.parametrize("skew_us", JUMPS_US, ids=["plus-10-years", "to-2200", "minus-10-years"])
def test_c165_a_database_whose_clock_jumps_by_years_for_5_s_makes_nothing_up_and_all_goes_on(
    skew_us: int,
) -> None:
    async def story() -> None:
        fleet = Fleet()
        members = await fleet.open("a b c", *tasks())
        database, process = JumpingDatabase(fleet), psutil.Process()
        waits = await fleet.submit(tasks()[-1], expires_us=fleet.clock.wall_us() + 10 * MINUTE)
        await fleet.sleep(90 * SECOND + SECOND // 2)
        rss_bytes = process.memory_info().rss
        database.skew_us = skew_us
        await fleet.sleep(JUMPED_US)
        database.skew_us = 0
        await fleet.sleep(2 * MINUTE)
        assert process.memory_info().rss - rss_bytes < RSS_BYTES_MAX
        until_us = fleet.clock.wall_us() - 1
        for task in FIRES_EVERY_US:
            found = await fired(fleet, task)
            # Those of the doubt itself are made up, or one on time stands for them.
            assert set(found) <= set(regular(task, until_us=until_us))
            missing = set(regular(task, until_us=until_us)) - set(found)
            assert len(missing) <= (3 if task == "each-second" else 0), task
            assert set(Counter(found).values()) == {1}
        assert await fired(fleet, "daily") == []
        # Nothing that waits or has ended was taken for years old.
        assert (await fleet.instance(waits)).state is State.PENDING
        for member in members:
            (jumped,), (trusted,) = member.seen(ClockJumped), member.seen(ClockTrusted)
            assert abs(jumped.off_us - skew_us) < SECOND
            assert not trusted.has_changed
            assert trusted.held_us <= JUMPED_US + 2 * SECOND
            assert member.seen(PartitionsLost) == []
        await fleet.close()

    run_virtual(story())


def test_c165_a_clock_that_stays_years_ahead_is_believed_and_makes_up_one_instance_a_task() -> None:
    async def story() -> None:
        fleet = Fleet()
        (member,) = await fleet.open("a", *tasks())
        database, process = JumpingDatabase(fleet), psutil.Process()
        await fleet.sleep(30 * SECOND)
        rss_bytes = process.memory_info().rss
        database.skew_us = TEN_YEARS_US
        await fleet.until(lambda: value_of(bool(member.seen(ClockTrusted))), within_us=13 * SECOND)
        trusted_us = fleet.clock.wall_us() + TEN_YEARS_US
        await fleet.sleep(5 * SECOND)
        assert process.memory_info().rss - rss_bytes < RSS_BYTES_MAX
        assert member.seen(ClockTrusted)[0].has_changed
        made_up = {
            task: sum(fire_us < trusted_us for fire_us in await fired(fleet, task)) - before
            for task, before in (("each-minute", 0), ("daily", 0))
        }
        assert made_up == {"each-minute": 1, "daily": 1}
        # Whoever asks for all fires gets the newest, up to the bound.
        assert len(await fired(fleet, "made-up")) <= 3 + 1 + 100
        await fleet.close()

    run_virtual(story())


def test_c165_a_task_that_is_applied_while_the_database_is_years_ahead_fires_once_the_clock_is_right() -> (
    None
):
    """An edit bears the time at which it was made, and its first fire must not be as far away as that."""

    async def story() -> None:
        fleet = Fleet()
        await fleet.open("a", python_task("t"))
        database = JumpingDatabase(fleet)
        await fleet.sleep(10 * SECOND)
        database.skew_us = TEN_YEARS_US
        every = (CronTrigger(cron="* * * * *"), IntervalTrigger(every_us=10 * SECOND))
        tasks = [python_task("new", triggers=every), python_task("t", triggers=every)]
        await fleet.store.apply(tasks, now_us=await fleet.witness.now_us())
        await fleet.sleep(JUMPED_US)
        database.skew_us = 0
        await fleet.sleep(2 * MINUTE)
        for task in ("new", "t"):
            assert len(await fired(fleet, task)) >= 10
        await fleet.close()

    run_virtual(story())


class _AnsweringLate:
    """A store that tells the time of its answer's leaving, which is on its way for a while."""

    def __init__(self, clock: VirtualClock) -> None:
        self.skew_us = 0
        self.there_us = 0
        self._clock = clock

    async def now_us(self) -> int:
        await self._clock.sleep_until_us(self._clock.boot_us() + self.there_us)
        return self._clock.wall_us() + self.skew_us


def test_a_jump_is_believed_no_sooner_because_the_first_sample_of_it_was_slow_on_its_way() -> None:
    """It has been seen for a second, and not since the sample was sent."""

    async def story() -> None:
        clock = VirtualClock()
        store = _AnsweringLate(clock)
        time = SharedTime(store, clock)  # type: ignore[arg-type]  # it is only ever asked for the time
        await time.sample()
        store.skew_us, store.there_us = TEN_YEARS_US, 12 * SECOND
        await time.sample()
        store.there_us = 0
        await clock.sleep_until_us(clock.boot_us() + SECOND)
        await time.sample()
        assert time.is_in_doubt
        store.skew_us = 0
        await time.sample()
        assert not time.is_in_doubt
        assert abs(time.now_us() - clock.wall_us()) < SECOND

    run_virtual(story())


@pytest.mark.parametrize(
    ("then_us", "is_in_doubt"), [(-20 * SECOND, False), (-24 * SECOND, False), (-30 * SECOND, True)]
)
def test_a_jump_is_believed_after_10_s_although_the_clock_moves_by_what_needs_no_doubt(
    then_us: int, is_in_doubt: bool
) -> None:
    """Set back by 24 s and 8 s later forth by 4: all samples say that the time as it was is wrong."""

    async def story() -> None:
        clock = VirtualClock()
        store = _AnsweringLate(clock)
        time = SharedTime(store, clock)  # type: ignore[arg-type]  # it is only ever asked for the time
        await time.sample()
        for count in range(11):
            store.skew_us = -24 * SECOND if count < 8 else then_us
            await time.sample()
            assert time.is_in_doubt == (count < 10 or is_in_doubt)
            await clock.sleep_until_us(clock.boot_us() + SECOND)
        assert time.now_us() - clock.wall_us() == (0 if is_in_doubt else then_us)

    run_virtual(story())


def test_two_clocks_that_answer_in_turn_and_are_close_together_are_believed() -> None:
    async def story() -> None:
        clock = VirtualClock()
        store = _AnsweringLate(clock)
        time = SharedTime(store, clock)  # type: ignore[arg-type]  # it is only ever asked for the time
        await time.sample()
        for count in range(11):
            store.skew_us = (20 + 2 * (count % 2)) * SECOND
            await time.sample()
            await clock.sleep_until_us(clock.boot_us() + SECOND)
        assert not time.is_in_doubt

    run_virtual(story())


def test_a_clock_that_is_ahead_by_years_for_seconds_ends_no_idempotency_key() -> None:
    """I8: retention goes by the time that is believed, not by what the database says at that moment."""

    async def story() -> None:
        fleet = Fleet()
        (member,) = await fleet.open("a", python_task())
        database = JumpingDatabase(fleet)
        delete, ended_by_us = member.node.parts.store.delete_finished, list[int]()

        async def noted(**arguments: int) -> int:
            ended_by_us.append(arguments["keys_before_us"])
            return await delete(**arguments)

        member.node.parts.store.delete_finished = noted  # type: ignore[method-assign]  # the same, noted
        await fleet.sleep(ROUND_US - 3 * SECOND)
        database.skew_us = TEN_YEARS_US
        await fleet.sleep(JUMPED_US)
        database.skew_us = 0
        assert len(ended_by_us) == 1
        assert ended_by_us[0] <= START_US + ROUND_US + JUMPED_US - KEYS_KEPT_US
        await fleet.close()

    run_virtual(story())


# ── suspended ─────────────────────────────────────────────────────────────────────────────────────────

SUSPENDED_US = 10 * MINUTE
#: What changes the database, but for the list of workers that people read, by which nothing is decided.
WRITES = (
    "commit",
    "submit",
    "append_output",
    "apply",
    "add_requests",
    "delete_finished",
    "take_partitions",
    "release_partitions",
    "register_node",
    "remove_node",
    "renew_node",
)


def noted_writes(member: FleetNode) -> list[str]:
    """Names of the calls of this node that change something, as they begin from now on."""
    store, names = member.node.parts.store, list[str]()
    for name in WRITES:
        setattr(store, name, _noting(getattr(store, name), name, names))
    return names


def _noting(call: Callable[..., object], name: str, names: list[str]) -> Callable[..., object]:
    async def noted(*args: object, **named: object) -> object:
        names.append(name)
        return await call(*args, **named)  # type: ignore[misc]  # all of them are coroutines

    return noted


@pytest.mark.parametrize("others", ["", "b c"], ids=["alone", "with-others"])
def test_c167_a_node_that_was_suspended_for_10_minutes_checks_its_leases_before_it_writes(
    others: str,
) -> None:
    """Time that it slept through counts on its clock; its worker has not slept, and ended its attempts."""

    async def story() -> None:
        fleet = Fleet()
        task = python_task(retry=RetryPolicy(max_lost=5), overlap="allow")
        every = python_task("each-minute", triggers=(CronTrigger(cron="* * * * *"),), overlap="allow")
        await fleet.open(f"a {others}", task, every)
        partition = (await fleet.store.get_tasks([task.ref]))[task.ref].partition
        member = fleet.owner(partition)
        fleet.add_worker("w1", lasting(fleet, 20 * MINUTE), tasks="t each-minute")
        identity = await fleet.submit(task)
        await fleet.in_state(identity, State.RUNNING)
        former_id = member.node_id
        member.freeze()
        waits = await fleet.submit(task)
        await fleet.sleep(SUSPENDED_US)
        writes = noted_writes(member)
        if not others:
            # Nobody else has decided anything, and the attempt has ended with its lease.
            (execution,) = [item for item in fleet.executions if item.instance_id == identity]
            assert execution.ended_us is not None
            assert execution.ended_us - execution.began_us <= WORKER_LEASE_US
            assert (await fleet.instance(waits)).state is State.PENDING
        member.thaw()
        await fleet.settled()
        await fleet.sleep(OWNERSHIP_LEASE_US + WORKER_LEASE_US + SECOND)
        # Its row is renewed, or known to be gone and followed by that of another identity; then all the rest.
        assert writes[0] == ("register_node" if others else "renew_node")
        if others:
            # It was found dead, and is another now.
            (record,) = member.seen(NodeRejoined)
            assert record.former_id == former_id != member.node_id
        else:
            assert (await fleet.instance(identity)).attempt == 2
        fires = await fired(fleet, "each-minute")
        assert len(fires) == len(set(fires))
        rows = await fleet.instances(states=(State.RUNNING,))
        assert {row.id for row in rows} >= {identity, waits}
        await fleet.close()

    run_virtual(story())
