"""What a million instances that are due later cost the ones that are due now, on SQLite.

Run ``python bench/due_work.py [--few 1000] [--many 1000000] [--rounds 400]``. One batch of due work is what a
round of the dispatcher asks of the database: read what is due, commit the assignments. Rounds on a database
with few future instances and on one with many alternate, so that both see the same machine. Prints the
medians, in milliseconds, and their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from random import Random

from ostinato.clock import SystemClock
from ostinato.core.definition import ShellSpec, TaskDefinition
from ostinato.core.ids import new_id, partition_of
from ostinato.core.instants import DAY, SECOND
from ostinato.core.model import Instance
from ostinato.core.states import State
from ostinato.store.batches import Assign, CommitBatch, NodeRow, Proof, Submission, Success
from ostinato.store.sqlite.store import SqliteStore

TASK_COUNT = 1_000
BATCH_COUNT = 100
LOOKAHEAD_COUNT = 64
CHUNK_COUNT = 20_000


class Queue:
    """One database, its owner, and rounds on it."""

    def __init__(self, path: Path) -> None:
        self._clock = SystemClock()
        self._rng = Random(7)
        self.store = SqliteStore(str(path), clock=self._clock)
        self._proofs: list[Proof] = []
        self.times_ms: list[float] = []

    async def prepare(self, future_count: int) -> None:
        await self.store.open()
        now_us = await self.store.now_us()
        definitions = [
            TaskDefinition("default", f"task-{number}", ShellSpec(command="true"))
            for number in range(TASK_COUNT)
        ]
        await self.store.apply(definitions, now_us=now_us)
        await self.store.register_node(NodeRow("bench", 0, "", now_us))
        self._proofs = await self.store.take_partitions("bench", range(self.store.partition_count))
        for start in range(0, future_count, CHUNK_COUNT):
            count = min(CHUNK_COUNT, future_count - start)
            await self.store.submit(
                [
                    self._submission(now_us + SECOND * 3600 + self._rng.randrange(30 * DAY))
                    for _ in range(count)
                ]
            )

    def _submission(self, due_us: int) -> Submission:
        now_us = self._clock.wall_us()
        name = f"task-{self._rng.randrange(TASK_COUNT)}"
        return Submission(
            instance=Instance(
                id=new_id(now_us, self._rng),
                namespace="default",
                task=name,
                task_version=1,
                partition=partition_of("default", name, partition_count=self.store.partition_count),
                state=State.PENDING,
                priority=self._rng.randrange(10),
                due_us=due_us,
                created_us=now_us,
            )
        )

    async def round(self) -> None:
        now_us = self._clock.wall_us()
        await self.store.submit([self._submission(now_us - SECOND) for _ in range(BATCH_COUNT)])
        partitions = [proof.partition for proof in self._proofs]
        began = time.perf_counter()
        found = await self.store.find_work(partitions, now_us=now_us, limit=BATCH_COUNT + LOOKAHEAD_COUNT)
        assigns = [self._assign(instance, now_us) for instance in found.instances]
        report = await self.store.commit(CommitBatch(proofs=self._proofs, assigns=assigns))
        self.times_ms.append((time.perf_counter() - began) * 1000)
        if len(assigns) != BATCH_COUNT or report.unmatched or report.lost_partitions:
            raise SystemExit(f"{len(assigns)} of {BATCH_COUNT} were found, {report}")
        successes = [
            Success(
                row.instance_id, row.partition, row.expected_attempt + 1, row.attempt_id, now_us, now_us, b"0"
            )
            for row in assigns
        ]
        await self.store.commit(CommitBatch(proofs=self._proofs, successes=successes))

    def _assign(self, instance: Instance, now_us: int) -> Assign:
        return Assign(
            instance.id,
            instance.partition,
            instance.state,
            instance.attempt,
            new_id(now_us, self._rng),
            "worker",
            "worker",
            now_us,
        )


async def measure(few: int, many: int, *, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        queues = {count: Queue(Path(folder) / f"{count}.db") for count in (few, many)}
        try:
            for count, queue in queues.items():
                await queue.prepare(count)
            order = [*queues.values()]
            for number in range(rounds + 20):
                if number == 20:
                    for queue in order:
                        queue.times_ms.clear()
                for queue in order if number % 2 else reversed(order):
                    await queue.round()
        finally:
            for queue in queues.values():
                await queue.store.close()
    medians = {count: statistics.median(queue.times_ms) for count, queue in queues.items()}
    for count, median_ms in medians.items():
        print(f"{count:>10,} due later: {median_ms:.3f} ms a batch of {BATCH_COUNT} (median of {rounds})")
    print(f"ratio {medians[many] / medians[few]:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--few", type=int, default=1_000)
    parser.add_argument("--many", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=400)
    options = parser.parse_args()
    asyncio.run(measure(options.few, options.many, rounds=options.rounds))


if __name__ == "__main__":
    main()
