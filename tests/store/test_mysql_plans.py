"""What an owner's statements cost on MariaDB and MySQL: they take their indexes, and read what they give."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection
from support.servers import SERVER_KINDS, TestDatabase, fresh_database

from ostinato.clock import SystemClock
from ostinato.core.definition import TaskRef
from ostinato.core.model import Instance
from ostinato.core.states import Hold, State
from ostinato.store.batches import CommitReport, EndWaiting, FoundWork, HeldQuery, Submission
from ostinato.store.mysql.literals import Statements, literal, statement
from ostinato.store.mysql.session import fetch, session_of
from ostinato.store.mysql.store import MysqlStore
from ostinato.store.server.database import driver_connection
from ostinato.store.server.move_rows import move_rows
from ostinato.testing.contracts.store_kit import (
    ALL,
    HOUR,
    MINUTE,
    REF,
    SECOND,
    T0,
    Owner,
    end_attempt,
    make_assign,
    make_instance,
    make_success,
)

#: Rows of each kind that no answer holds.
NOISE = 2_000


@pytest.fixture(scope="module", params=[kind for kind in SERVER_KINDS if kind != "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    with fresh_database(request.param) as database:
        database.clean()
        yield database


@pytest.fixture
async def store(database: TestDatabase) -> AsyncIterator[MysqlStore]:
    store = MysqlStore(database.server_url, clock=SystemClock())
    await store.open()
    if not (await store.get_instances(["i000000"])):
        await _fill(store)
    yield store
    await store.close()


async def _fill(store: MysqlStore) -> None:
    """Many rows that are due later, held, finished, running or foreign; then a few that are due."""
    rng = random.Random(3)

    def rows(first: int, **fields: object) -> list[Instance]:
        return [
            make_instance(first + number, **{"partition": rng.randrange(32), "task": "noise", **fields})
            for number in range(NOISE)
        ]

    owner = await Owner.of(store)
    await store.submit([Submission(instance=row) for row in rows(0, due_us=T0 + HOUR)])
    held = rows(10_000, hold=Hold.BUSY, due_us=T0 - HOUR, expires_us=T0 + 2 * HOUR)
    await store.submit([Submission(instance=row) for row in held])
    foreign = rows(20_000, due_us=T0 - HOUR, partition=40)
    await store.submit([Submission(instance=row) for row in foreign])
    finished = await owner.run(*rows(30_000))
    batch = owner.batch()
    batch.successes = [make_success(row) for row in finished]
    await store.commit(batch)
    await owner.run(*rows(40_000))
    await owner.submit(
        make_instance(90_001, partition=1, expires_us=T0 - SECOND),
        make_instance(90_002, partition=2, priority=9),
        make_instance(90_003, partition=1, due_us=T0 - MINUTE),
        make_instance(90_004, partition=1, hold=Hold.OVERLAP, task="alone"),
        make_instance(90_005, partition=1, hold=Hold.PAUSED),
    )
    (row,) = await owner.run(make_instance(90_006, partition=31))
    assert row.state is State.RUNNING


MINE = range(32)

_READS: dict[str, tuple[Callable[[MysqlStore], Awaitable[Any]], int]] = {
    # A seek for each pair of partition and priority, and the rows of the table of these pairs.
    "find_work": (lambda store: store.find_work(MINE, now_us=T0, limit=100), 1_200),
    # One of these partitions has rows: of the others their queues are not asked one by one.
    "find_work in one of many": (lambda store: store.find_work(range(40, 64), now_us=T0, limit=5), 110),
    "find_work held": (
        lambda store: store.find_work(
            MINE, now_us=T0, limit=0, held=[HeldQuery(REF, (Hold.PAUSED, Hold.BUSY), 10)]
        ),
        1_300,
    ),
    # Of each task its newest rows, and of one of which none of these waits as many as may tell.
    "waiting_tasks": (lambda store: store.waiting_tasks(MINE, now_us=T0, first=None, limit=100), 450),
    "waiting_tasks from one on": (
        lambda store: store.waiting_tasks(MINE, now_us=T0, first=TaskRef("default", "m"), limit=100),
        450,
    ),
    "held_tasks": (lambda store: store.held_tasks(MINE), 120),
    # What is counted, and a seek for each pair of partition and priority that comes before.
    "count_waiting": (lambda store: store.count_waiting(now_us=T0, limit=100), 900),
    "find_overlap_ready": (
        lambda store: store.find_overlap_ready(
            [REF, TaskRef("default", "alone"), TaskRef("default", "noise")]
        ),
        60,
    ),
    "find_expired": (lambda store: store.find_expired(MINE, now_us=T0, limit=10), 20),
    "next_expiry_us": (lambda store: store.next_expiry_us(MINE), 20),
    "live_instances": (lambda store: store.live_instances([REF, TaskRef("default", "noise")], limit=9), 90),
    "running_instances": (
        lambda store: store.running_instances(MINE, after_id="i041990", limit=9),
        60,
    ),
    "get_instances": (lambda store: store.get_instances(["i090001", "i090002"]), 20),
}


@pytest.mark.parametrize("name", _READS)
async def test_a_read_costs_what_it_gives_whatever_else_there_is(store: MysqlStore, name: str) -> None:
    """The server counts the rows that it reads: thousands of others stand beside those asked for."""
    read, reads_max = _READS[name]
    found = _given(await read(store))
    before = await store.database.run("counting", _reads, role="owner")
    assert _given(await read(store)) == found
    after = await store.database.run("counting", _reads, role="owner")
    assert found
    assert before[0] == after[0]  # the same session, so that all was counted
    assert after[1] - before[1] <= reads_max


def _given(found: Any) -> Any:
    """Without the time of the next look, which comes earlier where this one took long."""
    return found.instances if isinstance(found, FoundWork) else found


async def _reads(connection: AsyncConnection) -> tuple[int, int]:
    """Number of the session, and rows and index entries that it has read so far."""
    driver = await driver_connection(connection)
    rows = await fetch(driver, "SHOW SESSION STATUS LIKE 'Handler\\_read\\_%'")
    return driver.thread_id(), sum(int(value) for _, value in rows)


async def test_held_work_of_many_tasks_is_found_by_as_many_statements_as_that_of_one(
    store: MysqlStore,
) -> None:
    """A slot that has become free is offered to all of them: this is paid for each instance that runs."""
    refs = [TaskRef("default", f"held-{number}") for number in range(30)]
    rows = [
        make_instance(300_000 + n, partition=7, task=ref.name, hold=Hold.BUSY, priority=n % 10, due_us=T0 - n)
        for n, ref in enumerate(refs)
    ]
    await store.submit([Submission(instance=row) for row in rows])

    async def find(count: int) -> tuple[list[str], int, int]:
        queries = [HeldQuery(ref, (Hold.BUSY, Hold.NO_WORKER, Hold.PAUSED), 1) for ref in refs[:count]]
        before = await store.database.run("counting", _selects, role="owner")
        found = await store.find_work(MINE, now_us=T0, limit=0, held=queries)
        after = await store.database.run("counting", _selects, role="owner")
        assert before[0] == after[0]  # the same session, so that all was counted
        return sorted(row.id for row in found.instances), after[1] - before[1], after[2] - before[2]

    one, statements_of_one, _ = await find(1)
    assert one == [rows[0].id]
    everything, statements, reads = await find(30)
    assert everything == sorted(row.id for row in rows)
    assert statements == statements_of_one
    # Of each task, cause and priority the row that asks for it, a seek and what it finds.
    assert reads < 3 * 30 * 3 * 10 + 500


async def _selects(connection: AsyncConnection) -> tuple[int, int, int]:
    """Number of the session, its SELECTs so far, and the rows and index entries that it has read."""
    driver = await driver_connection(connection)
    rows = await fetch(driver, "SHOW SESSION STATUS LIKE 'Com\\_select'")
    session, reads = await _reads(connection)
    return session, int(rows[0][1]), reads


async def test_the_first_of_many_partitions_are_found_by_reading_a_few_of_each(store: MysqlStore) -> None:
    owner = Owner(store, [])
    rng = random.Random(9)
    rows = [
        make_instance(200_000 + n, partition=32 + n % 32, due_us=T0 - rng.randrange(5_000_000))
        for n in range(4_000)
    ]
    await owner.submit(*rows)
    mine = [number for number in ALL if number >= 32 and number != 40]
    ranked = sorted((row.due_us, row.id) for row in rows if row.partition in mine)
    before = await store.database.run("counting", _reads, role="owner")
    found = await store.find_work(mine, now_us=T0, limit=100)
    after = await store.database.run("counting", _reads, role="owner")
    assert [row.id for row in found.instances] == [identifier for _, identifier in ranked[:100]]
    assert found.more
    assert after[1] - before[1] < 2_500


async def test_rows_of_many_partitions_that_are_due_at_once_come_by_their_ids(store: MysqlStore) -> None:
    rows = [
        make_instance(f"same-{(n * 37) % 256:03}", partition=n % 64, due_us=T0 - 10 * HOUR)
        for n in range(256)
    ]
    await Owner(store, []).submit(*rows)
    for limit in (5, 20, 100):
        found = await store.find_work(ALL, now_us=T0 - 9 * HOUR, limit=limit)
        assert [row.id for row in found.instances] == [f"same-{n:03}" for n in range(limit)]
    batch = Owner(store, await store.take_partitions("node-1", ALL)).batch()
    batch.ended_waiting = [
        EndWaiting(row.id, row.partition, row.state, 0, State.CANCELLED, "", T0) for row in rows
    ]
    assert await store.commit(batch) == CommitReport()


# ── plans ─────────────────────────────────────────────────────────────────────────────────────────────

_VALUES = {
    "partition": 1,
    "priority": 5,
    "query": 0,
    "first_us": 0,
    "partitions": "(1, 2, 3)",
    "priorities": "(4, 5)",
    "now_us": T0,
    "limit": 10,
    "hold": "'busy'",
    "namespace": "'default'",
    "task": "'noise'",
    "after_id": literal("i000001"),
}
_PLANS = {
    "due_rows": {"instance_due"},
    "held_rows": {"instance_held"},
    "held_tasks": {"instance_held"},
    "count_waiting": {"instance_due", "instance_held"},
    "overlap_ready": {"instance_held", "instance_live"},
    "live_instances": {"instance_live"},
    "find_expired": {"instance_expiry"},
    "next_expiry": {"instance_expiry"},
    "running": {"instance_state"},
    "newest": {"PRIMARY", "request_open", "task_changed"},
}


@pytest.mark.parametrize("name", _PLANS)
async def test_each_read_takes_its_index(store: MysqlStore, name: str) -> None:
    plan = await _explain(store, lambda _: statement(name).format(**_VALUES))
    tables = [row for row in plan if row["table"] and not row["table"].startswith("<")]
    assert {row["key"] for row in tables} <= _PLANS[name]
    assert not [row for row in tables if "filesort" in (row["Extra"] or "") and name != "overlap_ready"]


async def test_next_due_is_one_seek(store: MysqlStore) -> None:
    plan = await _explain(store, lambda _: statement("next_due").format(**_VALUES))
    assert [row["Extra"] for row in plan] == ["Select tables optimized away"]


async def test_each_move_finds_its_rows_by_their_ids(store: MysqlStore) -> None:
    row = make_instance(1, attempt_id="a")
    batch = Owner(store, []).batch()
    batch.assigns = [make_assign(make_instance(number)) for number in range(50)]
    batch.successes = [make_success(row) for _ in range(50)]
    batch.ended_attempts = [end_attempt(row) for _ in range(50)]
    kinds = move_rows(batch)
    for kind in kinds:

        def text(statements: Statements, kind: Any = kind) -> bytes:
            return next(statements.of(kind.statement, kind.rows))[0]

        plan = await _explain(store, text)
        assert [(entry["type"], entry["key"]) for entry in plan if entry["table"] == "instance"] == [
            ("eq_ref", "PRIMARY")
        ]
    assert len(kinds) == 3


async def _explain(store: MysqlStore, text: Callable[[Statements], str | bytes]) -> list[dict[str, Any]]:
    async def explain(connection: AsyncConnection) -> list[dict[str, Any]]:
        driver = await driver_connection(connection)
        query = text(session_of(driver).statements)
        encoded = query.encode() if isinstance(query, str) else query
        async with driver.cursor() as cursor:
            # The table of one row for each table read is what MySQL gives since 9 only when asked for.
            explain = b"EXPLAIN " if session_of(driver).server.is_mariadb else b"EXPLAIN FORMAT=TRADITIONAL "
            await cursor.execute(explain + encoded)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in await cursor.fetchall()]

    return await store.database.run("explaining", explain, role="owner")
