"""Fires while owners die: none missing, none twice; on virtual time. Full size: OSTINATO_TEST_FULL=1."""

from __future__ import annotations

import os
from collections import Counter
from random import Random

from support.cluster import python_task
from support.fleet import OWNERSHIP_LEASE_US, WORKER_LEASE_US, Fleet

from ostinato.core.instants import DAY, HOUR, MILLISECOND, MINUTE, SECOND
from ostinato.core.schedule.trigger import CronTrigger
from ostinato.observe.records import Fired
from ostinato.scheduler.config import NodeConfig
from ostinato.testing.virtual_clock import START_US, run_virtual

FULL = os.environ.get("OSTINATO_TEST_FULL") == "1"
DAYS_FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"
#: A killed node is found dead after lease and margin, seen by looks; then its partitions are warmed up.
TAKE_OVER_US = OWNERSHIP_LEASE_US + 500 * MILLISECOND + SECOND


def test_c079_many_tasks_due_at_once_fire_once_each_though_schedulers_die() -> None:
    """2,000 tasks every minute for ten minutes, one of three nodes killed and restarted every 20 s."""
    task_count, minutes = (2_000, 10) if FULL else (300, 4)

    async def story() -> None:
        fleet, chance = Fleet(), Random(79)
        tasks = [
            python_task(f"t{number}", triggers=(CronTrigger(cron="* * * * *"),), overlap="allow")
            for number in range(task_count)
        ]
        await fleet.open("a b c", *tasks)
        end_us = START_US + minutes * MINUTE + 30 * SECOND
        while fleet.clock.wall_us() < end_us:
            address = chance.choice(sorted(fleet.nodes))
            await fleet.end(address, how="kill")
            await fleet.sleep(chance.randrange(2 * SECOND))
            await fleet.add(address)
            await fleet.sleep(20 * SECOND - fleet.clock.wall_us() % (20 * SECOND))
        await fleet.sleep(TAKE_OVER_US)
        counts = Counter((row.task, row.fire_us) for row in await fleet.instances())
        expected = {
            (task.name, START_US + minute * MINUTE) for task in tasks for minute in range(1, minutes + 1)
        }
        assert set(counts) == expected
        assert set(counts.values()) == {1}
        await fleet.close()

    run_virtual(story())


def test_c107_an_owner_that_dies_right_before_a_fire_delays_it_by_the_take_over_at_most() -> None:
    """Daily for 30 virtual days at full size; else six times, ten minutes apart."""
    kills, apart_us = (30, DAY) if FULL else (6, 10 * MINUTE)
    looks_us = SECOND if FULL else 200 * MILLISECOND

    async def story() -> None:
        fleet = Fleet(config=NodeConfig(worker_lease_us=WORKER_LEASE_US, look_us=looks_us))
        task = python_task(triggers=(CronTrigger(cron="*/2 * * * *"),), overlap="allow")
        await fleet.open("a b c", task)
        partition = (await fleet.store.get_tasks([task.ref]))[task.ref].partition
        for number in range(1, kills + 1):
            before_us = START_US + number * apart_us - SECOND
            await fleet.sleep(before_us - fleet.clock.wall_us())
            owner = fleet.owner(partition)
            await fleet.end(owner.address, how="kill")
            await fleet.sleep(30 * SECOND)
            await fleet.add(owner.address)
        await fleet.sleep(MINUTE)
        rows = await fleet.instances()
        assert [row.fire_us for row in rows] == [
            START_US + number * 2 * MINUTE for number in range(1, kills * apart_us // (2 * MINUTE) + 1)
        ]
        lateness = [record.lateness_us for record in fleet.recorder.records if isinstance(record, Fired)]
        assert sum(late_us > 100 * MILLISECOND for late_us in lateness) == kills
        assert max(lateness) <= TAKE_OVER_US - SECOND + looks_us
        await fleet.close()

    run_virtual(story())


def test_c107_days_of_take_overs_every_few_hours_leave_no_fire_out_and_double_none() -> None:
    """30 virtual days at full size. Leases are long, so that a day costs a second; what is late fires too."""
    days, apart_us = (30 if DAYS_FULL else 3), 5 * HOUR + 2 * MINUTE
    config = NodeConfig(
        worker_lease_us=WORKER_LEASE_US,
        ownership_lease_us=10 * MINUTE,
        ownership_margin_us=MINUTE,
        renewal_us=2 * MINUTE,
        look_us=MINUTE,
        safety_poll_us=10 * MINUTE,
        backlog_us=HOUR,
    )

    async def story() -> None:
        fleet, chance = Fleet(config=config), Random(107)
        every = CronTrigger(cron="*/2 * * * *", misfire="fire_all")
        task = python_task(triggers=(every,), overlap="allow")
        await fleet.open("a b c", task)
        partition = (await fleet.store.get_tasks([task.ref]))[task.ref].partition
        end_us = START_US + days * DAY
        for before_us in range(START_US + apart_us - SECOND, end_us, apart_us):
            await fleet.sleep(before_us - fleet.clock.wall_us())
            owner = fleet.owner(partition)
            await fleet.end(owner.address, how=chance.choice(("kill", "stop")))
            await fleet.sleep(chance.randrange(10 * MINUTE))
            await fleet.add(owner.address)
        await fleet.sleep(end_us + 20 * MINUTE - fleet.clock.wall_us())
        fires = sorted(row.fire_us or 0 for row in await fleet.instances())
        due_us = range(START_US + 2 * MINUTE, fleet.clock.wall_us(), 2 * MINUTE)
        assert fires == list(due_us)
        lateness = [record.lateness_us for record in fleet.recorder.records if isinstance(record, Fired)]
        # Found dead after lease and margin, by looks; a renewal may just have been seen.
        assert max(lateness) <= (10 + 1 + 2) * MINUTE
        await fleet.close()

    run_virtual(story())
