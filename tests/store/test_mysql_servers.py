"""Servers of MySQL's kind that are too old, restarted, read-only, full of connections or strict of rights."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing
from typing import Any

import pytest
from asyncmy import errors as driver_errors
from sqlalchemy import exc as sqlalchemy_errors
from support.private_servers import PrivateMariadb
from support.servers import TestDatabase, connect, create_schema

from ostinato.clock import SystemClock
from ostinato.errors import OstinatoError, UnavailableError, UserError
from ostinato.store.batches import CommitReport, NodeRow, Proof
from ostinato.store.mysql.faults import fault
from ostinato.store.mysql.session import read_version, require_version
from ostinato.store.mysql.store import MysqlStore
from ostinato.store.server.url import read_server_url
from ostinato.testing.contracts.store_kit import (
    NODE,
    T0,
    Owner,
    counts,
    make_assign,
    make_instance,
    make_submission,
)


class Service:
    """A server of the module's own, with one database and a user without rights beyond it."""

    def __init__(self, server: PrivateMariadb) -> None:
        self.server = server
        self.database = TestDatabase("mariadb", server.make_database("jobs"))
        self.app_url = self.database.url.replace("root@", "app@")
        self.ask("CREATE USER IF NOT EXISTS app; GRANT ALL ON jobs.* TO app")

    def ask(self, statements: str) -> None:
        """Run statements as root."""
        with closing(connect(self.database.server_url)) as connection:
            cursor = connection.cursor()
            cursor.execute(statements)
            while cursor.nextset():
                pass


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with PrivateMariadb() as server:
        service = Service(server)
        engine = service.database.engine()
        with engine.begin() as connection:
            create_schema(connection)
        engine.dispose()
        yield service
        service.database.close()


@asynccontextmanager
async def _opened(url: str, clock: SystemClock | None = None) -> AsyncIterator[MysqlStore]:
    store = MysqlStore(read_server_url(url), clock=clock or SystemClock())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def test_a_restart_of_the_server_is_outlived(service: Service) -> None:
    """Rows, partitions and proofs stay; the lock is taken anew, and that all locks were free is no sign."""
    service.database.clean()
    async with _opened(service.app_url) as store, _opened(service.app_url) as watcher:
        owner = await Owner.of(store)
        await watcher.register_node(NodeRow("watcher", 0, "", T0))
        assert (await watcher.watch_nodes()).freed == frozenset()
        identity = await store.identity()
        await owner.submit(make_instance(1), make_instance(2))
        await asyncio.to_thread(service.server.restart)
        service.database.close()
        assert (await watcher.watch_nodes()).freed == frozenset()
        batch = owner.batch()
        batch.assigns = [make_assign(make_instance(1))]
        assert await store.commit(batch) == CommitReport()
        assert await store.renew_node(NODE)
        assert (await watcher.watch_nodes()).freed == frozenset()
        assert await counts(store) == {"pending": 1, "running": 1}
        assert await store.identity() == identity


async def test_a_server_that_is_away_is_said_to_be_unavailable_within_the_deadline(service: Service) -> None:
    clock = SystemClock()
    async with _opened(service.app_url, clock) as store:
        await asyncio.to_thread(service.server.kill)
        try:
            begun_us = clock.boot_us()
            with pytest.raises(UnavailableError) as caught:
                await store.submit([make_submission(77)])
            assert clock.boot_us() - begun_us < 15_000_000
        finally:
            await asyncio.to_thread(service.server.start)
            service.database.close()
        assert caught.value.code == "DATABASE_UNAVAILABLE"
        assert await store.get_instances(["i000077"]) == {}


async def test_a_server_that_was_made_read_only_is_unavailable_until_it_is_not(service: Service) -> None:
    """A primary that has become a replica: everything can be read, nothing written."""
    service.database.clean()
    async with _opened(service.app_url) as store:
        service.ask("SET GLOBAL read_only = 1")
        try:
            with pytest.raises(UnavailableError) as caught:
                await store.submit([make_submission(1)])
        finally:
            service.ask("SET GLOBAL read_only = 0")
        assert "read-only" in caught.value.message
        assert await counts(store) == {}
        assert (await store.submit([make_submission(1)]))[0].created


async def test_a_server_without_a_free_connection_is_unavailable(service: Service) -> None:
    service.ask("SET GLOBAL max_connections = 10")
    try:
        with ExitStack() as stack:
            for _ in range(10):
                stack.enter_context(closing(connect(service.database.server_url)))
            with pytest.raises(UnavailableError) as caught:
                async with _opened(service.app_url):
                    raise AssertionError("opened")
        assert caught.value.code == "DATABASE_UNAVAILABLE"
        assert "Too many connections" in caught.value.message
    finally:
        service.ask("SET GLOBAL max_connections = 151")


async def test_who_may_not_end_a_blocking_session_says_so_and_waits_for_the_server(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.database.clean()
    async with _opened(service.app_url) as store:
        await Owner.of(store)
        await store.register_node(NodeRow("node-2", 0, "", T0))
        with closing(connect(service.database.server_url)) as frozen:
            cursor = frozen.cursor()
            # As every owner's session has it.
            cursor.execute("SET SESSION idle_transaction_timeout = 2")
            cursor.execute("SELECT owner FROM partition_owner WHERE `partition` = 3 LOCK IN SHARE MODE")
            with caplog.at_level(logging.WARNING, "ostinato.store.mysql"):
                taken = await store.take_partitions("node-2", [3], dead_nodes={NODE: 0})
    assert taken == [Proof(3, "node-2", 2)]
    told = [record for record in caplog.records if record.message == "takeover_blocked"]
    assert told
    assert all("PROCESS" in vars(record)["hint"] for record in told)


# ── versions ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("greeting", "is_mariadb", "version"),
    [
        ("10.11.6-MariaDB-0+deb12u1", True, (10, 11, 6)),
        ("5.5.5-10.6.0-MariaDB", True, (10, 6, 0)),
        ("11.4.2-MariaDB-log", True, (11, 4, 2)),
        ("8.0.36", False, (8, 0, 36)),
        ("8.4.0-commercial", False, (8, 4, 0)),
        ("8.0.19-azure", False, (8, 0, 19)),
    ],
)
def test_servers_are_known_by_their_greeting(
    greeting: str, is_mariadb: bool, version: tuple[int, ...]
) -> None:
    server = read_version(greeting)
    assert (server.is_mariadb, server.version) == (is_mariadb, version)
    require_version(server, subject="mysql://localhost/jobs")


@pytest.mark.parametrize("greeting", ["10.5.23-MariaDB", "5.5.5-10.4.8-MariaDB", "5.7.44-log", "8.0.18", ""])
def test_servers_that_are_too_old_are_refused_with_what_to_use(greeting: str) -> None:
    with pytest.raises(UserError) as caught:
        require_version(read_version(greeting), subject="mysql://localhost/jobs")
    assert (caught.value.code, caught.value.field) == ("DATABASE_UNUSABLE", "database")
    assert "or newer" in caught.value.hint


# ── errors that no test can provoke ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (1021, "Disk full (/tmp); waiting for someone to free some space...", "full"),
        (1114, "The table 'instance' is full", "full"),
        (1030, 'Got error 28 "No space left on device" from storage engine InnoDB', "full"),
        (1030, "Got error 168 from storage engine", "refused"),
        (1290, "The MariaDB server is running with the --read-only option", "refused"),
        (1792, "Cannot execute statement in a READ ONLY transaction", "refused"),
        (1040, "Too many connections", "refused"),
        (3024, "Query execution was interrupted, maximum statement execution time exceeded", "refused"),
        (1969, "Query execution was interrupted (max_statement_time exceeded)", "refused"),
        (2006, "MySQL server has gone away", "lost"),
        (2013, "Lost connection to MySQL server during query", "lost"),
        (0, "Not connected", "lost"),
        (1213, "Deadlock found when trying to get lock", "conflict"),
        (1205, "Lock wait timeout exceeded", "conflict"),
        (1153, "Got a packet bigger than 'max_allowed_packet' bytes", "data"),
        (1045, "Access denied", "unusable"),
        (1064, "You have an error in your SQL syntax", "ours"),
    ],
)
def test_errors_are_told_apart_by_their_codes(code: int, text: str, kind: str) -> None:
    error = driver_errors.OperationalError(code, text)
    for wrapped in (error, sqlalchemy_errors.OperationalError("SELECT 1", None, error)):
        found = fault(wrapped)
        assert found is not None
        assert found.kind == kind


@pytest.mark.parametrize("error", [KeyError("x"), OstinatoError("INTERNAL", "x"), RuntimeError("x")])
def test_what_comes_from_no_server_is_left_alone(error: Any) -> None:
    assert fault(error) is None


def test_a_refused_row_is_described_without_its_values() -> None:
    found = fault(driver_errors.DataError(1406, "Data too long for column 'secret-name' at row 1"))
    assert found is not None
    assert "secret-name" not in found.reason
