"""What a row costs: processor time of ours and of the database server for each move, beside a bare client's.

Run ``python bench/store_cpu.py [--database postgres,mariadb,sqlite] [--count 20000] [--batch 500]``. Each
move is made through the ``Store`` API in batches, one after the other, with durable commits on servers of the
benchmark's own; then the bare clients of ``limit.py`` do the same, unless ``--no-bare``. ``failed`` ends
attempts for good, each with a row of the history. ``--sql FILE`` runs statements first, to try out another
schema. Processor time is what counts where others share the machine; the rates are those of one run.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

import psutil
from chaos.databases import Outsider, upgrade
from kit.bare import CLIENTS, Size, batches, make_table
from kit.servers import Servers
from kit.tables import table

from ostinato.clock import SystemClock
from ostinato.core.failure.failure import Failure
from ostinato.core.ids import new_attempt_id, new_id, partition_of
from ostinato.core.model import HistoryKind, HistoryRow, Instance
from ostinato.core.retry.counters import Counters
from ostinato.core.states import State
from ostinato.store.batches import (
    Assign,
    CommitBatch,
    EndAttempt,
    NodeRow,
    Proof,
    Submission,
    Success,
)
from ostinato.store.from_url import open_store_from_url
from ostinato.store.protocol import Store

Row = TypeVar("Row")

DATABASES = ("postgres", "mariadb", "sqlite")
_TASKS = [f"reports.daily{number}" for number in range(7)]
_FAILURE = Failure(
    code="ECONNREFUSED",
    category="transient",
    message="connection refused",
    traceback="Traceback (most recent call last):\n" + '  File "a.py", line 1, in run\n    call()\n' * 8,
)


class Cost(NamedTuple):
    """Of one move: seconds on the wall, and processor seconds of this process and of the server."""

    wall_s: float
    ours_s: float
    server_s: float


class Meter:
    """Adds up what the moves of one client cost."""

    def __init__(self, server_pid: int | None) -> None:
        self._server = None if server_pid is None else psutil.Process(server_pid)
        self.costs: dict[str, Cost] = {}

    async def measured(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        server_s, ours_s, began = self._server_s(), time.process_time(), time.perf_counter()
        await work()
        self.costs[name] = Cost(
            time.perf_counter() - began, time.process_time() - ours_s, self._server_s() - server_s
        )

    def _server_s(self) -> float:
        """Of all processes of the server, also those that have ended."""
        if self._server is None:
            return 0.0
        own = self._server.cpu_times()
        total = own.user + own.system + own.children_user + own.children_system
        for child in self._server.children():
            try:
                times = child.cpu_times()
            except psutil.NoSuchProcess:
                continue  # it has ended, and counts among the server's children
            total += times.user + times.system
        return total


class Client:
    """One open store with its owner."""

    def __init__(self, store: Store, *, size: Size) -> None:
        self._store = store
        self._size = size
        self._rng = Random(1)
        self._proofs: list[Proof] = []
        self._now_us = 0
        self._due: list[Instance] = []
        self._running: list[Assign] = []

    async def open(self) -> None:
        await self._store.open()
        self._now_us = await self._store.now_us()
        await self._store.register_node(NodeRow("node", 0, "", self._now_us))
        self._proofs = await self._store.take_partitions("node", range(self._store.partition_count))

    def make(self) -> None:
        """New instances, not yet submitted."""
        self._due = [self._instance(number) for number in range(self._size.row_count)]
        self._submissions = [Submission(instance=row) for row in self._due]

    def _instance(self, number: int) -> Instance:
        task = _TASKS[number % len(_TASKS)]
        return Instance(
            id=new_id(self._now_us + number, self._rng),
            namespace="default",
            task=task,
            task_version=1,
            partition=partition_of("default", task, partition_count=64),
            state=State.PENDING,
            priority=5,
            due_us=self._now_us,
            created_us=self._now_us,
            payload=b'{"customer":4711,"month":"2026-01"}',
        )

    async def submit(self) -> None:
        for part in self._parts(self._submissions):
            await self._store.submit(part)

    async def submit_all(self) -> None:
        await self._store.submit(self._submissions)

    async def find(self) -> None:
        """As often as it takes for all, of which none is assigned meanwhile."""
        for _ in range(self._size.row_count // self._size.batch):
            await self._store.find_work(range(64), now_us=self._now_us + 60_000_000, limit=self._size.batch)

    async def assign(self) -> None:
        moves = [
            Assign(
                row.id,
                row.partition,
                State.PENDING,
                0,
                new_attempt_id(self._rng),
                "worker-1" * 3,
                "worker-1",
                self._now_us,
            )
            for row in self._due
        ]
        self._running = moves
        for part in self._parts(moves):
            await self._commit(CommitBatch(proofs=self._needed(part), assigns=list(part)))

    async def succeed(self) -> None:
        moves = [
            Success(
                move.instance_id, move.partition, 1, move.attempt_id, self._now_us, self._now_us + 1, b"null"
            )
            for move in self._running
        ]
        for part in self._parts(moves):
            await self._commit(CommitBatch(proofs=self._needed(part), successes=list(part)))

    async def fail(self) -> None:
        for part in self._parts(self._running):
            batch = CommitBatch(proofs=self._needed(part))
            batch.ended_attempts = [
                EndAttempt(
                    instance_id=move.instance_id,
                    partition=move.partition,
                    expected_attempt=1,
                    attempt_id=move.attempt_id,
                    state=State.FAILED,
                    reason="code ECONNREFUSED is on retry_on; retry 2 of 4",
                    counters=Counters(failures=1),
                    due_us=self._now_us,
                    expires_us=None,
                    started_us=self._now_us,
                    finished_us=self._now_us + 1,
                    failure=_FAILURE,
                )
                for move in part
            ]
            batch.history = [
                HistoryRow(
                    instance_id=move.instance_id,
                    partition=move.partition,
                    at_us=self._now_us,
                    kind=HistoryKind.GAVE_UP,
                    sentence="code ECONNREFUSED is on retry_on; retry 2 of 4",
                    generation=1,
                    attempt=1,
                    attempt_id=move.attempt_id,
                    worker_name="worker-1",
                    code="ECONNREFUSED",
                    category="transient",
                    failure=_FAILURE,
                )
                for move in part
            ]
            await self._commit(batch)

    def _needed(self, moves: Sequence[Assign] | Sequence[Success]) -> list[Proof]:
        """Of the partitions that are written, as the scheduler gives them."""
        partitions = {move.partition for move in moves}
        return [proof for proof in self._proofs if proof.partition in partitions]

    def _parts(self, rows: Sequence[Row]) -> list[Sequence[Row]]:
        return [rows[start : start + self._size.batch] for start in range(0, len(rows), self._size.batch)]

    async def _commit(self, batch: CommitBatch) -> None:
        report = await self._store.commit(batch)
        if report.unmatched or report.lost_partitions or report.rejected:
            raise SystemExit(f"not everything was written: {report}")

    async def close(self) -> None:
        await self._store.close()


async def through_store(url: str, meter: Meter, *, size: Size) -> None:
    client = Client(open_store_from_url(url, clock=SystemClock()), size=size)
    await client.open()
    client.make()
    await meter.measured("insert", client.submit)
    await meter.measured("find", client.find)
    await meter.measured("assign", client.assign)
    await meter.measured("complete", client.succeed)
    client.make()
    await meter.measured("insert at once", client.submit_all)
    await client.assign()
    await meter.measured("failed", client.fail)
    await client.close()


async def bare(database: str, url: str, *, meter: Meter, size: Size) -> None:
    await make_table(database, url)
    client = await CLIENTS[database].connect(url)
    lists = batches(size)

    async def insert() -> None:
        for rows in lists:
            await client.insert(rows)

    async def assign() -> None:
        for rows in lists:
            await client.assign(rows, now_us=1)

    async def complete() -> None:
        for rows in lists:
            await client.complete(rows, now_us=1)

    await meter.measured("insert", insert)
    await meter.measured("assign", assign)
    await meter.measured("complete", complete)
    await client.close()


def shown(name: str, meter: Meter, *, size: Size) -> list[list[str]]:
    rows = []
    for move, cost in meter.costs.items():
        per = [1e6 * part / size.row_count for part in (cost.ours_s, cost.server_s)]
        rows.append([name, move, f"{size.row_count / cost.wall_s:,.0f}", *(f"{each:.1f}" for each in per)])
    three = [meter.costs[move] for move in ("insert", "assign", "complete")]
    sums = [1e6 * sum(part) / size.row_count for part in zip(*three, strict=True)]
    rows.append(
        [name, "insert, assign, complete", f"{1e6 / sums[0]:,.0f}", f"{sums[1]:.1f}", f"{sums[2]:.1f}"]
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", default=",".join(DATABASES))
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--sql", type=Path)
    parser.add_argument("--no-bare", action="store_true")
    options = parser.parse_args()
    size = Size(options.count, options.batch)
    rows: list[list[str]] = []
    with Servers() as servers, tempfile.TemporaryDirectory() as folder:
        for database in options.database.split(","):
            name = f"{folder}/{time.monotonic_ns()}"
            urls = [f"sqlite:///{name}-{part}.db" for part in ("store", "bare")]
            pid = None
            if database != "sqlite":
                urls = [servers.new_database(database) for _ in urls]
                pid = servers.pid(database)
                upgrade(urls[0])
            if options.sql:
                with Outsider(urls[0]) as outsider:
                    for statement in options.sql.read_text().split(";"):
                        if statement.strip():
                            outsider.query(statement)
            meter = Meter(pid)
            asyncio.run(through_store(urls[0], meter, size=size))
            rows += shown(f"{database}, store", meter, size=size)
            if not options.no_bare:
                meter = Meter(pid)
                asyncio.run(bare(database, urls[1], meter=meter, size=size))
                rows += shown(f"{database}, bare", meter, size=size)
    print(table(["client", "move", "rows/s", "ours µs/row", "server µs/row"], rows))
    print(f"\n{size.row_count:,} rows, batches of {size.batch}")


if __name__ == "__main__":
    main()
