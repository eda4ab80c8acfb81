"""Migrations of server databases: up, down, and with rows in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, text
from support.old_databases import catalog_of, insert_rows, rows_of
from support.servers import SERVER_KINDS, TestDatabase, connect, create_schema, fresh_database

from ostinato.clock import SystemClock
from ostinato.errors import UserError
from ostinato.store import schema
from ostinato.store.administration import administrator_of
from ostinato.store.migrations import HEAD_REVISION, REVISIONS, SERVER_VERSION_TABLE
from ostinato.store.migrations.run import upgrade
from ostinato.store.schema_facts import Administrator

_PARTITIONS = 8


@pytest.fixture(params=SERVER_KINDS)
def database(request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    """Without any table."""
    with fresh_database(request.param, has_schema=False) as found:
        yield found


@pytest.fixture
def administrator(database: TestDatabase) -> Administrator:
    return administrator_of(database.url, clock=SystemClock())


async def test_an_upgrade_makes_exactly_what_the_metadata_says(
    database: TestDatabase, administrator: Administrator
) -> None:
    facts = await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
    assert (facts.revision, facts.partitions, facts.pending) == (HEAD_REVISION, _PARTITIONS, [])
    upgraded = catalog_of(database)
    with fresh_database(database.kind, has_schema=False) as other:
        engine = other.engine()
        with engine.begin() as connection:
            create_schema(connection, partition_count=_PARTITIONS)
        engine.dispose()
        assert upgraded == catalog_of(other)
    assert set(upgraded) == set(schema.metadata.tables)


@pytest.mark.parametrize("old", REVISIONS[:-1])
async def test_rows_are_kept_on_the_way_up_and_down(
    database: TestDatabase, administrator: Administrator, old: str
) -> None:
    await administrator.upgrade(old, partition_count=_PARTITIONS)
    insert_rows(database)
    before, rows = catalog_of(database), rows_of(database)
    assert rows["instance"][0]["payload"] == b"x" * 300_000
    assert len(rows["partition_owner"]) == _PARTITIONS
    facts = await administrator.upgrade(HEAD_REVISION, partition_count=99)
    assert (facts.revision, facts.partitions) == (HEAD_REVISION, _PARTITIONS)
    assert rows_of(database) == rows
    assert (await administrator.downgrade(old)).pending == list(REVISIONS[REVISIONS.index(old) + 1 :])
    assert (catalog_of(database), rows_of(database)) == (before, rows)


async def test_what_a_revision_adds_has_a_meaning_for_old_rows(
    database: TestDatabase, administrator: Administrator
) -> None:
    await administrator.upgrade("0001", partition_count=_PARTITIONS)
    insert_rows(database)
    await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
    engine = database.engine()
    with engine.connect() as connection:
        assert connection.scalar(select(schema.task.c.origin)) == "app"
        assert connection.scalar(select(schema.node.c.session)) == ""
    engine.dispose()


async def test_the_way_down_to_the_base_leaves_no_table(
    database: TestDatabase, administrator: Administrator
) -> None:
    await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
    insert_rows(database)
    facts = await administrator.downgrade("base")
    assert (facts.revision, facts.partitions, facts.pending) == (None, 0, list(REVISIONS))
    assert catalog_of(database) == {}
    assert (await administrator.upgrade(HEAD_REVISION, partition_count=3)).partitions == 3


async def test_an_upgrade_once_more_changes_nothing(
    database: TestDatabase, administrator: Administrator
) -> None:
    first = await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
    before = catalog_of(database)
    assert await administrator.upgrade(HEAD_REVISION, partition_count=99) == first
    assert catalog_of(database) == before


async def test_tables_of_another_program_are_not_touched(
    database: TestDatabase, administrator: Administrator
) -> None:
    engine = database.engine()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE task (id INTEGER)"))
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
    engine.dispose()
    before = catalog_of(database)
    with pytest.raises(UserError, match=r"names of ours: task \(") as caught:
        await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
    assert caught.value.code == "DATABASE_UNUSABLE"
    assert catalog_of(database) == before


async def test_a_database_may_be_shared_with_an_application_that_has_migrations_too(
    database: TestDatabase, administrator: Administrator
) -> None:
    engine = database.engine()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER)"))
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('abcdef')"))
    await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
    await administrator.downgrade("base")
    assert set(catalog_of(database)) == {"orders", "alembic_version"}
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == "abcdef"
    engine.dispose()


@pytest.mark.parametrize(
    ("stored", "word", "hint"),
    [
        (None, "no tables of Ostinato", "ostinato db upgrade"),
        ("", "not finished", "ostinato db upgrade"),
        ("0002", f"needs {HEAD_REVISION}", "ostinato db upgrade"),
        ("9999", "does not know", "newer version"),
    ],
)
async def test_no_store_opens_a_database_of_another_schema(
    database: TestDatabase, administrator: Administrator, stored: str | None, word: str, hint: str
) -> None:
    from ostinato.store.from_url import open_store_from_url

    if stored is not None:
        await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
        _store_revision(database, stored)
    store = open_store_from_url(database.url, clock=SystemClock())
    try:
        with pytest.raises(UserError) as caught:
            await store.open()
    finally:
        await store.close()
    assert (caught.value.code, caught.value.field) == ("SCHEMA_VERSION", "database")
    assert word in caught.value.message
    assert hint in caught.value.hint


async def test_a_newer_database_is_neither_upgraded_nor_downgraded(
    database: TestDatabase, administrator: Administrator
) -> None:
    await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
    _store_revision(database, "9999")
    facts = await administrator.facts()
    assert (facts.is_newer, facts.pending) == (True, [])
    for change in (administrator.upgrade(HEAD_REVISION, partition_count=1), administrator.downgrade("0001")):
        with pytest.raises(UserError) as caught:
            await change
        assert caught.value.code == "SCHEMA_VERSION"


def _store_revision(database: TestDatabase, revision: str) -> None:
    connection = connect(database.server_url)
    connection.cursor().execute(f"DELETE FROM {SERVER_VERSION_TABLE}")
    if revision:
        connection.cursor().execute(f"INSERT INTO {SERVER_VERSION_TABLE} VALUES ('{revision}')")
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("change", "target", "word"),
    [
        ("upgrade", "0001", "that is a downgrade"),
        ("upgrade", "0099", "revisions are"),
        ("upgrade", "base", "revisions are"),
        ("downgrade", "head", "revisions are base"),
    ],
)
async def test_a_target_lies_in_the_direction_that_is_asked_for(
    database: TestDatabase, administrator: Administrator, change: str, target: str, word: str
) -> None:
    await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
    run = (
        administrator.upgrade(target, partition_count=1)
        if change == "upgrade"
        else administrator.downgrade(target)
    )
    with pytest.raises(UserError) as caught:
        await run
    assert (caught.value.code, caught.value.field) == ("INVALID_VALUE", "to")
    assert word in caught.value.hint


def test_every_file_of_a_revision_is_known() -> None:
    folder = Path(upgrade.__code__.co_filename).parent / "versions"
    files = sorted(path.name[1:5] for path in folder.glob("r*.py"))
    assert tuple(files) == REVISIONS
