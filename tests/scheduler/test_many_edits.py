"""Many definitions come into force at once: no other fires wait behind them, and none of theirs is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from support.cluster import Cluster, python_task

from ostinato.core.definition import TaskRef
from ostinato.core.instants import HOUR, MILLISECOND, MINUTE, SECOND
from ostinato.core.model import Instance
from ostinato.core.schedule.trigger import CronTrigger, IntervalTrigger
from ostinato.scheduler.shared_time import _Doubt
from ostinato.store.batches import CommitBatch, CommitReport
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import START_US, VirtualClock, run_virtual

#: About what a commit costs on a disk, and a row in it.
COMMIT_US = 3 * MILLISECOND
ROW_US = 100
MANY = 5_000
LATE_US_MAX = 50 * MILLISECOND


class SlowStore(MemoryStore):
    """The in-memory store, whose commits take as long as those of a disk."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.switch_counts: list[int] = []
        self.late_us: list[int] = []
        #: Called while the trigger loop looks at the live instances of what is due.
        self.on_live: Callable[[Sequence[TaskRef]], None] = lambda refs: None

    async def live_instances(self, refs: Sequence[TaskRef], *, limit: int) -> dict[TaskRef, list[Instance]]:
        found = await super().live_instances(refs, limit=limit)
        self.on_live(refs)
        return found

    async def commit(self, batch: CommitBatch) -> CommitReport:
        duration_us = COMMIT_US + ROW_US * (len(batch.switches) + len(batch.inserts))
        await self.clock.sleep_until_us(self.clock.boot_us() + duration_us)
        report = await super().commit(batch)
        if batch.switches:
            self.switch_counts.append(len(batch.switches))
        now_us = self.clock.wall_us()
        self.late_us.extend(now_us - row.fire_us for row in batch.inserts if row.fire_us is not None)
        return report


def _cluster() -> tuple[Cluster, SlowStore]:
    cluster = Cluster()
    store = SlowStore(cluster.clock)
    cluster.store = store
    cluster.node = cluster._node()
    return cluster, store


async def _all_in_force(store: SlowStore) -> bool:
    return not await store.find_changed_tasks(range(store.partition_count), limit=1)


def test_fires_of_other_tasks_are_on_time_while_5000_tasks_are_applied() -> None:
    async def story() -> None:
        cluster, store = _cluster()
        busy = python_task("busy", triggers=(IntervalTrigger(every_us=20 * MILLISECOND),), overlap="allow")
        await cluster.start(busy)
        hourly = (CronTrigger(cron="0 * * * *"),)
        many = [python_task(f"many-{number:04}", triggers=hourly) for number in range(MANY)]
        began_us = cluster.clock.boot_us()
        store.late_us.clear()
        await store.apply(many, now_us=cluster.clock.wall_us())
        await cluster.until(lambda: _all_in_force(store), within_us=30 * SECOND)
        took_us = cluster.clock.boot_us() - began_us
        assert took_us < 2 * SECOND
        # Nothing of the many is due for an hour: these are the other task's.
        assert len(store.late_us) >= took_us // (20 * MILLISECOND) - 2
        assert max(store.late_us) <= LATE_US_MAX
        assert sum(store.switch_counts) == MANY + 1
        assert len(store.switch_counts) <= MANY // 100
        await cluster.stop()

    run_virtual(story())


def test_what_was_due_up_to_the_edit_fires_under_the_old_version_for_many_tasks_at_once() -> None:
    async def story() -> None:
        cluster, store = _cluster()
        every_minute = (CronTrigger(cron="* * * * *"),)
        names = [f"many-{number:03}" for number in range(600)]
        await cluster.start(*(python_task(name, triggers=every_minute, overlap="allow") for name in names))
        await cluster.node.stop()
        # Nobody decides while a fire comes due and the tasks are edited.
        await cluster.sleep(MINUTE)
        edited = [python_task(name, triggers=every_minute, overlap="allow", priority=7) for name in names]
        await store.apply(edited, now_us=cluster.clock.wall_us())
        cluster.node = cluster._node()
        await cluster.node.start()
        await cluster.until(lambda: _all_in_force(store))
        await cluster.sleep(MINUTE)
        rows = await cluster.instances()
        fired = {
            name: [(row.fire_us, row.task_version) for row in rows if row.task == name] for name in names
        }
        first_us = START_US + MINUTE
        expected = [(first_us, 1), (first_us + MINUTE, 2)]
        assert fired == dict.fromkeys(names, expected)
        await cluster.stop()

    run_virtual(story())


def test_what_was_due_up_to_the_edit_fires_under_the_old_version_whatever_made_room_meanwhile() -> None:
    async def story() -> None:
        cluster, store = _cluster()
        every_minute = (CronTrigger(cron="* * * * *"),)
        await cluster.start(python_task("t", triggers=every_minute))
        await cluster.node.stop()
        await cluster.sleep(MINUTE)
        await store.apply(
            [python_task("t", triggers=every_minute, priority=7)], now_us=cluster.clock.wall_us()
        )
        cluster.node = cluster._node()
        forgotten: list[TaskRef] = []

        def forget(refs: Sequence[TaskRef]) -> None:
            if not forgotten:
                forgotten.extend(refs)
                for ref in refs:
                    cluster.node.parts.definitions.forget(ref)

        store.on_live = forget
        await cluster.node.start()
        await cluster.until(lambda: _all_in_force(store))
        assert forgotten
        rows = await cluster.instances()
        assert [(row.fire_us, row.task_version) for row in rows] == [(START_US + MINUTE, 1)]
        await cluster.stop()

    run_virtual(story())


def test_what_was_due_up_to_the_edit_fires_although_the_clock_is_doubted_meanwhile() -> None:
    async def story() -> None:
        cluster, store = _cluster()
        every_minute = (CronTrigger(cron="* * * * *"),)
        await cluster.start(python_task("t", triggers=every_minute))
        await cluster.node.stop()
        await cluster.sleep(MINUTE)
        await store.apply(
            [python_task("t", triggers=every_minute, priority=7)], now_us=cluster.clock.wall_us()
        )
        cluster.node = cluster._node()
        doubted: list[TaskRef] = []

        def doubt(refs: Sequence[TaskRef]) -> None:
            if not doubted:
                doubted.extend(refs)
                # The next sample says that it was nothing.
                cluster.node.parts.time._doubt = _Doubt(HOUR, cluster.clock.boot_us())

        store.on_live = doubt
        await cluster.node.start()
        await cluster.until(lambda: _all_in_force(store))
        assert doubted
        rows = await cluster.instances()
        assert [(row.fire_us, row.task_version) for row in rows] == [(START_US + MINUTE, 1)]
        await cluster.stop()

    run_virtual(story())


def test_what_comes_due_after_the_edit_fires_under_the_new_version_however_late_the_switch() -> None:
    async def story() -> None:
        cluster, store = _cluster()
        every_minute = (CronTrigger(cron="* * * * *", misfire="fire_all"),)
        await cluster.start(python_task("t", triggers=every_minute, overlap="allow"))
        await cluster.node.stop()
        await cluster.sleep(2 * MINUTE + SECOND)
        edited = python_task("t", triggers=every_minute, overlap="allow", priority=7)
        await store.apply([edited], now_us=cluster.clock.wall_us())
        await cluster.sleep(3 * MINUTE)
        cluster.node = cluster._node()
        await cluster.node.start()
        await cluster.until(lambda: _all_in_force(store))
        await cluster.sleep(SECOND)
        fired = sorted((row.fire_us, row.task_version) for row in await cluster.instances())
        minutes = [(START_US + number * MINUTE, 1 if number <= 2 else 2) for number in range(1, 6)]
        assert fired == minutes
        await cluster.stop()

    run_virtual(story())


def test_an_edit_of_a_paused_task_comes_into_force_though_a_fire_of_it_is_overdue() -> None:
    async def story() -> None:
        cluster, store = _cluster()
        every_minute = (CronTrigger(cron="* * * * *"),)
        await cluster.start(python_task("t", triggers=every_minute))
        assert await cluster.ask("pause", task="t") == "OK"
        await cluster.sleep(2 * MINUTE)
        await store.apply(
            [python_task("t", triggers=every_minute, priority=7)], now_us=cluster.clock.wall_us()
        )
        await cluster.until(lambda: _all_in_force(store), within_us=SECOND)
        task = (await store.get_tasks([TaskRef("default", "t")]))[TaskRef("default", "t")]
        assert (task.scheduled_version, task.paused) == (2, True)
        assert await cluster.instances() == []
        await cluster.stop()

    run_virtual(story())
