"""Cost of claiming due work beside millions of finished and future rows, against empty tables.

Run ``python bench/claim.py --private postgres|mariadb [--finished 10000000] [--future 1000000]``. One batch
is: find 100 due instances, assign them. Batches on the two databases alternate; printed are the medians and
their ratio. MariaDB gets a buffer pool of 4 GiB, as whoever keeps so many rows would give it, and its
secondary indexes once the rows are there.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random

from chaos.databases import Outsider, upgrade

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
_STEP = 500_000
_NODE = "bench-node"
_BUFFER_POOL_BYTES = 4 * 1024**3


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


def fill(outsider: Outsider, *, is_postgres: bool, finished: int, future: int) -> None:
    """Finished rows of the last week and rows due from tomorrow on, over all partitions and many tasks."""
    now_us = time.time_ns() // 1000
    keys = [] if is_postgres else _drop_keys(outsider)
    for name, count in (("finished", finished), ("future", future)):
        for first in range(0, count, _STEP):
            last = min(first + _STEP, count)
            outsider.query(_insert(name, first, last, now_us=now_us, is_postgres=is_postgres))
            print(f"  {last:,} {name}", flush=True)
    if keys:
        outsider.query("ALTER TABLE instance " + ", ".join(f"ADD {key}" for key in keys))
    outsider.query("ANALYZE instance" if is_postgres else "ANALYZE TABLE instance")


def _drop_keys(outsider: Outsider) -> list[str]:
    """Secondary indexes, as they are to be added again: made at once they take minutes, by row an hour."""
    outsider.query(f"SET GLOBAL innodb_buffer_pool_size = {_BUFFER_POOL_BYTES}")
    lines = str(outsider.query("SHOW CREATE TABLE instance")[0][1]).splitlines()
    keys = [line.strip().rstrip(",") for line in lines if re.match(r"\s*(UNIQUE )?KEY ", line)]
    names = [key.split("`")[1] for key in keys]
    outsider.query("ALTER TABLE instance " + ", ".join(f"DROP KEY `{name}`" for name in names))
    return keys


def _insert(name: str, first: int, last: int, *, now_us: int, is_postgres: bool) -> str:
    number = "n::bigint" if is_postgres else "seq"
    rows = f"generate_series({first}, {last - 1}) AS n" if is_postgres else f"seq_{first}_to_{last - 1}"
    text = "lpad({0}::text, 12, '0')" if is_postgres else "lpad({0}, 12, '0')"
    instance_id = f"concat('{name}', {text.format(number)})"
    partition = '"partition"' if is_postgres else "`partition`"
    age = f"{number} % 604800 * 1000000"
    if name == "finished":
        values = f"'success', {now_us} - {age}, {now_us} - {age}, 1, {now_us} - {age}"
    else:
        values = f"'pending', {now_us} + 86400000000 + {age}, {now_us}, 0, NULL"
    payload = "'\\x7b7d'" if is_postgres else "'{}'"
    return (
        f"INSERT INTO instance (id, namespace, task, task_version, {partition}, priority, payload, state,"
        f" due_us, created_us, attempt, finished_us) SELECT {instance_id}, 'default',"
        f" concat('task', {number} % 1000), 1, {number} % 64, 5, {payload}, {values} FROM {rows}"
    )


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
        outsider = stack.enter_context(Outsider(urls[1]))
        fill(outsider, is_postgres=is_postgres, finished=options.finished, future=options.future)
        empty, full = asyncio.run(measure(urls, batches=options.batches))
    medians = [statistics.median(side.times_ms[20:]) for side in (empty, full)]
    print(
        f"find and assign {_BATCH}, medians of {options.batches} batches, ms: empty {medians[0]:.3f}, beside "
        f"{options.finished:,} finished and {options.future:,} future rows {medians[1]:.3f}, "
        f"ratio {medians[1] / medians[0]:.3f}"
    )


if __name__ == "__main__":
    main()
