"""PostgreSQL: connections that are lost at any statement of a transaction lose nothing and double nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import asyncpg
import msgspec
import pytest
from sqlalchemy import exc
from sqlalchemy.ext.asyncio import AsyncConnection
from support.postgres_wire import StatementProxy, outside
from support.servers import TestDatabase, fresh_database

from ostinato.errors import UnavailableError, UserError
from ostinato.store.batches import CommitBatch, CommitReport, Submission, SubmitReceipt
from ostinato.store.postgres.faults import fault_of
from ostinato.store.postgres.store import PostgresStore
from ostinato.store.server.commit import BatchWriter
from ostinato.store.server.database import driver_connection
from ostinato.testing.contracts.store_kit import (
    ContractClock,
    Owner,
    history_row,
    make_assign,
    make_instance,
    make_submission,
)

#: More statements than any transaction here has.
_STATEMENTS_MAX = 30


class _QuietStore(PostgresStore):
    """Sends no hints, whose statements would be counted at any time."""

    def announce(self) -> None:
        return


@pytest.fixture(scope="module")
def server() -> Iterator[TestDatabase]:
    with fresh_database("postgresql") as database:
        yield database


@pytest.fixture
def proxy(server: TestDatabase) -> Iterator[StatementProxy]:
    url = server.server_url
    with StatementProxy(f"{url.host}:{url.port}") as proxy:
        yield proxy


@pytest.fixture
async def store(server: TestDatabase, proxy: StatementProxy) -> AsyncIterator[PostgresStore]:
    """Open, through the proxy."""
    server.clean()
    url = msgspec.structs.replace(server.server_url, host="127.0.0.1", port=proxy.port, sslmode="disable")
    store = _QuietStore(url, clock=ContractClock())
    await store.open()
    yield store
    await store.close()


async def _two_moves(owner: Owner, *, first: int = 1) -> CommitBatch:
    """An assignment of a new instance, with history, and the birth of another."""
    row, other = make_instance(first), make_instance(first + 1, fire_trigger="t", fire_us=first)
    await owner.submit(row)
    batch = owner.batch()
    batch.assigns = [make_assign(row)]
    batch.inserts = [other]
    batch.history = [history_row(row), history_row(other)]
    return batch


async def _assert_written_once(owner: Owner) -> None:
    assert (await owner.get("i000001")).attempt == 1
    assert (await owner.get("i000002")).attempt == 0
    for name in ("i000001", "i000002"):
        assert await owner.store.count_history(name) == 1


async def _prepare(store: PostgresStore, server: TestDatabase) -> Owner:
    """A database as before the test; its connections know every type, for which they ask once."""
    for node in await store.nodes():
        await store.remove_node(node.id)
    with outside(server) as session:
        session.execute("DELETE FROM history; DELETE FROM instance; DELETE FROM idempotency_key")
    owner = await Owner.of(store)
    await store.submit([make_submission(11, key="warm")])
    await store.commit(await _two_moves(owner, first=12))
    return owner


@pytest.mark.parametrize("loses_answer", [False, True], ids=["statement-lost", "answer-lost"])
async def test_a_commit_survives_the_loss_of_its_connection_at_each_statement(
    store: PostgresStore, server: TestDatabase, proxy: StatementProxy, loses_answer: bool
) -> None:
    lost: list[str] = []
    for number in range(1, _STATEMENTS_MAX):
        owner = await _prepare(store, server)
        batch = await _two_moves(owner)
        proxy.lose_at(number, answer=loses_answer)
        try:
            unmatched = (await store.commit(batch)).unmatched
        except UnavailableError:
            assert proxy.lost == "COMMIT"
            # As the committer does: sent again, of which what was written matches no more.
            unmatched = (await store.commit(batch)).unmatched
        assert unmatched == ({"i000001", "i000002"} if loses_answer and proxy.lost == "COMMIT" else set())
        if not proxy.lost:
            break
        lost.append(proxy.lost)
        await _assert_written_once(owner)
    proxy.lose_at(0)
    assert lost[0].startswith("BEGIN")
    assert lost[-1] == "COMMIT"
    assert len(lost) == 6
    assert store.database.repeats["lost"] == len(lost) - 1


@pytest.mark.parametrize("loses_answer", [False, True], ids=["statement-lost", "answer-lost"])
async def test_a_move_that_is_a_transaction_of_its_own_is_unknown_once_its_connection_is_lost(
    store: PostgresStore, server: TestDatabase, proxy: StatementProxy, loses_answer: bool
) -> None:
    """Its one statement is its COMMIT; sent again, as the committer does, it happens once."""
    owner = await _prepare(store, server)
    # Prepared from then on, with every type that the driver has to ask for.
    await owner.run(make_instance(20))
    row = make_instance(1)
    await owner.submit(row)
    batch = owner.batch()
    batch.assigns = [make_assign(row)]
    proxy.lose_at(1, answer=loses_answer)
    with pytest.raises(UnavailableError, match="whether anything was written is unknown"):
        await store.commit(batch)
    assert proxy.lost
    assert (await store.commit(batch)).unmatched == ({row.id} if loses_answer else set())
    assert (await owner.get(row.id)).attempt == 1
    assert store.database.repeats["lost"] == 0


@pytest.mark.parametrize("loses_answer", [False, True], ids=["statement-lost", "answer-lost"])
async def test_a_submission_survives_the_loss_of_its_connection_at_each_statement(
    store: PostgresStore, server: TestDatabase, proxy: StatementProxy, loses_answer: bool
) -> None:
    lost: list[str] = []
    for number in range(1, _STATEMENTS_MAX):
        await _prepare(store, server)
        wanted = [make_submission(1, key="k"), make_submission(2)]
        for each in wanted:
            # Of the server's time, by which keys expire.
            each.key_expires_us = await store.now_us() + 10**9
        proxy.lose_at(number, answer=loses_answer)
        try:
            receipts = await store.submit(wanted)
        except UnavailableError:
            assert proxy.lost == "COMMIT"
            receipts = await store.submit(wanted)
        created = not (loses_answer and proxy.lost == "COMMIT")
        assert receipts == [SubmitReceipt("i000001", created), SubmitReceipt("i000002", created)]
        assert len(await store.get_instances(["i000001", "i000002"])) == 2
        if not proxy.lost:
            break
        lost.append(proxy.lost)
    assert "COMMIT" in lost


@pytest.mark.parametrize("loses_answer", [False, True], ids=["statement-lost", "answer-lost"])
async def test_opening_survives_the_loss_of_its_connection_at_each_statement(
    server: TestDatabase, proxy: StatementProxy, loses_answer: bool
) -> None:
    """A proxy that pools may hand out a session that has ended without its knowledge."""
    server.clean()
    url = msgspec.structs.replace(server.server_url, host="127.0.0.1", port=proxy.port, sslmode="disable")
    lost: list[str] = []
    for number in range(1, _STATEMENTS_MAX):
        store = _QuietStore(url, clock=ContractClock())
        proxy.lose_at(number, answer=loses_answer)
        try:
            await store.open()
            assert store.partition_count == 64
        finally:
            await store.close()
        if not proxy.lost:
            break
        lost.append(proxy.lost)
    proxy.lose_at(0)
    assert lost[0].startswith("DO")
    assert len(lost) > 3


async def test_a_commit_whose_answer_is_lost_says_that_it_is_unknown_whether_it_was_written(
    store: PostgresStore, proxy: StatementProxy, server: TestDatabase
) -> None:
    owner = await _prepare(store, server)
    batch = await _two_moves(owner)
    proxy.lose_at(6, answer=True)
    with pytest.raises(UnavailableError) as caught:
        await store.commit(batch)
    assert caught.value.code == "DATABASE_UNAVAILABLE"
    assert "unknown" in caught.value.message
    assert "read again" in caught.value.hint
    await _assert_written_once(owner)


class _EndedStore(_QuietStore):
    """Its first transaction that writes a batch loses its session, by an administrator's hand."""

    server: TestDatabase
    ended: list[int]

    async def batch_writer(self, connection: AsyncConnection) -> BatchWriter:
        if not self.ended:
            driver = await driver_connection(connection)
            self.ended.append(await driver.fetchval("SELECT pg_backend_pid()"))
            with outside(self.server) as other:
                other.execute("SELECT pg_terminate_backend(%s)", self.ended)
        return await super().batch_writer(connection)


async def test_a_session_that_is_ended_within_a_transaction_is_replaced(server: TestDatabase) -> None:
    server.clean()
    store = _EndedStore(server.server_url, clock=ContractClock())
    store.server, store.ended = server, []
    try:
        await store.open()
        owner = await Owner.of(store)
        batch = await _two_moves(owner)
        assert not (await store.commit(batch)).unmatched
        await _assert_written_once(owner)
        assert len(store.ended) == 1
        assert store.database.repeats["lost"] == 1
    finally:
        await store.close()


async def test_c117_idle_connections_of_a_session_that_has_ended_are_not_tried_one_by_one(
    store: PostgresStore, server: TestDatabase
) -> None:
    """After a restart of the server every idle connection is dead; one call finds out for all."""
    await Owner.of(store)
    await store.submit([Submission(instance=make_instance(1))])
    with outside(server) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'ostinato'"
        )
    assert list(await store.get_instances(["i000001"])) == ["i000001"]
    assert await store.submit([Submission(instance=make_instance(1))]) == [SubmitReceipt("i000001", False)]


async def test_a_session_that_ended_while_idle_is_known_before_a_statement_that_is_its_own_commit(
    server: TestDatabase,
) -> None:
    server.clean()
    store = PostgresStore(server.server_url, clock=ContractClock())
    try:
        await store.open()
        owner = await Owner.of(store)
        row = make_instance(1)
        await owner.submit(row)
        assert await store.find_work(range(64), now_us=row.due_us, limit=1)
        with outside(server) as session:
            session.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'ostinato'"
            )
        # Another role's: while it is answered, what has come of the owner's connections is read.
        assert await store.nodes()
        batch = owner.batch()
        batch.assigns = [make_assign(row)]
        assert await store.commit(batch) == CommitReport()
        assert (await owner.get(row.id)).attempt == 1
    finally:
        await store.close()


def test_c117_what_the_driver_says_of_a_session_that_has_just_ended_is_a_loss_and_no_bad_value() -> None:
    """Of a statement that was sent before the event loop saw the end of its connection, as wrapped."""
    seen = asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")
    within = Exception("the adapter's own")
    within.__cause__ = seen
    fault = fault_of(exc.InternalError("SELECT 1", None, within))
    assert fault is not None
    assert fault.kind == "lost"


async def test_a_table_that_is_gone_is_the_databases_fault(
    store: PostgresStore, server: TestDatabase
) -> None:
    with outside(server) as connection:
        connection.execute("ALTER TABLE worker RENAME TO elsewhere")
        try:
            with pytest.raises(UserError) as caught:
                await store.workers()
        finally:
            connection.execute("ALTER TABLE elsewhere RENAME TO worker")
    assert caught.value.code == "DATABASE_UNUSABLE"
