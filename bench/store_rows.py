"""Rows per second through the ``Store`` API of SQLite, and whether finding due work slows with future rows.

Run: ``python bench/store_rows.py [ROWS] [FUTURE_ROWS]``. Each phase moves batches of 500, one after another,
durably.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from ostinato.clock import SystemClock
from ostinato.core.ids import new_attempt_id, new_id, partition_of
from ostinato.core.model import Instance
from ostinato.core.states import State
from ostinato.store.batches import Assign, CommitBatch, NodeRow, Proof, Submission, Success
from ostinato.store.sqlite.store import SqliteStore

BATCH_ROWS = 500
PHASES = ("submit", "find_work", "assign", "success")
START_US = 1_767_225_600_000_000
HOUR_US = 3_600_000_000


class Bench:
    """One open database with its owner, and seconds spent per phase."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.rng = random.Random(1)
        self.proofs: list[Proof] = []
        self.seconds = dict.fromkeys(PHASES, 0.0)

    async def open(self) -> None:
        await self.store.open()
        await self.store.register_node(NodeRow("node", 0, "", START_US))
        self.proofs = await self.store.take_partitions("node", range(self.store.partition_count))

    def submissions(self, count: int, due_us: int) -> list[Submission]:
        return [self._submission(number, due_us + number) for number in range(count)]

    def _submission(self, number: int, due_us: int) -> Submission:
        task = f"reports.daily{number % 7}"
        return Submission(
            instance=Instance(
                id=new_id(due_us, self.rng),
                namespace="default",
                task=task,
                task_version=1,
                partition=partition_of("default", task, partition_count=64),
                state=State.PENDING,
                priority=5,
                due_us=due_us,
                created_us=due_us,
                payload=b'{"customer":4711,"month":"2026-01"}',
            )
        )

    async def submit(self, submissions: list[Submission]) -> None:
        for start in range(0, len(submissions), BATCH_ROWS):
            began = time.perf_counter()
            await self.store.submit(submissions[start : start + BATCH_ROWS])
            self.seconds["submit"] += time.perf_counter() - began

    async def find(self, now_us: int) -> list[Instance]:
        began = time.perf_counter()
        found = await self.store.find_work(range(64), now_us=now_us, limit=BATCH_ROWS)
        self.seconds["find_work"] += time.perf_counter() - began
        return found.instances

    async def run(self, instances: list[Instance], now_us: int) -> None:
        assigns = [
            Assign(
                row.id,
                row.partition,
                row.state,
                row.attempt,
                new_attempt_id(self.rng),
                "worker-1",
                "w1",
                now_us,
            )
            for row in instances
        ]
        await self.commit("assign", CommitBatch(proofs=self.proofs, assigns=assigns))
        successes = [
            Success(move.instance_id, move.partition, 1, move.attempt_id, now_us, now_us + 1, b"{}")
            for move in assigns
        ]
        await self.commit("success", CommitBatch(proofs=self.proofs, successes=successes))

    async def commit(self, phase: str, batch: CommitBatch) -> None:
        began = time.perf_counter()
        report = await self.store.commit(batch)
        self.seconds[phase] += time.perf_counter() - began
        if report.unmatched or report.lost_partitions or report.rejected:
            raise SystemExit(f"{phase}: not everything was written: {report}")


async def measure_rows(folder: Path, count: int) -> None:
    bench = Bench(SqliteStore(str(folder / "rows.db"), clock=SystemClock()))
    await bench.open()
    await bench.submit(bench.submissions(count, START_US))
    while instances := await bench.find(START_US + HOUR_US):
        await bench.run(instances, START_US + HOUR_US)
    await bench.store.close()
    for phase, seconds in bench.seconds.items():
        print(f"{phase:10} {count / seconds:10,.0f} rows/s")
    print(f"{'all':10} {count / sum(bench.seconds.values()):10,.0f} rows/s")


async def measure_future(folder: Path, counts: tuple[int, int]) -> None:
    milliseconds: list[float] = []
    for count in counts:
        bench = Bench(SqliteStore(str(folder / f"future{count}.db"), clock=SystemClock()))
        await bench.open()
        await bench.store.submit(bench.submissions(BATCH_ROWS * 2, START_US))
        for start in range(0, count, 100_000):
            rows = bench.submissions(min(100_000, count - start), START_US + 2 * HOUR_US + start)
            await bench.store.submit(rows)
        times: list[float] = []
        for _ in range(50):
            bench.seconds["find_work"] = 0.0
            await bench.find(START_US + HOUR_US)
            times.append(bench.seconds["find_work"] * 1000)
        milliseconds.append(sorted(times)[len(times) // 2])
        print(f"find_work of {BATCH_ROWS} with {count:9,} future rows: {milliseconds[-1]:.2f} ms (median)")
        await bench.store.close()
    print(f"ratio {milliseconds[1] / milliseconds[0]:.2f}")


async def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    future = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        await measure_rows(Path(folder), count)
        await measure_future(Path(folder), (1_000, future))


if __name__ == "__main__":
    asyncio.run(main())
