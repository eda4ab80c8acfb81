"""How late fires are: from the scheduled instant of a cron task to the commit of its instance, on SQLite.

Run ``python bench/cron_fires.py [--tasks 100000] [--minutes 5]``. The tasks are hourly and spread evenly over
minute and second, so 100,000 of them fire 28 times a second. One node, as ``ostinato scheduler`` runs it; a
worker process runs what it fires. Prints the distribution in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import uvloop
from timed_node import TimedStore, percentile, running_node, summary, worker_process

from ostinato.clock import SystemClock
from ostinato.core.definition import ShellSpec, TaskDefinition
from ostinato.core.schedule.trigger import CronTrigger
from ostinato.store.batches import CommitBatch

CHUNK_COUNT = 5_000
SECONDS_AN_HOUR = 3_600


def definitions(count: int) -> list[TaskDefinition]:
    """Six fields: task n fires at second n of the hour, and again from the start after 3,600 of them."""
    return [
        TaskDefinition(
            "default",
            f"task-{number:06}",
            ShellSpec(command=("true",)),
            triggers=(CronTrigger(cron=f"{number % 60} {number // 60 % 60} * * * *"),),
        )
        for number in range(count)
    ]


async def measure(count: int, *, minutes: float, slots: int) -> float:
    clock = SystemClock()
    late_ms: list[float] = []
    is_measuring = False

    def on_commit(batch: CommitBatch) -> None:
        if is_measuring:
            now_us = clock.wall_us()
            late_ms.extend((now_us - row.fire_us) / 1000 for row in batch.inserts if row.fire_us is not None)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = TimedStore(str(folder / "bench.db"), clock=clock)
        store.on_commit = on_commit
        await store.open()
        try:
            rows = definitions(count)
            began = time.monotonic()
            for start in range(0, count, CHUNK_COUNT):
                await store.apply(rows[start : start + CHUNK_COUNT], now_us=await store.now_us())
            print(f"applied {count:,} tasks in {time.monotonic() - began:.1f} s", flush=True)
            async with running_node(store, clock=clock) as node:
                began = time.monotonic()
                while await store.find_changed_tasks(range(store.partition_count), limit=1):
                    await asyncio.sleep(0.2)
                print(f"their triggers were in force after {time.monotonic() - began:.1f} s", flush=True)
                async with worker_process(node, folder=folder, options=["--slots", str(slots)]):
                    await asyncio.sleep(5)
                    is_measuring = True
                    await asyncio.sleep(minutes * 60)
                    is_measuring = False
        finally:
            await store.close()
    expected = count / SECONDS_AN_HOUR * minutes * 60
    print(f"{len(late_ms):,} fires of about {expected:,.0f} expected")
    print(f"scheduled instant to commit, {summary(late_ms)}")
    return percentile(late_ms, 0.99)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--slots", type=int, default=4)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(options.tasks, minutes=options.minutes, slots=options.slots))


if __name__ == "__main__":
    main()
