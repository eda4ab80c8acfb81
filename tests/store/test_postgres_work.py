"""Finding work on PostgreSQL: exact order over many queues, at a cost that others' rows do not raise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection
from support.postgres_wire import outside
from support.servers import TestDatabase

from ostinato.core.definition import TaskRef
from ostinato.core.model import Instance
from ostinato.core.states import Hold
from ostinato.store.batches import CommitBatch, HeldQuery
from ostinato.store.postgres import commit, work
from ostinato.store.postgres.statements import statement
from ostinato.store.postgres.store import PostgresStore
from ostinato.store.rules import AGEING_US_PER_PRIORITY, TOLD_COUNT
from ostinato.store.server.database import driver_connection
from ostinato.store.server.move_rows import move_rows
from ostinato.testing.contracts.store_kit import ALL, HOUR, MINUTE, REF, T0, Owner, make_assign, make_instance
from ostinato.testing.contracts.store_kit import make_submission as submission

#: Nodes of a plan that read more of a table than they give.
_WHOLE_READS = {"Seq Scan", "Parallel Seq Scan"}


def _age(row: Instance) -> tuple[int, str]:
    return row.due_us - row.priority * AGEING_US_PER_PRIORITY, row.id


@pytest.mark.parametrize("seed", range(3))
async def test_work_is_found_in_the_order_of_age_over_all_queues(store: PostgresStore, seed: int) -> None:
    """Some queues much longer than others, so that heads of queues do and do not suffice."""
    rng = Random(seed)
    rows = [
        make_instance(
            number,
            partition=min(rng.randrange(64), rng.choice([1, 2, 63])),
            priority=min(rng.randrange(10), rng.choice([3, 9])),
            due_us=T0 + rng.randrange(-10 * MINUTE, MINUTE),
            hold=rng.choice([None, None, None, Hold.BUSY]),
        )
        for number in range(2000)
    ]
    await Owner(store, []).submit(*rows)
    for partitions in (ALL, range(3), [1], [40, 2]):
        due = sorted(
            (row for row in rows if row.partition in partitions and row.hold is None and row.due_us <= T0),
            key=_age,
        )
        later = [
            row.due_us for row in rows if row.partition in partitions and not row.hold and row.due_us > T0
        ]
        for limit in (1, 4, 5, 37, 3000):
            found = await store.find_work(partitions, now_us=T0, limit=limit)
            assert [row.id for row in found.instances] == [row.id for row in due[:limit]]
            assert found.more == (len(due) > limit)
            assert found.next_due_us == min(later, default=None)


async def test_held_work_of_many_tasks_is_found_by_the_order_of_each(store: PostgresStore) -> None:
    rng = Random(1)
    rows = [
        make_instance(
            number,
            task=f"task-{number % 3}",
            priority=rng.randrange(10),
            due_us=T0 - rng.randrange(10 * MINUTE),
            hold=rng.choice(list(Hold)),
        )
        for number in range(600)
    ]
    await Owner(store, []).submit(*rows)
    queries = [
        HeldQuery(TaskRef("default", "task-0"), (Hold.BUSY, Hold.PAUSED), 7),
        HeldQuery(TaskRef("default", "task-2"), (Hold.NO_WORKER,), 1000),
        HeldQuery(TaskRef("default", "task-1"), (), 5),
    ]
    expected: list[str] = []
    for query in queries:
        of_query = [row for row in rows if row.ref == query.ref and row.hold in query.holds]
        expected += [row.id for row in sorted(of_query, key=_age)[: query.limit]]
    found = await store.find_work(ALL, now_us=T0, limit=10, held=queries)
    assert [row.id for row in found.instances] == expected


@pytest.mark.parametrize(("branch_count", "head_count"), [(0, 4), (1, 100), (2, 100), (10, 20), (640, 4)])
def test_heads_are_the_longer_the_fewer_queues_had_due_rows(branch_count: int, head_count: int) -> None:
    shape = work.QueueShape()
    shape.looked(branch_count)
    assert shape.head_count(100) == head_count
    assert shape.head_count(1) == 1


# ── cost ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_moved_between_the_two_statements_of_a_look_is_no_work_any_more(
    store: PostgresStore,
) -> None:
    """C129: a row that a cancel had ended there was assigned: a broken rule, which stopped its partition."""
    waiting, running = make_instance("waiting"), make_instance("running")
    await store.submit([submission("waiting"), submission("running")])
    await (await Owner.of(store)).run(running)

    async def read(connection: AsyncConnection) -> list[Instance]:
        return await work._work(await driver_connection(connection), [waiting.id, running.id])

    found = await store.database.run("reading", read, role="owner")
    assert [row.id for row in found] == [waiting.id]


async def _explain(store: PostgresStore, query: str, *arguments: object, runs: bool = True) -> dict[str, Any]:
    """The plan that an owner's transaction has, and what it read if it `runs`."""

    async def explain(connection: AsyncConnection) -> dict[str, Any]:
        driver = await driver_connection(connection)
        options = "ANALYZE, BUFFERS, FORMAT JSON" if runs else "FORMAT JSON"
        found = await driver.fetchval(f"EXPLAIN ({options}) {query}", *arguments)
        plan: dict[str, Any] = found[0]["Plan"]
        return plan

    return await store.database.run("explaining", explain, role="owner")


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)


def _indexes(plan: dict[str, Any]) -> set[str]:
    """Names of the indexes that serve; none of the tables may be read whole."""
    whole = {node["Relation Name"] for node in _nodes(plan) if node["Node Type"] in _WHOLE_READS}
    assert whole == set()
    return {node["Index Name"] for node in _nodes(plan) if "Index Name" in node}


def _pages(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


async def _fill(store: PostgresStore) -> Owner:
    """A backlog in partition 7, rows that are due later, held and finished everywhere."""
    owner = await Owner.of(store)
    rows = [submission(f"b{number}", partition=7) for number in range(15_000)]
    rows += [submission(f"f{number}", partition=number % 64, due_us=T0 + HOUR) for number in range(3_000)]
    rows += [submission(f"h{number}", partition=number % 64, hold=Hold.BUSY) for number in range(3_000)]
    await store.submit(rows)
    return owner


async def test_the_cost_of_a_claim_does_not_grow_with_the_rows_of_others(
    store: PostgresStore, server: TestDatabase
) -> None:
    """Neither with another partition's backlog, nor with rows that are later, held or finished."""
    owner = await _fill(store)
    with outside(server) as session:
        # What other tests have deleted.
        session.execute("VACUUM instance")
    mine = [partition for partition in ALL if partition not in (7, 9)][:32]
    arguments = (mine, T0, 4, 101)
    plan = await _explain(store, work._DUE, *arguments)
    assert _indexes(plan) == {"instance_due"}
    # Three levels of the index, twice a partition: whether it has a queue, and of which priorities; then its
    # head and its next row.
    assert _pages(plan) <= len(mine) * 4 * 4
    await owner.submit(make_instance("mine", partition=mine[0]))
    found = await store.find_work(mine, now_us=T0, limit=100)
    assert [row.id for row in found.instances] == ["mine"]
    # Of the backlog itself only what is asked for is read, by whomever it belongs to.
    plan = await _explain(store, work._DUE_REST, [7], [5], [T0], [""], T0, 101, 101)
    assert _indexes(plan) == {"instance_due"}
    assert plan["Actual Rows"] == 101
    assert _pages(plan) <= 250


async def test_the_cost_of_counting_what_waits_ends_at_the_limit(
    store: PostgresStore, server: TestDatabase
) -> None:
    await _fill(store)
    with outside(server) as session:
        session.execute("VACUUM instance")
    plan = await _explain(store, statement("count_waiting"), list(ALL), T0, 1_000)
    assert _indexes(plan) == {"instance_due", "instance_held"}
    # Three levels of the index, twice a partition: whether it has a queue, and of which priorities; then what
    # is counted, in pages of the indexes alone.
    assert _pages(plan) <= len(ALL) * 3 * 4 + 100
    assert await store.count_waiting(now_us=T0, limit=1_000) == 1_000
    assert await store.count_waiting(now_us=T0, limit=100_000) == 18_000


async def test_the_cost_of_asking_where_work_waits_grows_with_tasks_and_not_with_their_rows(
    store: PostgresStore,
) -> None:
    await _fill(store)
    await store.submit(
        [submission(f"o{number}", task=f"other{number:02}", partition=3) for number in range(30)]
    )
    plan = await _explain(store, work._WAITING_TASKS, list(ALL), T0, 100)
    assert plan["Actual Rows"] == 31
    assert _indexes(plan) == {"instance_live"}
    # Three levels of the index, for the task and for its newest row, and that row; of one the newest that are
    # looked at are all held.
    assert _pages(plan) <= 31 * 2 * 5 + 2 * TOLD_COUNT


@pytest.mark.parametrize("is_analyzed", [False, True], ids=["without-statistics", "with-statistics"])
async def test_every_hot_statement_looks_rows_up_by_index(
    store: PostgresStore, server: TestDatabase, is_analyzed: bool
) -> None:
    await _fill(store)
    if is_analyzed:
        with outside(server) as session:
            session.execute("ANALYZE")
    names = [REF.namespace], [REF.name]
    rows = [make_instance(number) for number in range(50)]
    moves: Sequence[tuple[str, Sequence[commit.Row]]] = [
        *move_rows(CommitBatch(proofs=[], assigns=[make_assign(row) for row in rows])),
        ("hold", [(row.id, 3, "pending", 0, "busy", "why") for row in rows]),
        ("succeed", [(row.id, 3, 1, "a", T0, T0, b"") for row in rows]),
        ("end_waiting", [(row.id, 3, "pending", 0, "failed", "why", T0, None) for row in rows]),
        ("request_cancel", [(row.id, 3, 1, T0, "why") for row in rows]),
        ("replay", [(row.id, 3, "failed", 1, 1, b"", T0, None, "why") for row in rows]),
        (
            "end_attempt",
            [(row.id, 3, 1, "a", "failed", "", None, T0, None, T0, T0, None) for row in rows],
        ),
    ]
    for name, values in moves:
        plan = await _explain(store, statement(name), *commit.columns(values), runs=False)
        assert (name, _indexes(plan)) == (name, {"instance_pkey"})
    for query, arguments, indexes in (
        (work._INSTANCES, ([row.id for row in rows],), {"instance_pkey"}),
        (work._HELD, ([0], *names, ["busy"], [100], list(ALL)), {"instance_held"}),
        (statement("overlap_ready"), names, {"instance_held", "instance_live"}),
        (statement("held_tasks"), (list(ALL),), {"instance_held"}),
        (statement("count_waiting"), (list(ALL), T0, 1_000), {"instance_due", "instance_held"}),
        (work._WAITING_TASKS, (list(ALL), T0, 100), {"instance_live"}),
        (work._WAITING_TASKS_FROM, (list(ALL), T0, 100, REF.namespace, REF.name), {"instance_live"}),
        (work._EXPIRED, (T0, list(ALL), 100), {"instance_expiry"}),
        (statement("next_expiry"), (list(ALL),), {"instance_expiry"}),
        (work._LIVE, (*names, 10), {"instance_live"}),
        (work._RUNNING, ("", list(ALL), 100), {"instance_state"}),
        (statement("known_instances"), (["i1"], ["t"], [1], [0]), {"instance_pkey", "instance_fire"}),
        (statement("key_holders"), (*names, ["k"], T0), {"idempotency_key_pkey"}),
        (statement("prove"), (list(ALL), []), {"partition_owner_pkey"}),
        (statement("answer"), (["r"], [1], ["OK"], [""], [""], [T0]), {"request_pkey"}),
    ):
        assert _indexes(await _explain(store, query, *arguments, runs=False)) == indexes
