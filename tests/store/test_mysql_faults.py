"""Deadlocks, ended sessions and lost answers on MariaDB and MySQL: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from urllib.parse import quote

import msgspec
import pymysql
import pytest
from asyncmy import errors as driver_errors
from asyncmy.errors import MySQLError
from sqlalchemy.ext.asyncio import AsyncConnection
from support.mysql_proxy import MysqlProxy, nth, passing
from support.servers import SERVER_KINDS, TestDatabase, connect, fresh_database

from ostinato.clock import SystemClock
from ostinato.core.instants import SECOND
from ostinato.core.model import HistoryKind, Instance
from ostinato.core.secret import Secret
from ostinato.core.states import State
from ostinato.errors import OstinatoError, UnavailableError, UserError
from ostinato.store.batches import CommitBatch, CommitReport, NodeRow, Proof, Submission
from ostinato.store.mysql.faults import fault
from ostinato.store.mysql.session import change
from ostinato.store.mysql.store import MysqlStore
from ostinato.store.server.database import ROLES, driver_connection
from ostinato.store.server.url import ServerUrl, read_server_url
from ostinato.testing.contracts.store_kit import (
    MINUTE,
    Owner,
    counts,
    end_attempt,
    history_row,
    make_assign,
    make_instance,
    make_submission,
)


@pytest.fixture(scope="module", params=[kind for kind in SERVER_KINDS if kind != "postgresql"])
def module_database(request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    with fresh_database(request.param) as database:
        yield database


@pytest.fixture
def database(module_database: TestDatabase) -> TestDatabase:
    module_database.clean()
    return module_database


@pytest.fixture
async def store(database: TestDatabase) -> AsyncIterator[MysqlStore]:
    async with _opened(database.url) as store:
        yield store


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[MysqlStore]:
    store = MysqlStore(read_server_url(url), clock=SystemClock())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _through(database: TestDatabase, proxy: MysqlProxy) -> str:
    url = database.server_url
    return f"mysql://{url.user}:{url.password or ''}@127.0.0.1:{proxy.port}/{url.database}"


@asynccontextmanager
async def _proxied(database: TestDatabase) -> AsyncIterator[MysqlProxy]:
    async def kill(session: int) -> None:
        await asyncio.to_thread(_kill, database, session)

    url = database.server_url
    async with MysqlProxy((url.host, url.port), kill=kill) as proxy:
        yield proxy


def _kill(database: TestDatabase, session: int) -> None:
    with closing(connect(database.server_url)) as connection:
        connection.cursor().execute(f"KILL {session}")


async def _running(owner: Owner, count: int = 3) -> list[Instance]:
    return await owner.run(*[make_instance(number) for number in range(count)])


def _ending(owner: Owner, rows: list[Instance]) -> CommitBatch:
    """Every kind of dependent row, so that whatever was written twice would show."""
    batch = owner.batch()
    batch.ended_attempts = [end_attempt(row) for row in rows]
    batch.history = [history_row(row, HistoryKind.RETRY) for row in rows]
    batch.inserts = [make_instance(100, fire_trigger="t", fire_us=5)]
    return batch


# ── deadlocks ─────────────────────────────────────────────────────────────────────────────────────────


async def test_c115_a_deadlock_is_repeated_within_the_store(
    database: TestDatabase, store: MysqlStore
) -> None:
    """The other session has changed more rows, so that the server always chooses the store's to end."""
    owner = await Owner.of(store)
    rows = await _running(owner)
    await store.submit([make_submission(number) for number in range(1000, 1400)])
    with closing(connect(database.server_url)) as other:
        cursor = other.cursor()
        cursor.execute("UPDATE instance SET reason = 'heavy' WHERE id >= 'i001000'")
        cursor.execute("SELECT id FROM instance WHERE id = 'i000002' FOR UPDATE")
        committing = asyncio.create_task(store.commit(_ending(owner, rows)))
        await _until(lambda: _is_waiting(database))
        # The store holds the first instance and waits for the last; now each waits for the other.
        await asyncio.to_thread(cursor.execute, "SELECT id FROM instance WHERE id = 'i000000' FOR UPDATE")
        await asyncio.to_thread(other.rollback)
    assert await committing == CommitReport()
    assert store.database.repeats["deadlock"] == store.counters().repeats["deadlock"] == 1
    assert await counts(store) == {"retry_waiting": 3, "pending": 401}
    assert [len(await store.history(row.id)) for row in rows] == [1, 1, 1]


async def test_c115_a_lock_that_is_held_too_long_is_waited_for_again(
    database: TestDatabase, store: MysqlStore
) -> None:
    owner = await Owner.of(store)
    rows = await _running(owner)
    with closing(connect(database.server_url)) as other:
        cursor = other.cursor()
        cursor.execute("SELECT id FROM instance WHERE id = 'i000001' FOR UPDATE")
        committing = asyncio.create_task(store.commit(_ending(owner, rows)))
        await _until(lambda: bool(store.database.repeats))
        other.rollback()
    assert await committing == CommitReport()
    assert set(store.database.repeats) <= {"lock_timeout", "refused"}
    assert [len(await store.history(row.id)) for row in rows] == [1, 1, 1]


async def test_c115_transactions_in_any_order_have_no_partial_effects(database: TestDatabase) -> None:
    """Three stores end overlapping attempts while others lock the same rows in random order."""
    rng = random.Random(115)
    async with _opened(database.url) as a, _opened(database.url) as b, _opened(database.url) as c:
        owner = await Owner.of(a)
        for turn in range(5):
            rows = await owner.run(*[make_instance(1000 * turn + number) for number in range(40)])
            batches = [_ending(owner, rng.sample(rows, 30)) for _ in range(3)]
            for batch in batches:
                batch.inserts = []
            ids = [row.id for row in rows]
            disturbing = [asyncio.to_thread(_lock_some, database, rng.sample(ids, 6)) for _ in range(2)]
            committing = [store.commit(batch) for store, batch in zip((a, b, c), batches, strict=True)]
            reports = (await asyncio.gather(*committing, *disturbing))[:3]
            for row in rows:
                ended = [
                    row.id not in report.unmatched
                    for report, batch in zip(reports, batches, strict=True)
                    if any(move.instance_id == row.id for move in batch.ended_attempts)
                ]
                assert sum(ended) == bool(ended)
                assert len(await a.history(row.id)) == bool(ended)
        repeats = a.database.repeats + b.database.repeats + c.database.repeats
        assert set(repeats) <= {"deadlock", "lock_timeout"}


def _lock_some(database: TestDatabase, ids: list[str]) -> None:
    with closing(connect(database.server_url)) as connection:
        cursor = connection.cursor()
        try:
            for identifier in ids:
                cursor.execute(f"SELECT id FROM instance WHERE id = '{identifier}' FOR UPDATE")
        except pymysql.err.OperationalError as error:
            # Chosen to end in place of the others, or not what is tested here.
            if error.args[0] != 1213:
                raise
        connection.rollback()


def _is_waiting(database: TestDatabase) -> bool:
    with closing(connect(database.server_url)) as connection:
        cursor = connection.cursor()
        if database.kind == "mariadb":
            cursor.execute("SELECT count(*) FROM information_schema.innodb_lock_waits")
        else:
            cursor.execute("SELECT count(*) FROM performance_schema.data_lock_waits")
        return bool(cursor.fetchone()[0])


async def _until(condition: Callable[[], bool]) -> None:
    """Ask, elsewhere than on the loop, until it is so."""
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(condition):
            pass


# ── sessions that end, answers that are lost ──────────────────────────────────────────────────────────


async def test_a_session_killed_at_any_statement_of_a_commit_loses_and_doubles_nothing(
    database: TestDatabase,
) -> None:
    """What cannot be repeated inside says that it is unknown; the same batch again brings it to an end."""
    number = 0
    was_struck = True
    while was_struck:
        number += 1
        database.clean()
        async with _proxied(database) as proxy, _opened(_through(database, proxy)) as store:
            owner = await Owner.of(store)
            rows = await _running(owner)
            batch = _ending(owner, rows)
            proxy.strike = nth(number, "kill")
            await _commit_until_known(store, batch)
            was_struck = proxy.struck > 0
            proxy.strike = passing
            assert await counts(store) == {"retry_waiting": 3, "pending": 1}, number
            assert [len(await store.history(row.id)) for row in rows] == [1, 1, 1], number
    # Begin, proof, savepoint, moves, insert, history, commit at least.
    assert number > 7


async def _commit_until_known(store: MysqlStore, batch: CommitBatch) -> None:
    try:
        report = await store.commit(batch)
    except UnavailableError:
        again = await store.commit(batch)
        # Either nothing had been written, or all of it: then nothing of it matches any more.
        assert again.unmatched in (set(), {"i000000", "i000001", "i000002", "i000100"})
    else:
        assert report == CommitReport()


async def test_a_session_killed_at_any_statement_of_a_submission_loses_and_doubles_nothing(
    database: TestDatabase,
) -> None:
    number = 0
    was_struck = True
    while was_struck:
        number += 1
        database.clean()
        async with _proxied(database) as proxy, _opened(_through(database, proxy)) as store:
            submissions = [make_submission(1, key="k"), make_submission(2)]
            for submission in submissions:
                submission.key_expires_us = 2**62
            proxy.strike = nth(number, "kill")
            try:
                receipts = await store.submit(submissions)
            except UnavailableError:
                receipts = await store.submit(submissions)
            was_struck = proxy.struck > 0
            proxy.strike = passing
            assert [receipt.instance_id for receipt in receipts] == ["i000001", "i000002"], number
            assert await counts(store) == {"pending": 2}, number
    assert number > 5


async def test_a_session_killed_at_any_statement_of_a_take_over_takes_once(database: TestDatabase) -> None:
    number = 0
    was_struck = True
    while was_struck:
        number += 1
        database.clean()
        async with _proxied(database) as proxy, _opened(_through(database, proxy)) as store:
            await Owner.of(store)
            await store.register_node(NodeRow("node-2", 0, "", 0))
            proxy.strike = nth(number, "kill")
            try:
                taken = await store.take_partitions("node-2", [3, 4], dead_nodes={"node-1": 0})
            except UnavailableError:
                taken = await store.take_partitions("node-2", [3, 4], dead_nodes={"node-1": 0})
            was_struck = proxy.struck > 0
            proxy.strike = passing
            assert taken == [Proof(3, "node-2", 2), Proof(4, "node-2", 2)], number
            assert (await store.partition_owners())[3:5] == taken
            assert [node.id for node in await store.nodes()] == ["node-2"]
    assert number > 5


async def test_idle_connections_that_the_server_has_closed_are_replaced_unseen(
    database: TestDatabase, store: MysqlStore
) -> None:
    owner = await Owner.of(store)
    await _running(owner)
    for role in ROLES:
        session = await store.database.run("asking", _session_of, role=role)
        _kill(database, session)
    assert await counts(store) == {"running": 3}
    assert await store.renew_node("node-1")
    assert await store.find_requests([1], limit=1) == []


async def _session_of(connection: AsyncConnection) -> int:
    return int((await driver_connection(connection)).thread_id())


# ── what the server says ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("SELECT * FROM instance LOCK IN", "ours"),
        ("SELECT nothing FROM instance", "ours"),
        ("SELECT 1 FROM no_such_table", "unusable"),
        ("INSERT INTO node (id, renewals, address, started_us) VALUES (repeat('n', 65), 0, '', 0)", "data"),
        (
            "INSERT INTO node (id, renewals, started_us) VALUES ('n', 99999999999999999999, 0)",
            "data",
        ),
        ("INSERT INTO node (id, renewals, address, started_us) VALUES ('n', NULL, '', 0)", "data"),
        ("INSERT INTO partition_owner VALUES (99, '', -1)", "data"),
        ("INSERT INTO partition_owner VALUES (0, '', 1)", "conflict"),
        ("INSERT INTO node (id, renewals, address, started_us) VALUES (_utf8mb4 x'80', 0, '', 0)", "data"),
        ("SET SESSION TRANSACTION READ ONLY; START TRANSACTION; DELETE FROM node", "refused"),
        ("KILL QUERY connection_id()", "lost"),
    ],
)
async def test_errors_of_the_server_are_understood(store: MysqlStore, statement: str, kind: str) -> None:
    assert await _fault_of(store, statement) == kind


async def test_a_statement_that_takes_too_long_is_ended_by_the_server(
    database: TestDatabase, store: MysqlStore
) -> None:
    limit = "max_statement_time = 0.01" if database.kind == "mariadb" else "max_execution_time = 10"
    tables = ", ".join(f"partition_owner AS p{number}" for number in range(5))
    # With a condition: a bare count, which MySQL leaves to its engine, is ended without a word of the limit.
    endless = f"SELECT count(*) FROM {tables} WHERE p0.owner <> 'nobody'"
    assert await _fault_of(store, f"SET SESSION {limit}; {endless}") == "refused"


@pytest.mark.parametrize(
    ("code", "kind"),
    [(3159, "unusable"), (3955, "unusable"), (3101, "conflict"), (3169, "lost"), (4031, "lost")],
)
def test_errors_that_only_the_setting_of_a_server_brings_are_understood(code: int, kind: str) -> None:
    found = fault(driver_errors.OperationalError(code, "what the server says"))
    assert found is not None
    assert found.kind == kind


async def test_a_password_may_have_any_characters(database: TestDatabase) -> None:
    """The server hashes the bytes of its UTF-8, also where they are no Latin-1."""
    user, password = f"u{os.getpid()}", "p\u00e4ss \u20ac@:/\U0001f3b5"
    url = database.server_url
    with closing(connect(url)) as administrator:
        cursor = administrator.cursor()
        cursor.execute(f"CREATE USER {user}@'%' IDENTIFIED BY '{password}'")
        try:
            cursor.execute(f"GRANT ALL ON `{url.database}`.* TO {user}@'%'")
            theirs = f"mysql://{user}:{quote(password, safe='')}@{url.host}:{url.port}/{url.database}"
            async with _opened(theirs) as store:
                assert len(await store.partition_owners()) == 64
                # What is given up is ended by a second connection, which logs in too.
                driver = await store.database.run("asking", driver_connection, role="people")
                await store.database.dialect.discard(driver)
            wrong = MysqlStore(read_server_url(theirs.replace("p%C3%A4ss", "pass")), clock=SystemClock())
            with pytest.raises(UserError, match="Access denied"):
                await wrong.open()
            await wrong.close()
        finally:
            cursor.execute(f"DROP USER {user}@'%'")


async def _fault_of(store: MysqlStore, statement: str) -> str:
    """Kind of the fault that `statement` meets, on a connection that is thrown away."""
    async with store.database.engine("people").connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        with pytest.raises(MySQLError) as caught:
            await change(driver, statement)
        await connection.invalidate()
    found = fault(caught.value)
    assert found is not None
    return found.kind


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"user": "nobody", "password": Secret("wrong")}, "DATABASE_UNUSABLE"),
        ({"database": "no_such_database"}, "DATABASE_UNUSABLE"),
        ({"port": 1}, "DATABASE_UNAVAILABLE"),
    ],
)
async def test_a_database_that_cannot_be_opened_says_why(
    database: TestDatabase, change: dict[str, object], code: str
) -> None:
    url: ServerUrl = msgspec.structs.replace(database.server_url, **change)
    store = MysqlStore(url, clock=SystemClock())
    with pytest.raises(OstinatoError) as caught:
        await store.open()
    assert caught.value.code == code
    assert "wrong" not in str(caught.value)


# ── rows that do not fit ──────────────────────────────────────────────────────────────────────────────


async def test_a_row_longer_than_a_packet_is_rejected_alone(store: MysqlStore) -> None:
    """The server would end the session of who sends more than ``max_allowed_packet``."""
    owner = await Owner.of(store)
    rows = await _running(owner)
    batch = owner.batch()
    batch.ended_attempts = [
        end_attempt(row, reason="x" * (17 * 1024 * 1024) if number == 1 else "ok")
        for number, row in enumerate(rows)
    ]
    batch.history = [history_row(row) for row in rows]
    report = await store.commit(batch)
    assert set(report.rejected) == {"i000001"}
    assert "max_allowed_packet" in report.rejected["i000001"]
    assert await counts(store) == {"retry_waiting": 2, "running": 1}
    with pytest.raises(UserError) as caught:
        await store.submit([make_submission(9), make_submission(10, payload=b"x" * (17 * 1024 * 1024))])
    assert caught.value.code == "INVALID_VALUE"
    assert await counts(store) == {"retry_waiting": 2, "running": 1}


async def test_many_long_rows_are_written_in_as_many_statements_as_it_takes(store: MysqlStore) -> None:
    owner = await Owner.of(store)
    payload = b'{"long":"' + b"x" * 262_000 + b'"}'
    rows = [make_instance(number, payload=payload) for number in range(80)]
    receipts = await store.submit([Submission(instance=row) for row in rows])
    assert all(receipt.created for receipt in receipts)
    batch = owner.batch()
    batch.assigns = [make_assign(row) for row in rows]
    assert await store.commit(batch) == CommitReport()
    found = await store.get_instances([row.id for row in rows])
    assert {row.state for row in found.values()} == {State.RUNNING}
    assert {row.payload for row in found.values()} == {payload}


async def test_an_id_that_is_too_long_is_rejected_alone(store: MysqlStore) -> None:
    owner = await Owner.of(store)
    batch = owner.batch()
    batch.inserts = [make_instance(1), make_instance("i" * 65), make_instance("i" * 64)]
    report = await store.commit(batch)
    assert set(report.rejected) == {"i" * 65}
    assert await counts(store) == {"pending": 2}


# ── idempotency keys ──────────────────────────────────────────────────────────────────────────────────


async def test_c085_five_nodes_that_submit_one_key_at_once_get_one_instance(database: TestDatabase) -> None:
    async with (
        _opened(database.url) as a,
        _opened(database.url) as b,
        _opened(database.url) as c,
        _opened(database.url) as d,
        _opened(database.url) as e,
    ):
        stores = (a, b, c, d, e)
        now_us = await a.now_us()
        for turn in range(20):
            submissions = [make_submission(f"{turn}-{name}", key=f"k{turn}") for name in "abcde"]
            for submission in submissions:
                submission.key_expires_us = now_us + 60 * MINUTE
            answers = await asyncio.gather(
                *(store.submit([row]) for store, row in zip(stores, submissions, strict=True))
            )
            receipts = [receipt for answer in answers for receipt in answer]
            assert len({receipt.instance_id for receipt in receipts}) == 1
            assert sum(receipt.created for receipt in receipts) == 1
        assert await counts(a) == {"pending": 20}


async def test_lists_with_the_same_keys_in_other_orders_agree(database: TestDatabase) -> None:
    """Keys are locked sorted, whatever the order of the list, and deadlocks are repeated."""
    async with _opened(database.url) as a, _opened(database.url) as b:
        now_us = await a.now_us()
        lists: list[list[Submission]] = []
        for name, order in (("a", 1), ("b", -1)):
            rows = [make_submission(f"{name}{number:03}", key=f"k{number}") for number in range(100)][::order]
            for row in rows:
                row.key_expires_us = now_us + 60 * SECOND
            lists.append(rows)
        answers = await asyncio.gather(a.submit(lists[0]), b.submit(lists[1]))
        assert sorted(row.instance_id for row in answers[0]) == sorted(row.instance_id for row in answers[1])
        assert sum(row.created for answer in answers for row in answer) == 100
        assert await counts(a) == {"pending": 100}
