"""Queries, retention and workers on the servers: many rows at once, several callers at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from support.server_statements import Server
from support.servers import SERVER_KINDS, TestDatabase, fresh_database

from ostinato.core.definition import TaskRef
from ostinato.core.model import Instance, OutputChunk
from ostinato.core.retry.counters import Counters
from ostinato.core.states import State
from ostinato.store.batches import InstanceFilter, NodeRow, Request, WorkerRow
from ostinato.store.schema import history, instance, output, request
from ostinato.store.server import lists, nodes, queries, tasks, triggers, workers
from ostinato.store.server.rows import HISTORY, INSERTED, history_values, instance_values
from ostinato.testing.contracts.store_kit import HOUR, T0, history_row, make_instance


@pytest.fixture(scope="module", params=SERVER_KINDS)
def database(request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    with fresh_database(request.param) as database:
        yield database


@pytest.fixture
async def server(database: TestDatabase) -> AsyncIterator[Server]:
    database.clean()
    server = Server(database)
    yield server
    await server.engine.dispose()


async def _insert(server: Server, *rows: Instance) -> None:
    values = [dict(zip(INSERTED, instance_values(row), strict=True)) for row in rows]
    await server.run(lambda c: c.execute(insert(instance), values))


async def _finish(server: Server, *rows: Instance) -> None:
    """As if each had succeeded at T0."""
    await _insert(server, *rows)
    ended = {"state": "success", "finished_us": T0, "attempt": 1, "attempt_id": "a"}
    ids = [row.id for row in rows]
    await server.run(lambda c: c.execute(update(instance).where(instance.c.id.in_(ids)).values(ended)))


def _chunk(instance_id: str, sequence: int, *, text: str = "line\n") -> OutputChunk:
    return OutputChunk(
        instance_id=instance_id,
        attempt=1,
        attempt_id="a",
        sequence=sequence,
        at_us=T0,
        stream="stdout",
        text=text,
    )


def _deletion(limit: int) -> Callable[[AsyncConnection], Awaitable[int]]:
    return lambda c: queries.delete_finished(
        c, success_before_us=T0 + 1, other_before_us=T0 + 1, keys_before_us=T0, limit=limit
    )


async def _count(server: Server, *of: object) -> list[int]:
    counts = [select(func.count()).select_from(table) for table in of]  # type: ignore[arg-type] # all are tables
    return [int(await server.run(lambda c, one=one: c.scalar(one)) or 0) for one in counts]


async def test_thousands_of_instances_are_read_in_a_few_statements(server: Server) -> None:
    rows = [make_instance(number) for number in range(6_000)]
    await _insert(server, *rows)
    found = await server.run(lambda c: queries.get_instances(c, [row.id for row in rows] * 2))
    assert [found[row.id] for row in rows] == rows
    assert len(server.statements) == 2


async def test_every_column_of_an_instance_comes_back_as_it_was(server: Server) -> None:
    full = {
        "attempt": 3,
        "generation": 2,
        "attempt_id": "a3",
        "worker_id": "w",
        "worker_name": "né",
        "counters": '{"failures":2,"window_opened_us":5}',
        "reason": "100 % 'sure' \\ %s",
        "assigned_us": 1,
        "started_us": 2,
        "cancel_requested_us": 3,
        "cancel_reason": "\U0001f600",
        "failure": '{"code":"E","category":"transient","message":"m"}',
        "state": "running",
    }
    await _insert(server, make_instance(1, payload=bytes(range(256))), make_instance(2))
    changing = update(instance).where(instance.c.id == "i000001").values(full)
    await server.run(lambda c: c.execute(changing))
    row = (await server.run(lambda c: queries.get_instances(c, ["i000001"])))["i000001"]
    assert row.payload == bytes(range(256))
    assert (row.state, row.attempt, row.generation, row.worker_name) == (State.RUNNING, 3, 2, "né")
    assert row.counters == Counters(failures=2, window_opened_us=5)
    assert (row.reason, row.cancel_reason) == (full["reason"], full["cancel_reason"])
    assert row.failure is not None
    assert (row.failure.code, row.failure.message) == ("E", "m")
    assert (row.assigned_us, row.started_us, row.cancel_requested_us) == (1, 2, 3)


async def test_what_no_row_can_be_named_is_not_found(server: Server) -> None:
    await _insert(server, make_instance(1))
    await server.apply()
    ref, nul = TaskRef("default", "a\0"), "i\0"
    assert await server.run(lambda c: queries.get_instances(c, [nul, "i000001"])) == {
        "i000001": make_instance(1)
    }
    assert await server.run(lambda c: queries.history(c, nul, after=0, limit=None)) == []
    assert await server.run(lambda c: queries.count_history(c, nul)) == 0
    assert await server.run(lambda c: queries.output(c, nul, after=(0, 0), limit=9)) == []
    assert await server.run(lambda c: queries.answers(c, [nul])) == {}
    assert await server.run(lambda c: tasks.get_tasks(c, [ref])) == {}
    assert await server.run(lambda c: tasks.load_definitions(c, [(ref, 1)])) == {}
    assert await server.run(lambda c: triggers.triggers_of(c, ref)) == []
    listing = InstanceFilter(key=nul)
    page = await server.run(lambda c: lists.list_instances(c, listing, cursor=None, limit=9))
    assert (page.instances, page.cursor) == ([], None)


async def test_output_of_many_instances_is_stored_in_two_statements_and_any_text_survives(
    server: Server,
) -> None:
    await _insert(server, *[make_instance(number) for number in range(50)])
    texts = ["%s %(x)s %%", "back\\slash 'quoted' \"twice\"", "é \U0001f600", "x" * 200_000, ""]
    chunks = [
        _chunk(f"i{number:06}", sequence, text=texts[(number + sequence) % 5])
        for number in range(60)
        for sequence in range(40)
    ]
    await server.run(lambda c: queries.append_output(c, chunks + chunks[:7]))
    assert len(server.statements) == 2
    assert await _count(server, output) == [2_000]
    kept = await server.run(lambda c: queries.output(c, "i000007", after=(0, -1), limit=99))
    assert kept == [chunk for chunk in chunks if chunk.instance_id == "i000007"]
    await server.run(lambda c: queries.append_output(c, []))


async def test_history_is_read_by_parts_in_the_order_written(server: Server) -> None:
    rows = [
        history_row(make_instance(number % 2), sentence=str(number), unconditional=number == 4)
        for number in range(10)
    ]
    values = [dict(zip(HISTORY, history_values(row), strict=True)) for row in rows]
    await server.run(lambda c: c.execute(insert(history), values))
    part = await server.run(lambda c: queries.history(c, "i000000", after=1, limit=3))
    assert part == [rows[2], rows[4], rows[6]]
    rest = await server.run(lambda c: queries.history(c, "i000000", after=3, limit=None))
    assert rest == [rows[6], rows[8]]


async def test_a_request_is_kept_once_whoever_adds_it_at_once(server: Server) -> None:
    requests = [
        Request(id=f"r{number}", partition=number % 64, kind="cancel", namespace="default", created_us=T0)
        for number in range(200)
    ]
    turns = [requests[shift:] + requests[:shift] for shift in range(0, 200, 25)]
    adding = [server.run(lambda c, turn=turn: queries.add_requests(c, turn)) for turn in turns]
    await asyncio.gather(*adding)
    assert await _count(server, request) == [200]
    found = await server.run(lambda c: queries.find_requests(c, [1, 2], limit=5))
    assert [row.id for row in found] == ["r1", "r129", "r130", "r193", "r194"]
    assert len(await server.run(lambda c: queries.find_requests(c, None, limit=999))) == 200


# ── retention ─────────────────────────────────────────────────────────────────────────────────────────


async def test_retention_passes_over_what_somebody_else_is_at(server: Server) -> None:
    """It neither waits for a replay under way nor deletes what has been replayed."""
    await _finish(server, *[make_instance(number) for number in range(3)])
    replayed = update(instance).where(instance.c.id == "i000001")
    async with server.engine.connect() as replaying:
        await replaying.execute(replayed.values(state="pending", finished_us=None, generation=2))
        assert await asyncio.wait_for(server.run(_deletion(9)), 5) == 2
        await replaying.commit()
    assert await server.run(_deletion(9)) == 0
    assert set(await server.run(lambda c: queries.get_instances(c, ["i000000", "i000001"]))) == {"i000001"}


async def test_output_that_arrives_while_its_instance_is_deleted_is_not_left_behind(server: Server) -> None:
    await _finish(server, make_instance(1), make_instance(2))
    async with server.engine.connect() as appending:
        await queries.append_output(appending, [_chunk("i000001", 1)])
        assert await asyncio.wait_for(server.run(_deletion(9)), 5) == 1
        await appending.commit()
    assert await server.run(_deletion(9)) == 1
    assert await _count(server, instance, output) == [0, 0]
    async with server.engine.connect() as deleting:
        await _finish(server, make_instance(3))
        assert await _deletion(9)(deleting) == 1
        appending_task = asyncio.ensure_future(
            server.run(lambda c: queries.append_output(c, [_chunk("i000003", 1)]))
        )
        await asyncio.wait([appending_task], timeout=0.2)
        await deleting.commit()
    await appending_task
    assert await _count(server, instance, output) == [0, 0]


async def test_several_who_delete_at_once_share_the_work(server: Server) -> None:
    await _finish(server, *[make_instance(number) for number in range(400)])
    deleted = await asyncio.gather(*[server.run(_deletion(100)) for _ in range(4)])
    while count := await server.run(_deletion(100)):
        deleted.append(count)
    assert sum(deleted) == 400
    assert max(deleted) == 100
    assert await _count(server, instance) == [0]


# ── workers ───────────────────────────────────────────────────────────────────────────────────────────


async def test_nodes_record_workers_and_end_those_of_lost_nodes_all_at_once(server: Server) -> None:
    def rows(node_id: str, *, seen_us: int = T0) -> list[WorkerRow]:
        return [
            WorkerRow(
                worker_id=f"w{number}",
                worker_name="w",
                node_id=node_id,
                state="connected",
                seen_us=seen_us,
                labels={"zone": "é"},
            )
            for number in range(50)
        ]

    for node_id in ("n1", "n2", "n3"):
        node = NodeRow(node_id, 0, "", T0)
        await server.run(lambda c, node=node: nodes.register_node(c, node))
    lost = rows("lost") + rows("long-lost", seen_us=T0 - HOUR)
    await server.run(lambda c: workers.record_workers(c, lost, gone_before_us=0))
    recorded = [rows("n1"), rows("n2")[::-1], rows("n3")] * 5
    recording = [
        server.run(lambda c, own=own: workers.record_workers(c, own, gone_before_us=T0)) for own in recorded
    ]
    await asyncio.gather(*recording)
    await server.run(lambda c: workers.record_workers(c, [], gone_before_us=T0))
    assert len(server.statements) == 2
    found = await server.run(workers.workers)
    states = {(row.node_id, row.state) for row in found}
    assert states == {("n1", "connected"), ("n2", "connected"), ("n3", "connected"), ("lost", "gone")}
    assert len(found) == 200
