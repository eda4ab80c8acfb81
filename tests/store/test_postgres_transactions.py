"""Transactions on PostgreSQL: repetition, deadlines, connections that are given back, errors that say why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from support.postgres_wire import outside
from support.servers import TestDatabase

from ostinato.clock import SystemClock
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.errors import OstinatoError, UnavailableError, UserError
from ostinato.store.postgres.store import PostgresStore
from ostinato.store.server.database import driver_connection
from ostinato.testing.contracts.store_kit import ALL, Owner, counts, make_instance, make_submission

_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"


async def _until(condition: Callable[[], bool]) -> None:
    clock = SystemClock()
    ends_us = clock.boot_us() + 10 * SECOND
    while not condition():
        assert clock.boot_us() < ends_us
        await clock.sleep_until_us(clock.boot_us() + 10 * MILLISECOND)


def _sessions(server: TestDatabase, condition: str = "true") -> int:
    with outside(server) as session:
        row = session.execute(f"{_SESSIONS} AND application_name = 'ostinato' AND ({condition})").fetchone()
    assert row is not None
    return int(row[0])


def _epoch(server: TestDatabase, partition: int) -> int:
    with outside(server) as session:
        row = session.execute(
            "SELECT epoch FROM partition_owner WHERE partition = %s", (partition,)
        ).fetchone()
    assert row is not None
    return int(row[0])


async def _raise_epoch(connection: AsyncConnection, partition: int) -> None:
    await connection.execute(
        text("UPDATE partition_owner SET epoch = epoch + 1 WHERE partition = :partition"),
        {"partition": partition},
    )


# ── repetition ────────────────────────────────────────────────────────────────────────────────────────


async def test_c115_a_deadlock_is_repeated_and_counted(store: PostgresStore, server: TestDatabase) -> None:
    """A real one: each of two transactions holds the row that the other wants next."""
    both_hold = asyncio.Barrier(2)
    first_runs = {1, 2}

    async def raise_both(connection: AsyncConnection, rows: tuple[int, int], name: int) -> int:
        await _raise_epoch(connection, rows[0])
        if name in first_runs:
            first_runs.discard(name)
            await both_hold.wait()
        await _raise_epoch(connection, rows[1])
        return name

    results = await asyncio.gather(
        store.database.run("raising", lambda c: raise_both(c, (1, 2), 1), role="people"),
        store.database.run("raising", lambda c: raise_both(c, (2, 1), 2), role="people"),
    )
    assert results == [1, 2]
    assert (_epoch(server, 1), _epoch(server, 2)) == (2, 2)
    assert store.database.repeats == {"deadlock": 1}


async def test_c115_a_serialization_failure_is_repeated_and_counted(
    store: PostgresStore, server: TestDatabase
) -> None:
    runs: list[int] = []

    async def read_then_write(connection: AsyncConnection) -> None:
        await connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await connection.exec_driver_sql("SELECT epoch FROM partition_owner WHERE partition = 1")
        runs.append(1)
        if len(runs) == 1:
            with outside(server) as other:
                other.execute("UPDATE partition_owner SET epoch = epoch + 1 WHERE partition = 1")
        await _raise_epoch(connection, 1)

    await store.database.run("raising", read_then_write, role="owner")
    assert (len(runs), _epoch(server, 1)) == (2, 2)
    assert store.database.repeats == {"serialization": 1}


async def test_c115_a_lock_that_is_not_given_in_time_is_asked_for_again(
    store: PostgresStore, server: TestDatabase
) -> None:
    runs: list[int] = []

    async def wait_for_lock(connection: AsyncConnection) -> None:
        runs.append(1)
        if len(runs) == 2:
            other.rollback()
        await connection.exec_driver_sql("SET LOCAL lock_timeout = '50ms'")
        await _raise_epoch(connection, 1)

    with outside(server) as other:
        other.autocommit = False
        other.execute("SELECT 1 FROM partition_owner WHERE partition = 1 FOR UPDATE")
        await store.database.run("raising", wait_for_lock, role="owner")
    assert (len(runs), _epoch(server, 1)) == (2, 1)
    assert store.database.repeats == {"lock_timeout": 1}


async def test_what_may_not_be_repeated_is_not(store: PostgresStore) -> None:
    runs: list[int] = []

    async def fail(connection: AsyncConnection) -> None:
        runs.append(1)
        await connection.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$")

    with pytest.raises(UnavailableError, match="deadlock"):
        await store.database.run("failing", fail, repeatable=False, role="owner")
    assert len(runs) == 1
    with pytest.raises(UnavailableError, match="deadlock"):
        await store.database.run("failing", fail, role="owner")
    assert len(runs) == 13


async def test_an_error_of_the_work_rolls_back_and_is_raised(
    store: PostgresStore, server: TestDatabase
) -> None:
    async def write_then_fail(connection: AsyncConnection) -> None:
        await _raise_epoch(connection, 1)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await store.database.run("failing", write_then_fail, role="owner")
    assert _epoch(server, 1) == 0
    assert not store.database.repeats


async def test_a_statement_that_failed_unseen_does_not_pass_for_a_commit(store: PostgresStore) -> None:
    """COMMIT of a failed transaction rolls back, and says so only in a word."""

    async def hide(connection: AsyncConnection) -> None:
        driver = await driver_connection(connection)
        await driver.execute("SAVEPOINT s")
        with pytest.raises(Exception, match="nothing"):
            await driver.execute("SELECT nothing")

    with pytest.raises(OstinatoError, match="failed before COMMIT"):
        await store.database.run("hiding", hide, role="owner")


# ── deadlines ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_call_ends_at_its_deadline_and_what_it_ran_is_cancelled(
    store: PostgresStore, server: TestDatabase
) -> None:
    async def sleep(connection: AsyncConnection) -> None:
        # Of the server's own, which no time-out of a lock ends.
        await connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        await connection.exec_driver_sql("SELECT pg_sleep(3600)")

    clock = SystemClock()
    began_us = clock.boot_us()
    with pytest.raises(UnavailableError, match="did not end within 300 ms"):
        await store.database.run("sleeping", sleep, deadline_us=300 * MILLISECOND, role="owner")
    assert clock.boot_us() - began_us < 2 * SECOND
    await _until(lambda: _sessions(server, "query LIKE '%pg_sleep%' AND state = 'active'") == 0)
    assert await store.partition_owners()


async def test_waiting_for_a_connection_counts_within_the_deadline(
    store: PostgresStore, server: TestDatabase
) -> None:
    is_let_go = asyncio.Event()

    async def keep(_: AsyncConnection) -> None:
        await is_let_go.wait()

    keepers = [asyncio.create_task(store.database.run("keeping", keep, role="people")) for _ in range(20)]
    with pytest.raises(UnavailableError, match="out of connections"):
        await store.database.run("asking", keep, deadline_us=300 * MILLISECOND, role="people")
    # C183: the owner's connections are its own.
    assert await store.find_work(ALL, now_us=0, limit=1)
    is_let_go.set()
    await asyncio.gather(*keepers)


async def test_the_server_ends_what_a_silent_owner_leaves_open(
    store: PostgresStore, server: TestDatabase
) -> None:
    """All of it below the ownership lease, of three seconds at least."""

    async def read_limits(connection: AsyncConnection) -> dict[str, int]:
        rows = await connection.exec_driver_sql(
            "SELECT name, setting::bigint FROM pg_settings WHERE unit IN ('ms', 's')"
        )
        return {row[0]: row[1] for row in rows}

    limits = await store.database.run("reading", read_limits, role="owner")
    assert 0 < limits["statement_timeout"] <= 10_000
    assert 0 < limits["lock_timeout"] < 3_000
    assert 0 < limits["idle_in_transaction_session_timeout"] < 3_000
    assert 0 < limits["tcp_user_timeout"] < 3_000
    assert limits["tcp_keepalives_idle"] + limits["tcp_keepalives_interval"] < 3


# ── connections ───────────────────────────────────────────────────────────────────────────────────────


async def test_c185_failed_cancelled_and_late_calls_leave_no_transaction_open(
    store: PostgresStore, server: TestDatabase
) -> None:
    async def refuse(connection: AsyncConnection) -> None:
        await _raise_epoch(connection, 1)
        raise UserError("INVALID_VALUE", "no")

    async def stall(connection: AsyncConnection) -> None:
        await connection.exec_driver_sql("SELECT pg_sleep(0.05)")

    calls = [asyncio.create_task(store.database.run("refusing", refuse, role="people")) for _ in range(100)]
    stalled = [asyncio.create_task(store.database.run("stalling", stall, role="people")) for _ in range(100)]
    late = [
        asyncio.create_task(store.database.run("late", stall, deadline_us=20 * MILLISECOND, role="people"))
        for _ in range(100)
    ]
    await asyncio.wait(stalled, return_when=asyncio.FIRST_COMPLETED)
    for call in stalled:
        call.cancel()
    answers = await asyncio.gather(*calls, *stalled, *late, return_exceptions=True)
    assert sum(isinstance(answer, UserError) for answer in answers) == 100
    assert sum(isinstance(answer, UnavailableError) for answer in answers) >= 90
    await _until(lambda: _sessions(server, "state LIKE 'idle in transaction%' OR state = 'active'") == 0)
    assert _sessions(server) <= 10
    assert _epoch(server, 1) == 0
    assert await store.submit([make_submission(1)])


async def test_c183_a_burst_of_submissions_waits_for_the_few_connections_that_there_are(
    server: TestDatabase,
) -> None:
    server.clean()
    clock = SystemClock()
    url = msgspec.structs.replace(server.server_url, pool_size=6)
    store = PostgresStore(url, clock=clock, deadline_us=60 * SECOND)
    try:
        await store.open()
        owner = await Owner.of(store)
        burst = asyncio.gather(*(store.submit([make_submission(number)]) for number in range(1500)))
        while not burst.done():
            assert _sessions(server) <= 6
            # The node's own connections are not the ones that are taken.
            began_us = clock.boot_us()
            assert await store.renew_node(owner.proofs[0].owner)
            assert clock.boot_us() - began_us < 2 * SECOND
            await asyncio.wait((burst,), timeout=0.1)
        assert all(receipt.created for (receipt,) in await burst)
    finally:
        await store.close()


async def test_c121_a_list_longer_than_any_limit_of_bound_values_is_one_transaction(
    store: PostgresStore, server: TestDatabase
) -> None:
    """65,535 is the most that a statement binds; one row that cannot be stored refuses all of them."""
    rows = [make_submission(number) for number in range(70_000)]
    rows[-1].instance.reason = "\ud800"
    with pytest.raises(UserError) as caught:
        await store.submit(rows)
    assert (caught.value.code, caught.value.subject) == ("INVALID_VALUE", "i069999")
    assert await counts(store) == {}
    rows[-1].instance.reason = ""
    assert all(receipt.created for receipt in await store.submit(rows))
    assert await counts(store) == {"pending": 70_000}


async def test_closing_gives_back_every_connection(store: PostgresStore, server: TestDatabase) -> None:
    await Owner.of(store)
    await store.submit([make_submission(1)])
    assert _sessions(server) >= 3
    await store.close()
    await store.close()
    await _until(lambda: _sessions(server) == 0)


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────


async def test_c117_a_read_only_server_is_unavailable_and_says_why(
    store: PostgresStore, server: TestDatabase
) -> None:
    """After a failover the former primary is; a new connection may lead to the new one."""
    name = server.server_url.database
    await store.submit([make_submission(1)])
    with outside(server) as session:
        session.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        session.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'ostinato'"
        )
    try:
        with pytest.raises(UnavailableError, match="read-only, as after a failover") as caught:
            await store.submit([make_submission(2)])
        assert caught.value.code == "DATABASE_UNAVAILABLE"
    finally:
        with outside(server) as session:
            session.execute(f"SET transaction_read_only = off; ALTER DATABASE {name} RESET ALL")
    assert (await store.submit([make_submission(2)]))[0].created


@pytest.mark.parametrize(
    ("role", "code", "words"),
    [
        ("LOGIN CONNECTION LIMIT 0", "DATABASE_UNAVAILABLE", "too many connections"),
        ("NOLOGIN", "DATABASE_UNUSABLE", "not permitted to log in"),
        ("LOGIN", "DATABASE_UNUSABLE", "permission denied"),
        ("", "DATABASE_UNUSABLE", "does not exist"),
    ],
)
async def test_a_login_that_is_refused_says_why(
    server: TestDatabase, role: str, code: str, words: str
) -> None:
    url = msgspec.structs.replace(server.server_url, user=f"{server.server_url.database}_user")
    store = PostgresStore(url, clock=SystemClock())
    with outside(server) as session:
        if role:
            session.execute(f"CREATE ROLE {url.user} {role}")
        try:
            with pytest.raises(OstinatoError, match=words) as caught:
                await store.open()
        finally:
            session.execute(f"DROP ROLE IF EXISTS {url.user}")
    assert caught.value.code == code


async def test_a_server_that_is_not_there_is_unavailable(server: TestDatabase) -> None:
    store = PostgresStore(msgspec.structs.replace(server.server_url, port=1), clock=SystemClock())
    with pytest.raises(UnavailableError, match="does not accept connections") as caught:
        await store.open()
    assert caught.value.subject.endswith(server.server_url.database)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("UPDATE partition_owner SET epoch = -1 WHERE partition = 1", "INVALID_VALUE"),
        ("SELECT nothing", "INTERNAL"),
        ("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '53100'; END $$", "DATABASE_FULL"),
        ("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '57P03'; END $$", "DATABASE_UNAVAILABLE"),
        ("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = 'XX001'; END $$", "DATABASE_UNUSABLE"),
    ],
)
async def test_an_error_of_the_server_has_its_code(store: PostgresStore, statement: str, code: str) -> None:
    async def by_sqlalchemy(connection: AsyncConnection) -> Any:
        await connection.exec_driver_sql(statement)

    async def by_driver(connection: AsyncConnection) -> Any:
        await (await driver_connection(connection)).execute(statement)

    for work in (by_sqlalchemy, by_driver):
        with pytest.raises(OstinatoError) as caught:
            await store.database.run("trying", work, role="people")
        assert caught.value.code == code
    assert await store.nodes() == []


async def test_a_forked_process_is_told_to_open_a_store_of_its_own(store: PostgresStore) -> None:
    """C082: a connection that two processes share answers each with the other's rows."""
    store.database._pid += 1
    with pytest.raises(UserError, match="forked") as caught:
        await store.nodes()
    store.database._pid -= 1
    assert caught.value.code == "DATABASE_UNUSABLE"
    assert await store.submit([make_submission(make_instance(7).id)])
