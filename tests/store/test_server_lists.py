"""Lists on the servers: what one call reads has a bound, whatever the filter and the statistics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import product

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from support.server_statements import Server
from support.servers import SERVER_KINDS, TestDatabase, fresh_database

from ostinato.core.states import State
from ostinato.store.batches import InstanceFilter
from ostinato.store.mysql.store import MysqlStore
from ostinato.store.postgres.store import PostgresStore
from ostinato.store.protocol import Store
from ostinato.store.server import lists, queries, tasks, triggers
from ostinato.testing.contracts import store_pages
from ostinato.testing.contracts.store_kit import T0, ContractClock

ROW_COUNT = 200_000
#: The oldest, among which every namespace, task and state is common that is rare later.
RARE_COUNT = 2_000
#: Rows that one way may look at here.
SCANNED_MAX = 500
#: A list may count what is few in some ways, and walk several; all of it is far from the whole table.
READ_MAX = 12 * SCANNED_MAX


@pytest.fixture(scope="module", params=SERVER_KINDS)
def database(request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    with fresh_database(request.param) as database:
        yield database


@pytest.fixture
async def store(database: TestDatabase) -> AsyncIterator[Store]:
    database.clean()
    kind = PostgresStore if database.kind == "postgresql" else MysqlStore
    store = kind(database.server_url, clock=ContractClock())
    await store.open()
    yield store
    await store.close()


async def test_c189_pages_lead_to_everything_where_every_way_stops_early(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some filters of the contract, with so few rows per call that pages are short and often empty."""
    rows = await store_pages._mixed(store)
    for name, value in (
        ("SCANNED_ROWS_MAX", 9),
        ("_SCANNED_FOR_CODE_MAX", 9),
        ("_NAMESPACES_MAX", 1),
        ("_FIRST_ROWS", 4),
    ):
        monkeypatch.setattr(lists, name, value)
    for where in list(store_pages._filters())[::13]:
        expected = [row for row in rows if store_pages._is_meant(row, where)]
        assert await store_pages._all(store, where, limit=7) == expected, where


@pytest.fixture(scope="module", params=SERVER_KINDS)
def large(request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    """A large table whose statistics are of its beginning."""
    with fresh_database(request.param) as database:
        engine = database.engine()
        with engine.begin() as connection:
            if database.kind == "postgresql":
                connection.execute(text("ALTER TABLE instance SET (autovacuum_enabled = false)"))
            connection.execute(text(_filling(0, RARE_COUNT, is_mysql=database.kind != "postgresql")))
        with engine.begin() as connection:
            connection.execute(text(f"ANALYZE {'TABLE ' if database.kind != 'postgresql' else ''}instance"))
            filling = _filling(RARE_COUNT, ROW_COUNT, is_mysql=database.kind != "postgresql")
            connection.execute(text(filling))
        engine.dispose()
        yield database


@pytest.fixture
async def server(large: TestDatabase) -> AsyncIterator[Server]:
    server = Server(large)
    yield server
    await server.engine.dispose()


def _filling(start: int, end: int, *, is_mysql: bool) -> str:
    """INSERT of the rows from `start` to before `end`: first all wait, later nearly all have succeeded.

    What the statistics of the first say of the later is wrong: that the rows of any task and namespace are
    met soon from either end of the table.
    """
    quote = "`" if is_mysql else '"'
    digits = "SELECT 0 AS d " + " ".join(f"UNION ALL SELECT {digit}" for digit in range(1, 10))
    sum_of = " + ".join(f"t{place}.d * {10**place}" for place in range(6))
    tables = " CROSS JOIN ".join(f"({digits}) AS t{place}" for place in range(6))
    is_old = f"n < {RARE_COUNT}"
    state = f"CASE WHEN {is_old} THEN 'pending' WHEN n % 100 = 7 THEN 'failed' ELSE 'success' END"
    return f"""INSERT INTO instance (id, namespace, task, task_version, {quote}partition{quote}, state,
      priority, due_us, created_us, payload, {quote}key{quote}, attempt, attempt_id, finished_us, failure)
    SELECT concat('i', lpad(cast(n AS char(6)), 6, '0')),
      CASE WHEN {is_old} AND n * 7 % 11 < 5 OR n % 1000 = 50 THEN 'n50'
        WHEN n % 1000 = 150 THEN 'n150' ELSE 'default' END,
      CASE WHEN {is_old} AND n * 5 % 13 < 6 THEN 'rare' ELSE 'common' END,
      1, n % 64, {state}, 5, {T0} + n, {T0} + n, '{{}}',
      CASE WHEN n % 10 = 0 THEN concat('k', cast(n % 1000 AS char(4))) ELSE '' END,
      CASE WHEN {is_old} THEN 0 ELSE 1 END, 'a', CASE WHEN {is_old} THEN NULL ELSE {T0} + n END,
      CASE WHEN n % 100 = 7 THEN '{{"code":"E1","category":"transient","message":"no"}}' END
    FROM (SELECT {sum_of} AS n FROM {tables}) AS numbers WHERE n >= {start} AND n < {end}"""


def _filters() -> Iterator[InstanceFilter]:
    states: tuple[tuple[State, ...], ...] = (
        (),
        (State.PENDING,),
        (State.FAILED,),
        (State.SUCCESS,),
        (State.RUNNING, State.PENDING, State.FAILED),
        (State.SUCCESS, State.CANCELLED),
    )
    namespaces, names = (None, "default", "n50", "none"), (None, "rare", "common", "none")
    for namespace, name, chosen, (key, code) in product(
        namespaces, names, states, ((None, None), ("k70", None), ("", None), (None, "E1"))
    ):
        yield InstanceFilter(namespace, name, chosen, key, code)


@pytest.mark.parametrize("are_current", [False, True], ids=["stale-statistics", "current-statistics"])
async def test_c189_no_list_reads_more_than_its_bound_of_a_large_table(
    server: Server, monkeypatch: pytest.MonkeyPatch, are_current: bool
) -> None:
    for name in ("SCANNED_ROWS_MAX", "_SCANNED_FOR_CODE_MAX", "COUNTED_ENTRIES_MAX"):
        monkeypatch.setattr(lists, name, SCANNED_MAX)
    if are_current:
        await server.run(lambda c: c.execute(text(f"ANALYZE {'TABLE ' if server.is_mysql else ''}instance")))
    read: dict[str, int] = {}
    for where in list(_filters())[int(are_current) :: 3]:

        async def list_them(connection: AsyncConnection, where: InstanceFilter = where) -> None:
            await lists.list_instances(connection, where, cursor=None, limit=20)

        async def count_them(connection: AsyncConnection, where: InstanceFilter = where) -> None:
            await lists.count_instances(connection, where, limit=SCANNED_MAX)

        read[f"list {where}"] = await server.rows_read(list_them)
        read[f"count {where}"] = await server.rows_read(count_them)
    assert {name: count for name, count in read.items() if count > READ_MAX} == {}
    # What is counted is real: some had to look at all that they may.
    assert max(read.values()) > SCANNED_MAX


async def test_what_an_owner_looks_for_costs_no_more_in_a_large_table(server: Server) -> None:
    """Retention, which ends at its limit, and a few rows by their names."""

    async def delete(connection: AsyncConnection) -> None:
        found = await queries.delete_finished(
            connection, success_before_us=T0 * 2, other_before_us=T0 * 2, keys_before_us=T0, limit=50
        )
        assert found == 50

    async def look(connection: AsyncConnection) -> None:
        await queries.get_instances(connection, ["i000001", "i150000"])
        await queries.history(connection, "i000001", after=0, limit=9)
        await tasks.find_changed_tasks(connection, [1], limit=9)
        await triggers.find_due_triggers(connection, [1], now_us=T0, limit=9)
        await queries.find_requests(connection, [1], limit=9)

    # Some of it is what the server reads about the tables themselves.
    assert await server.rows_read(look) < 200
    assert await server.rows_read(delete) < 1_000
