"""Many fires at one boundary: they are read, decided and written in batches, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from support.cluster import Cluster, python_task

from ostinato.core.definition import TaskRef
from ostinato.core.instants import MILLISECOND, MINUTE, SECOND
from ostinato.core.model import Instance
from ostinato.core.schedule.trigger import CronTrigger
from ostinato.core.states import State
from ostinato.scheduler.config import NodeConfig
from ostinato.store.batches import CommitBatch, CommitReport
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import START_US, VirtualClock, run_virtual

#: What a batch of fires takes to be read, and to be written.
READ_US = 40 * MILLISECOND
WRITE_US = 60 * MILLISECOND
#: The same instants by the clocks of these zones.
ZONES = ("UTC", "Europe/Berlin", "Asia/Tokyo")


class SlowStore(MemoryStore):
    """The in-memory store, of which batches of fires take their time."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.clock = clock

    async def live_instances(self, refs: Sequence[TaskRef], *, limit: int) -> dict[TaskRef, list[Instance]]:
        found = await super().live_instances(refs, limit=limit)
        await self.clock.sleep_until_us(self.clock.boot_us() + READ_US)
        return found

    async def commit(self, batch: CommitBatch) -> CommitReport:
        if batch.inserts:
            await self.clock.sleep_until_us(self.clock.boot_us() + WRITE_US)
        return await super().commit(batch)


def _cluster(*, batch_count: int) -> Cluster:
    clock = VirtualClock()
    config = NodeConfig(worker_lease_us=6 * SECOND, batch_count=batch_count)
    return Cluster(config=config, store=SlowStore(clock), clock=clock)


def test_a_batch_of_fires_is_read_while_the_one_before_is_written() -> None:
    async def story() -> None:
        cluster = _cluster(batch_count=20)
        every_minute = (CronTrigger(cron="* * * * *"),)
        await cluster.start(*(python_task(f"t-{number:03}", triggers=every_minute) for number in range(400)))
        await cluster.sleep(MINUTE + 10 * SECOND - (cluster.clock.wall_us() - START_US))
        made_us = [row.created_us for row in await cluster.instances()]
        assert len(made_us) == 400
        # 20 batches, of which four are read at a time, but for the first.
        assert max(made_us) - START_US - MINUTE < 20 * WRITE_US + 7 * READ_US
        await cluster.stop()

    run_virtual(story())


def test_fires_of_one_task_at_one_instant_overlap_whatever_batch_they_come_in() -> None:
    async def story() -> None:
        cluster = _cluster(batch_count=5)
        triggers = tuple(CronTrigger(cron="* * * * *", timezone=zone) for zone in ZONES)
        names = [f"t-{number}" for number in range(40)]
        await cluster.start(*(python_task(name, triggers=triggers, overlap="forbid") for name in names))
        await cluster.sleep(MINUTE + 10 * SECOND - (cluster.clock.wall_us() - START_US))
        states = Counter((row.task, row.state) for row in await cluster.instances())
        skipped = {(name, State.SKIPPED): len(ZONES) - 1 for name in names}
        assert states == {**skipped, **dict.fromkeys(((name, State.PENDING) for name in names), 1)}
        await cluster.stop()

    run_virtual(story())
