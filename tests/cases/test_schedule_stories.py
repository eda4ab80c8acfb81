"""Hard cases of groups A, B and C that need a whole scheduler: told on virtual time."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest
from support.cluster import ADDRESS, Cluster, python_task
from support.scripted_worker import ScriptedWorker

from ostinato.core.instants import DAY, HOUR, MINUTE, SECOND, from_datetime
from ostinato.core.model import HistoryKind
from ostinato.core.schedule.trigger import CronTrigger, DateTrigger, IntervalTrigger
from ostinato.core.states import State
from ostinato.scheduler.config import NodeConfig
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import START_US, VirtualClock, run_virtual

#: The node's own pulse is slow, so that days of virtual time take moments.
SLOW = NodeConfig(
    worker_lease_us=10 * DAY,
    ownership_lease_us=DAY,
    renewal_us=6 * HOUR,
    safety_poll_us=6 * HOUR,
    acknowledgement_us=DAY,
    backlog_us=DAY,
    success_retention_us=400 * DAY,
)


def at(text: str) -> int:
    return from_datetime(datetime.fromisoformat(text).astimezone(UTC))


async def worker_for(cluster: Cluster, name: str = "t") -> ScriptedWorker:
    worker = ScriptedWorker(cluster.network, cluster.clock, lambda item: b"1", tasks=[name])
    await worker.connect(ADDRESS)
    worker.beat(DAY)
    return worker


@pytest.mark.parametrize(
    ("zone", "expected"),
    [("UTC", "05:15"), ("America/New_York", "09:15")],
)
def test_c021_a_task_s_zone_alone_decides(zone: str, expected: str) -> None:
    async def story() -> None:
        cluster = Cluster(config=SLOW)
        cluster.clock = VirtualClock(start_us=at("2026-05-20T00:00:00+00:00"))
        cluster.store = MemoryStore(cluster.clock)
        cluster.node = cluster._node()
        task = python_task(triggers=(CronTrigger(cron="15 5 * * *", timezone=zone),))
        await cluster.start(task)
        worker = await worker_for(cluster)
        await cluster.sleep(2 * DAY)
        fires = [row.fire_us for row in await cluster.instances()]
        assert fires == [at(f"2026-05-{day}T{expected}:00+00:00") for day in (20, 21)]
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize("misfire", ["skip", "fire_once"])
def test_c023_enabling_after_a_year_fires_nothing_of_the_past(misfire: str) -> None:
    async def story() -> None:
        cluster = Cluster(config=SLOW)
        cluster.clock = VirtualClock(start_us=at("2015-04-30T00:00:00+00:00"))
        cluster.store = MemoryStore(cluster.clock)
        cluster.node = cluster._node()
        trigger = CronTrigger(cron="0 5 1 * *", misfire=misfire)  # type: ignore[arg-type]  # both words are modes
        await cluster.start(python_task(triggers=(trigger,)))
        assert await cluster.ask("disable", task="t") == "OK"
        await cluster.sleep(at("2016-05-17T16:00:00+00:00") - cluster.clock.wall_us())
        assert await cluster.ask("enable", task="t") == "OK"
        await cluster.sleep(at("2016-06-01T05:00:01+00:00") - cluster.clock.wall_us())
        assert [row.fire_us for row in await cluster.instances()] == [at("2016-06-01T05:00:00+00:00")]
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize("down_us", [101 * MINUTE, 1000 * MINUTE, 400 * DAY])
@pytest.mark.parametrize(("misfire", "made_up"), [("fire_once", 1), ("fire_all", 10), ("skip", 0)])
def test_c027_after_any_time_down_the_schedule_goes_on(misfire: str, made_up: int, down_us: int) -> None:
    async def story() -> None:
        cluster = Cluster(config=SLOW)
        trigger = CronTrigger(cron="* * * * *", misfire=misfire, misfire_bound=10)  # type: ignore[arg-type]  # words are modes
        await cluster.start(python_task(triggers=(trigger,), overlap="allow"))
        await cluster.node.stop()
        await cluster.sleep(down_us + 30 * SECOND)
        back_us = cluster.clock.wall_us()
        cluster.node = cluster._node()
        await cluster.node.start()
        await cluster.sleep(3 * MINUTE)
        rows = [row for row in await cluster.instances() if row.state is not State.SKIPPED]
        past = [row for row in rows if row.fire_us is not None and row.fire_us <= back_us]
        assert len(past) == made_up
        future = [row.fire_us for row in rows if row.fire_us is not None and row.fire_us > back_us]
        assert len(future) == 3
        await cluster.stop()

    run_virtual(story())


def test_c029_a_due_fire_survives_two_edits_and_the_new_time_holds_after_a_restart() -> None:
    async def story() -> None:
        cluster = Cluster(config=SLOW)
        hourly, five_past = CronTrigger(cron="0 * * * *"), CronTrigger(cron="5 * * * *")
        await cluster.start(python_task(triggers=(hourly,)))
        await cluster.sleep(HOUR - 2 * SECOND)
        await cluster.node.stop()
        await cluster.sleep(4 * SECOND)
        edits = [
            python_task(triggers=(hourly,), labels={"edited": "yes"}),
            python_task(triggers=(five_past,), labels={"edited": "yes"}),
        ]
        for edit in edits:
            await cluster.store.apply([edit], now_us=cluster.clock.wall_us())
        await cluster.sleep(3 * SECOND)
        cluster.node = cluster._node()
        await cluster.node.start()
        await cluster.sleep(MINUTE)
        (made,) = await cluster.instances()
        assert made.fire_us == START_US + HOUR
        await cluster.restart()
        (trigger,) = await cluster.store.triggers_of(edits[1].ref)
        assert trigger.next_us == START_US + HOUR + 5 * MINUTE
        await cluster.sleep(HOUR)
        fires = [row.fire_us for row in await cluster.instances()]
        assert fires == [START_US + HOUR, START_US + HOUR + 5 * MINUTE]
        await cluster.stop()

    run_virtual(story())


def test_c031_with_default_settings_a_fire_three_seconds_late_still_runs_and_says_so() -> None:
    async def story() -> None:
        cluster = Cluster(config=SLOW)
        await cluster.start(python_task(triggers=(CronTrigger(cron="0 3 * * *"),)))
        await cluster.sleep(3 * HOUR - SECOND)
        await cluster.node.stop()
        await cluster.sleep(4 * SECOND)
        cluster.node = cluster._node()
        await cluster.node.start()
        await cluster.sleep(SECOND)
        (row,) = await cluster.instances()
        assert row.fire_us == START_US + 3 * HOUR
        (told,) = await cluster.store.history(row.id)
        assert told.kind is HistoryKind.MISFIRE
        assert "late" in told.sentence
        await cluster.stop()

    run_virtual(story())


def test_c033_catch_up_makes_every_missed_day_exactly_once_through_restarts() -> None:
    async def story() -> None:
        cluster = Cluster(config=SLOW)
        daily = CronTrigger(cron="0 0 * * *", misfire="fire_all", misfire_bound=100)
        await cluster.start(python_task(triggers=(daily,), overlap="allow"))
        await cluster.node.stop()
        await cluster.sleep(60 * DAY + HOUR)
        cluster.node = cluster._node()
        await cluster.node.start()
        await cluster.restart()
        worker = await worker_for(cluster)
        await cluster.sleep(HOUR)
        fires = Counter(row.fire_us for row in await cluster.instances())
        assert fires == Counter(START_US + day * DAY for day in range(1, 61))
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_c039_a_date_sixty_days_ahead_is_not_early() -> None:
    """I4."""

    async def story() -> None:
        cluster = Cluster(config=SLOW)
        when_us = START_US + 60 * DAY + 7 * SECOND
        triggers = (DateTrigger(at_us=when_us), IntervalTrigger(every_us=90 * DAY))
        await cluster.start(python_task(triggers=triggers))
        worker = await worker_for(cluster)
        await cluster.sleep(91 * DAY)
        rows = await cluster.instances()
        assert rows[0].fire_us == when_us
        assert len(rows) == 2
        assert all(row.assigned_us is not None and row.assigned_us >= row.due_us for row in rows)
        assert rows[1].fire_us is not None
        assert rows[1].fire_us - START_US >= 90 * DAY
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_c041_registering_the_same_task_again_changes_nothing() -> None:
    async def story() -> None:
        cluster = Cluster(config=SLOW)
        task = python_task(triggers=(CronTrigger(cron="* * * * *"),), overlap="allow")
        await cluster.start(task)
        for _ in range(15):
            (receipt,) = await cluster.store.apply([task], now_us=cluster.clock.wall_us())
            assert (receipt.outcome, receipt.version) == ("unchanged", 1)
            await cluster.sleep(20 * SECOND)
        fires = [row.fire_us for row in await cluster.instances()]
        assert fires == [START_US + minute * MINUTE for minute in range(1, 6)]
        await cluster.stop()

    run_virtual(story())


def test_c025_at_the_end_of_the_calendar_the_other_triggers_go_on() -> None:
    async def story() -> None:
        cluster = Cluster(config=SLOW)
        past = CronTrigger(cron="0 0 29 2 *")
        cluster.clock = VirtualClock(start_us=at("9999-12-30T00:00:00+00:00"))
        cluster.store = MemoryStore(cluster.clock)
        cluster.node = cluster._node()
        task = python_task(triggers=(past, CronTrigger(cron="0 * * * *")), overlap="allow")
        await cluster.start(task)
        await cluster.sleep(3 * HOUR)
        assert len(await cluster.instances()) == 3
        rows = {row.next_us is None for row in await cluster.store.triggers_of(task.ref)}
        assert rows == {True, False}
        await cluster.stop()

    run_virtual(story())


def test_c047_forbid_leaves_a_visible_skip_for_every_refused_fire() -> None:
    async def story() -> None:
        cluster = Cluster(config=SLOW)
        task = python_task(triggers=(IntervalTrigger(every_us=10 * SECOND),))
        await cluster.start(task)
        worker = ScriptedWorker(cluster.network, cluster.clock, lambda item: None, tasks=["t"])
        await worker.connect(ADDRESS)
        worker.beat(DAY)
        await cluster.sleep(61 * SECOND)
        states = [row.state for row in await cluster.instances()]
        assert states == [State.RUNNING, *[State.SKIPPED] * 5]
        assert all("overlap forbid" in row.reason for row in await cluster.instances(states=(State.SKIPPED,)))
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())
