"""What PostgreSQL adds to submissions in transactions: notifications, strict isolation, schemas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.transaction_databases import Database

from ostinato import App, UserError

Connect = Callable[..., psycopg.Connection[Any]]


@pytest.fixture
def database(databases: Callable[[str], Database], shop: App) -> Database:
    found = databases("postgresql")
    found.clear()
    found.put_tasks(shop.definitions())
    return found


@pytest.fixture
def connect(database: Database) -> Iterator[Connect]:
    opened: list[psycopg.Connection[Any]] = []

    def connected(**options: Any) -> psycopg.Connection[Any]:
        url = database.url
        connection = psycopg.connect(
            host=url.host, port=url.port, user=url.username, dbname=url.database, **options
        )
        opened.append(connection)
        return connection

    yield connected
    for connection in opened:
        connection.close()


def test_the_commit_tells_listeners_and_nothing_else_does(connect: Connect, shop: App) -> None:
    listener = connect(autocommit=True)
    listener.execute("LISTEN ostinato_change")
    connection = connect()
    shop.submit("notify", {"customer": 1}, connection=connection)
    connection.rollback()
    shop.submit("notify", {"customer": 2}, key="k", connection=connection)
    shop.submit("notify", {"customer": 3}, connection=connection)
    assert list(listener.notifies(timeout=0)) == []
    connection.commit()
    # One for both submissions.
    (told,) = listener.notifies(timeout=20, stop_after=1)
    assert (told.channel, told.payload, told.pid) == ("ostinato_change", "", connection.info.backend_pid)
    shop.submit("notify", {"customer": 2}, key="k", connection=connection)
    connection.commit()
    # Whoever has been notified of this has been notified of all before it.
    connection.execute("NOTIFY ostinato_change, 'end'")
    connection.commit()
    (last,) = listener.notifies(timeout=20, stop_after=1)
    assert last.payload == "end"


async def test_at_repeatable_read_a_key_of_a_later_commit_is_the_databases_own_error(
    connect: Connect, database: Database, shop: App
) -> None:
    one, other = connect(), connect()
    other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    other.execute("SELECT number FROM orders")
    first = shop.submit("notify", {"customer": 17}, key="order-17", connection=one)
    one.commit()
    with pytest.raises(psycopg.errors.SerializationFailure):
        await asyncio.to_thread(shop.submit, "notify", {"customer": 17}, key="order-17", connection=other)
    other.rollback()
    again = shop.submit("notify", {"customer": 17}, key="order-17", connection=other)
    assert (again.id, again.created) == (first.id, False)


def test_tables_are_found_by_the_search_path(connect: Connect, database: Database, shop: App) -> None:
    connection = connect(autocommit=True)
    connection.execute("CREATE SCHEMA users_own")
    try:
        connection.execute("SET search_path = users_own")
        with (
            pytest.raises(UserError, match="has no Ostinato tables") as caught,
            connection.transaction(),
        ):
            shop.submit("notify", {"customer": 1}, connection=connection)
        assert caught.value.code == "DATABASE_UNUSABLE"
        connection.execute("SET search_path = users_own, public")
        with connection.transaction():
            handle = shop.submit("notify", {"customer": 1}, connection=connection)
        assert database.instance_ids() == [handle.id]
    finally:
        connection.execute("DROP SCHEMA users_own")


def test_a_table_that_is_missing_is_named(connect: Connect, database: Database, shop: App) -> None:
    connection = connect()
    connection.execute("ALTER TABLE idempotency_key RENAME TO elsewhere")
    with pytest.raises(UserError, match="has no table idempotency_key"):
        shop.submit("notify", {"customer": 1}, connection=connection)
    connection.rollback()
    assert shop.submit("notify", {"customer": 1}, connection=connection).created
