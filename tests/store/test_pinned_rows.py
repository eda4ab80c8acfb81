"""C119: beside a transaction that stands for long, dead rows cannot be cleared away, and nothing gets slower.

What a claim costs is judged by the work that it makes, not by the time that it takes beside other work: rows
that are looked at and pages that are read on PostgreSQL, which counts them for a statement; the time of the
sessions' threads on a processor on MariaDB, whose server is one of the test's own. ``OSTINATO_CASES_FULL=1``
lets an hour's work go through beside it, at 500 instances a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection
from support.private_servers import PrivateMariadb
from support.servers import TestDatabase, connect, create_schema, fresh_database

from ostinato.clock import SystemClock
from ostinato.core.model import Instance
from ostinato.core.states import State
from ostinato.store.batches import NodeRow, Submission
from ostinato.store.mysql.store import MysqlStore
from ostinato.store.postgres import work
from ostinato.store.postgres.store import PostgresStore
from ostinato.store.server import queue_floors
from ostinato.store.server.database import driver_connection
from ostinato.testing.contracts.store_kit import (
    ALL,
    NODE,
    T0,
    Owner,
    make_assign,
    make_instance,
    make_success,
)

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"
BATCH = 500
#: Batches of instances that run beside the transaction.
BATCH_COUNT = 3_600 if FULL else 40
RENEWAL_COUNT = 3_600 if FULL else 500
#: Due times of instances that come one after the other.
APART_US = 2_000
#: Looks whose time on a processor is measured together.
LOOKS = 40


@pytest.fixture(scope="module")
def mariadb() -> Iterator[PrivateMariadb]:
    with PrivateMariadb() as private:
        yield private


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    if request.param == "postgresql":
        with fresh_database(request.param) as database:
            yield database
        return
    private: PrivateMariadb = request.getfixturevalue("mariadb")
    database = TestDatabase("mariadb", private.make_database("pinned"))
    engine = database.engine()
    with engine.begin() as connection:
        create_schema(connection)
    engine.dispose()
    yield database
    database.close()


@pytest.fixture
async def store(server: TestDatabase) -> AsyncIterator[PostgresStore | MysqlStore]:
    server.clean()
    kind = PostgresStore if server.kind == "postgresql" else MysqlStore
    store = kind(server.server_url, clock=SystemClock())
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def pinned(server: TestDatabase, store: object) -> Iterator[None]:
    """A transaction of somebody else that sees everything as it is now, until the end of the test."""
    with closing(connect(server.server_url)) as session:
        cursor = session.cursor()
        if server.kind == "postgresql":
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        else:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        cursor.execute("SELECT count(*) FROM instance")
        yield


@pytest.fixture
def is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every full look counts as slow, whatever the machine makes of it, and the next one is far away."""
    monkeypatch.setattr(queue_floors, "FAST_US", -1)
    monkeypatch.setattr(queue_floors, "LEFT_COUNT_MIN", 0)
    monkeypatch.setattr(queue_floors, "REST_FACTOR", 1_000_000)


# ── claims ────────────────────────────────────────────────────────────────────────────────────────────


class Queue:
    """One partition in which instances come, run and end."""

    def __init__(self, store: PostgresStore | MysqlStore, owner: Owner) -> None:
        self._store = store
        self._owner = owner
        self._count = 0

    @property
    def now_us(self) -> int:
        """When all that has come so far is due."""
        return T0 + self._count * APART_US

    async def turn(self) -> None:
        """A batch comes, is claimed, and ends well."""
        numbers = range(self._count, self._count + BATCH)
        rows = [make_instance(number, partition=7, due_us=T0 + number * APART_US) for number in numbers]
        self._count += BATCH
        await self._store.submit([Submission(instance=row) for row in rows])
        found = await self._store.find_work(ALL, now_us=self.now_us, limit=BATCH)
        assert [row.id for row in found.instances] == [row.id for row in rows]
        batch = self._owner.batch()
        batch.assigns = [make_assign(row) for row in rows]
        assert not (await self._store.commit(batch)).unmatched
        batch = self._owner.batch()
        batch.successes = [make_success(_as_running(row)) for row in rows]
        assert not (await self._store.commit(batch)).unmatched


def _as_running(row: Instance) -> Instance:
    assign = make_assign(row)
    row.state, row.attempt, row.attempt_id = State.RUNNING, row.attempt + 1, assign.attempt_id
    return row


async def test_c119_a_claim_costs_no_more_for_the_dead_rows_that_an_old_transaction_pins(
    request: pytest.FixtureRequest,
    store: PostgresStore | MysqlStore,
    server: TestDatabase,
    is_slow: None,
    pinned: None,
) -> None:
    async def costs() -> tuple[float, float]:
        threads: list[Path] = []
        if isinstance(store, MysqlStore):
            private: PrivateMariadb = request.getfixturevalue("mariadb")
            threads = _threads_of_sessions(server, pid=private.pid)
        return await _costs_of_a_look(store, now_us=queue.now_us, threads=threads)

    queue = Queue(store, await Owner.of(store))
    for _ in range(2):
        await queue.turn()
    first, _ = await costs()
    for _ in range(BATCH_COUNT):
        await queue.turn()
    last, from_the_beginning = await costs()
    print("COSTS", first, last, from_the_beginning)
    assert last < 2 * first
    # There every dead row has to be looked at.
    assert from_the_beginning > 1.3 * last


async def _costs_of_a_look(
    store: PostgresStore | MysqlStore, *, now_us: int, threads: Sequence[Path]
) -> tuple[float, float]:
    """Of one from the floors and of a full one; the least of several, as a server does other things too."""
    found: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(5):
        for is_full, costs in found.items():
            if isinstance(store, PostgresStore):
                costs.append(await _rows_and_pages_of_a_look(store, now_us=now_us, is_full=is_full))
                continue
            before = _processor_ns(threads)
            for _ in range(LOOKS):
                if is_full:
                    store.floors._next_full_boot_us = 0
                # Of the partition alone: looks at the many others that are empty would hide what this costs.
                await store.find_work([7], now_us=now_us, limit=100)
            costs.append((_processor_ns(threads) - before) / LOOKS)
    return min(found[False]), min(found[True])


def _threads_of_sessions(server: TestDatabase, *, pid: int) -> list[Path]:
    """The server's threads that serve the sessions of this database, and nothing of what it does besides."""
    with closing(connect(server.server_url)) as session:
        cursor = session.cursor()
        cursor.execute("SELECT tid FROM information_schema.processlist WHERE db = database()")
        return [Path(f"/proc/{pid}/task/{tid}/schedstat") for (tid,) in cursor.fetchall()]


def _processor_ns(threads: Sequence[Path]) -> int:
    """Time that these threads have spent on processors; one whose session has ended counts no more."""
    return sum(int(path.read_text().split()[0]) for path in threads if path.exists())


async def _rows_and_pages_of_a_look(store: PostgresStore, *, now_us: int, is_full: bool) -> int:
    if is_full:
        return await _rows_and_pages(store, work._DUE, list(ALL), now_us, 4, 101)
    branches = [*work._branches(list(ALL))]
    with store.floors.look() as look:
        assert not look.is_full
        columns = *zip(*branches, strict=True), [look.floor_us(branch) for branch in branches]
    return await _rows_and_pages(store, work._DUE_FROM, *columns, now_us, 4, 101)


async def _rows_and_pages(store: PostgresStore, query: str, *arguments: object) -> int:
    """Rows that a statement looks at, dead ones too, and pages that it reads."""

    async def explain(connection: AsyncConnection) -> int:
        driver = await driver_connection(connection)
        found = await driver.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}", *arguments)
        plan = found[0]["Plan"]
        looked_at = sum(step.get("Heap Fetches", 0) for step in _steps(plan))
        return int(looked_at) + int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])

    return await store.database.run("explaining", explain, role="owner")


def _steps(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _steps(inner)


# ── leases ────────────────────────────────────────────────────────────────────────────────────────────


async def test_c119_rows_that_are_renewed_every_second_stay_few_pages_beside_an_old_transaction(
    store: PostgresStore | MysqlStore, server: TestDatabase, pinned: None
) -> None:
    await Owner.of(store)
    await store.register_node(NodeRow("node-2", 0, "there:1", T0))
    before = _size_bytes(server, "node")
    for number in range(RENEWAL_COUNT):
        assert await store.renew_node(NODE)
        if number % 100 == 0:
            await store.take_partitions("node-2" if number % 200 else NODE, ALL)
    grown_bytes = _size_bytes(server, "node") - before
    # An hour of it is less than a megabyte.
    assert grown_bytes <= RENEWAL_COUNT * 256
    if server.kind == "postgresql":
        # Sessions tell of what they did at their end.
        await store.close()
        renewed, hot = _updates(server, "node", at_least=RENEWAL_COUNT)
        # Where there is room on its page a new version needs no entry in the index.
        assert hot >= 0.9 * renewed


def _size_bytes(server: TestDatabase, table: str) -> int:
    with closing(connect(server.server_url)) as session:
        cursor = session.cursor()
        if server.kind == "postgresql":
            cursor.execute("SELECT pg_total_relation_size(%s::regclass)", (table,))
        else:
            cursor.execute(
                "SELECT file_size FROM information_schema.innodb_sys_tablespaces"
                " WHERE name = concat(database(), '/', %s)",
                (table,),
            )
        return int(cursor.fetchone()[0])


def _updates(server: TestDatabase, table: str, *, at_least: int) -> tuple[int, int]:
    """Updates of a table, and how many of them left its indexes alone, once that many are known."""
    query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = %s"
    end = time.monotonic() + 30
    with closing(connect(server.server_url)) as session:
        session.autocommit = True
        while True:
            updated, hot = session.execute(query, (table,)).fetchone()
            if updated >= at_least:
                return int(updated), int(hot)
            assert time.monotonic() < end, f"{updated} updates"
