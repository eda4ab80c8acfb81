"""Cost of claiming due work beside millions of finished and future rows, against empty tables.

Run ``python bench/claim.py --private postgres|mariadb [--finished 10000000] [--future 1000000]``. One batch
is: find 100 due instances, assign them. Batches on the two databases alternate; printed are the medians and
their ratio. MariaDB gets a buffer pool of 4 GiB, as whoever keeps so many rows would give it, and its
secondary indexes once the rows are there.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random

from chaos.databases import upgrade
from kit.filling import Rows, Target, task_name
from kit.registering import apply_all

from ostinato.clock import SystemClock
from ostinato.core.definition import ShellSpec, TaskDefinition
from ostinato.core.ids import new_id, partition_of
from ostinato.core.model import Instance
from ostinato.core.states import State
from ostinato.store.batches import Assign, CommitBatch, NodeRow, Proof, Submission, Success
from ostinato.store.from_url import open_store_from_url
from ostinato.store.protocol import Store

_BATCH = 100
_TASK = "claimed"
_TASK_COUNT = 1_000
_NODE = "bench-node"


class Side:
    """One database, and the time of each of its batches."""

    def __init__(self, store: Store, clock: SystemClock) -> None:
        self.store = store
        self._clock = clock
        self._rng = Random(1)
        self._proofs: list[Proof] = []
        self.times_ms: list[float] = []

    async def open(self) -> None:
        await self.store.open()
        now_us = await self.store.now_us()
        await self.store.apply([TaskDefinition("default", _TASK, ShellSpec(command="true"))], now_us=now_us)
        await self.store.register_node(NodeRow(_NODE, 0, "", now_us))
        self._proofs = await self.store.take_partitions(_NODE, range(self.store.partition_count))

    async def batch(self) -> None:
        now_us = await self.store.now_us()
        partition = partition_of("default", _TASK, partition_count=self.store.partition_count)
        rows = [
            Instance(
                id=new_id(self._clock.wall_us(), self._rng),
                namespace="default",
                task=_TASK,
                task_version=1,
                partition=partition,
                state=State.PENDING,
                priority=5,
                payload=b"{}",
                due_us=now_us,
                created_us=now_us,
            )
            for _ in range(_BATCH)
        ]
        await self.store.submit([Submission(instance=row) for row in rows])
        began = time.perf_counter()
        found = await self.store.find_work(
            range(self.store.partition_count), now_us=now_us + 1_000_000, limit=_BATCH
        )
        assigns = [
            Assign(
                instance_id=row.id,
                partition=row.partition,
                expected_state=row.state,
                expected_attempt=row.attempt,
                attempt_id=f"a{row.id}",
                worker_id="w",
                worker_name="w",
                assigned_us=now_us,
            )
            for row in found.instances
        ]
        report = await self.store.commit(CommitBatch(proofs=self._proofs, assigns=assigns))
        self.times_ms.append((time.perf_counter() - began) * 1e3)
        if len(assigns) != _BATCH or report.unmatched or report.rejected:
            raise SystemExit(f"{len(assigns)} found, {report}")
        successes = [
            Success(
                instance_id=assign.instance_id,
                partition=assign.partition,
                expected_attempt=1,
                attempt_id=assign.attempt_id,
                started_us=now_us,
                finished_us=now_us,
                result=b"null",
            )
            for assign in assigns
        ]
        await self.store.commit(CommitBatch(proofs=self._proofs, successes=successes))


def fill(url: str, *, finished: int, future: int) -> None:
    """Finished rows of the last week and rows due from tomorrow on, over all partitions and many tasks."""
    definitions = [
        TaskDefinition("default", task_name("task-", number), ShellSpec(command="true"))
        for number in range(_TASK_COUNT)
    ]
    asyncio.run(apply_all(url, definitions))
    with Target(url) as target:
        with target.without_keys():
            target.make(Rows("finished", "finished", finished, _TASK_COUNT, "task-"))
            target.make(Rows("future", "future", future, _TASK_COUNT, "task-"))
        target.settle()


async def measure(urls: list[str], *, batches: int) -> list[Side]:
    clock = SystemClock()
    sides = [Side(open_store_from_url(url, clock=clock), clock) for url in urls]
    for side in sides:
        await side.open()
    try:
        for number in range(batches):
            for side in sides if number % 2 else sides[::-1]:
                await side.batch()
    finally:
        for side in sides:
            await side.store.close()
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--private", choices=("postgres", "mariadb"), required=True)
    parser.add_argument("--finished", type=int, default=10_000_000)
    parser.add_argument("--future", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=400)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.private_servers import PrivateMariadb, PrivatePostgres

    is_postgres = options.private == "postgres"
    with ExitStack() as stack:
        server = stack.enter_context((PrivatePostgres if is_postgres else PrivateMariadb)())
        urls = [server.make_database(name) for name in ("claim_empty", "claim_full")]
        for url in urls:
            upgrade(url)
        fill(urls[1], finished=options.finished, future=options.future)
        empty, full = asyncio.run(measure(urls, batches=options.batches))
    medians = [statistics.median(side.times_ms[20:]) for side in (empty, full)]
    print(
        f"find and assign {_BATCH}, medians of {options.batches} batches, ms: empty {medians[0]:.3f}, beside "
        f"{options.finished:,} finished and {options.future:,} future rows {medians[1]:.3f}, "
        f"ratio {medians[1] / medians[0]:.3f}"
    )


if __name__ == "__main__":
    main()
