"""What cannot be submitted in a user's transaction is refused, and the transaction goes on."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from support.transaction_databases import Database, new_database, version_table
from support.transaction_ways import FIRST_WAYS, WAYS, Opened, Way

from ostinato import App, ConflictError, OstinatoError, Submission, UserError


@pytest.mark.parametrize("way", WAYS, ids=repr)
async def test_what_is_wrong_is_found_before_anything_is_written(
    way: Way, database: Database, shop: App
) -> None:
    async with way.open(database) as opened:
        await opened.run("INSERT INTO orders VALUES (17)")
        for task, payload, code, field in (
            ("notifi", {"customer": 1}, "TASK_NOT_FOUND", ""),
            ("notify", {"client": 1}, "INVALID_PAYLOAD", "payload.client"),
            ("notify", {"customer": 1, "text": "x" * 300_000}, "PAYLOAD_TOO_LARGE", "payload"),
        ):
            with pytest.raises(UserError) as caught:
                await opened.submit(shop, task, payload, key="k")
            assert (caught.value.code, caught.value.field) == (code, field)
        with pytest.raises(UserError) as caught:
            await opened.submit_many(
                shop, "notify", [{"customer": 1}, Submission({"customer": 2}, at=None, key="\0")]
            )
        assert (caught.value.code, caught.value.field) == ("INVALID_NAME", "submissions[1].key")
        handle = await opened.submit(shop, "notify", {"customer": 1})
        await opened.commit()
    assert database.instance_ids() == [handle.id]
    assert database.rows("SELECT number FROM orders") == [(17,)]
    assert database.taken_keys() == []


@pytest.mark.parametrize("way", FIRST_WAYS, ids=repr)
async def test_a_task_that_is_not_registered_is_refused_with_what_to_do(
    way: Way, database: Database, shop: App
) -> None:
    @shop.task
    def declared_only() -> None: ...

    async with way.open(database) as opened:
        with pytest.raises(UserError) as caught:
            await opened.submit(shop, "declared_only", {})
        assert caught.value.code == "TASK_NOT_FOUND"
        assert "app.apply()" in caught.value.hint
        with pytest.raises(UserError, match="did you mean notify"):
            await opened.submit(shop, "notifi", {})


@pytest.mark.parametrize("way", FIRST_WAYS, ids=repr)
async def test_a_disabled_task_is_refused(way: Way, database: Database, shop: App) -> None:
    database.rows("UPDATE task SET disabled = " + ("1" if way.kind != "postgresql" else "true"))
    async with way.open(database) as opened:
        with pytest.raises(ConflictError, match="task default/notify is disabled"):
            await opened.submit(shop, "notify", {"customer": 1})


@pytest.mark.parametrize("way", WAYS, ids=repr)
async def test_a_connection_that_commits_each_statement_is_refused(
    way: Way, database: Database, shop: App
) -> None:
    async with way.open(database, commits_each=True) as opened:
        with pytest.raises(UserError, match="commits each statement by itself") as caught:
            await opened.submit(shop, "notify", {"customer": 1}, key="k")
    assert (caught.value.code, caught.value.field) == ("INVALID_VALUE", "connection")
    assert (database.instance_ids(), database.taken_keys()) == ([], [])


@pytest.mark.parametrize("way", [way for way in WAYS if "SQLAlchemy" not in way.name], ids=repr)
async def test_a_transaction_that_was_begun_by_hand_is_one(way: Way, database: Database, shop: App) -> None:
    async with way.open(database, commits_each=True) as opened:
        await opened.run("BEGIN")
        handle = await opened.submit(shop, "notify", {"customer": 1})
        await opened.run("ROLLBACK")
        assert database.instance_ids() == []
        await opened.run("BEGIN")
        handle = await opened.submit(shop, "notify", {"customer": 1})
        await opened.run("COMMIT")
    assert database.instance_ids() == [handle.id]


@pytest.mark.parametrize("way", FIRST_WAYS, ids=repr)
async def test_a_database_without_our_tables_is_refused_and_the_transaction_goes_on(
    way: Way, tmp_path: Path, shop: App
) -> None:
    with new_database(way.kind, tmp_path, with_tables=False) as database:
        async with way.open(database) as opened:
            await opened.run("INSERT INTO orders VALUES (17)")
            with pytest.raises(
                UserError, match="has no Ostinato tables; the scheduler's database is"
            ) as caught:
                await opened.submit(shop, "notify", {"customer": 1})
            await opened.commit()
        assert caught.value.code == "DATABASE_UNUSABLE"
        assert database.rows("SELECT number FROM orders") == [(17,)]


@pytest.mark.parametrize("way", FIRST_WAYS, ids=repr)
async def test_another_schema_version_is_refused_and_the_transaction_goes_on(
    way: Way, tmp_path: Path, shop: App
) -> None:
    with new_database(way.kind, tmp_path) as database:
        database.rows(f"UPDATE {version_table(way.kind)} SET version_num = '9999'")
        async with way.open(database) as opened:
            await opened.run("INSERT INTO orders VALUES (17)")
            with pytest.raises(UserError, match="has schema 9999") as caught:
                await opened.submit(shop, "notify", {"customer": 1})
            await opened.commit()
        assert caught.value.code == "SCHEMA_VERSION"
        assert database.rows("SELECT number FROM orders") == [(17,)]


async def test_a_user_without_the_privilege_is_told_and_the_transaction_goes_on(
    tmp_path: Path, shop: App
) -> None:
    with new_database("postgresql", tmp_path) as database:
        user = f"{database.url.database}_user"
        database.rows(f"CREATE ROLE {user} LOGIN")
        try:
            database.rows(f"GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA public TO {user}")
            with psycopg.connect(
                host=database.url.host, port=database.url.port, user=user, dbname=database.url.database
            ) as connection:
                connection.execute("INSERT INTO orders VALUES (17)")
                with pytest.raises(UserError, match="may not DELETE in table idempotency_key") as caught:
                    shop.submit("notify", {"customer": 1}, connection=connection)
            assert caught.value.code == "DATABASE_UNUSABLE"
            assert database.rows("SELECT number FROM orders") == [(17,)]
        finally:
            database.rows(f"DROP OWNED BY {user}; DROP ROLE {user}")


@pytest.mark.parametrize("way", WAYS, ids=repr)
async def test_a_connection_of_the_other_kind_of_call_is_refused(
    way: Way, database: Database, shop: App
) -> None:
    async with way.open(database) as opened:
        connection = opened.connection
        if type(opened).submit is Opened.submit:
            with pytest.raises(UserError, match=r"is asynchronous .*await submit_async") as caught:
                shop.submit("notify", {"customer": 1}, connection=connection)
        else:
            with pytest.raises(UserError, match=r"is synchronous .*call submit ") as caught:
                await shop.submit_async("notify", {"customer": 1}, connection=connection)
    assert (caught.value.code, caught.value.field) == ("INVALID_VALUE", "connection")


@pytest.mark.parametrize(
    "connection", ["postgresql://shop", 17, object(), sqlite3], ids=lambda value: type(value).__name__
)
async def test_what_is_no_connection_is_refused(connection: object, shop: App) -> None:
    with pytest.raises(UserError, match=r"is no connection that is known .*psycopg, .*asyncpg") as caught:
        shop.submit("notify", {"customer": 1}, connection=connection)
    with pytest.raises(UserError) as awaited:
        await shop.submit_async("notify", {"customer": 1}, connection=connection)
    assert str(awaited.value) == str(caught.value)
    assert caught.value.field == "connection"


async def test_the_drivers_own_errors_pass(shop: App, tmp_path: Path) -> None:
    """Only who owns the transaction can repeat it, and knows the driver's errors."""
    with new_database("sqlite", tmp_path) as database:
        database.put_tasks(shop.definitions())
        one = sqlite3.connect(database.path)
        other = sqlite3.connect(database.path, timeout=0)
        shop.submit("notify", {"customer": 1}, connection=one)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            shop.submit("notify", {"customer": 1}, connection=other)
        one.close()
        other.close()


async def test_an_uncommitted_instance_is_unknown_to_its_handle(tmp_path: Path) -> None:
    app = App("shop", f"sqlite:///{tmp_path / 'shop.db'}")

    @app.task
    def notify(customer: int) -> bool:
        return True

    app.apply()
    connection = sqlite3.connect(tmp_path / "shop.db")
    try:
        handle = app.submit(notify, {"customer": 17}, connection=connection)
        with pytest.raises(OstinatoError) as caught:
            await handle.status_async()
        assert caught.value.code == "INSTANCE_NOT_FOUND"
        connection.commit()
        assert await handle.status_async() == "pending"
    finally:
        connection.close()
        app.close()


def test_import_ostinato_loads_no_driver() -> None:
    drivers = {"psycopg", "psycopg2", "asyncpg", "pymysql", "MySQLdb", "asyncmy", "aiomysql", "sqlalchemy"}
    program = (
        "import sys, sqlite3; from ostinato import *\n"
        "try: App('shop').submit('a', connection=17)\n"
        f"except UserError: print(sorted({drivers} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
