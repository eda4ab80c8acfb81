"""Migrations of server databases that are broken off, meet each other, or a server that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest
from sqlalchemy import Connection, event
from support.old_databases import catalog_of, insert_rows
from support.private_servers import PrivateMariadb, PrivatePostgres, PrivateServer
from support.servers import SERVER_KINDS, TestDatabase, connect, create_schema, fresh_database

from ostinato.clock import SystemClock
from ostinato.errors import ConflictError, OstinatoError, UnavailableError, UserError
from ostinato.store import schema
from ostinato.store.administration import administrator_of
from ostinato.store.migrations import HEAD_REVISION
from ostinato.store.migrations.run import downgrade, upgrade
from ostinato.store.schema_facts import Administrator
from ostinato.store.server import administration, migration

_PARTITIONS = 8


@pytest.fixture(params=SERVER_KINDS)
def database(request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    """Without any table."""
    with fresh_database(request.param, has_schema=False) as found:
        yield found


@pytest.fixture
def administrator(database: TestDatabase) -> Administrator:
    return administrator_of(database.url, clock=SystemClock())


class _BreakOffError(Exception):
    """In place of a lost connection or a killed process."""


def _break_off_after(connection: Connection, count: int) -> list[str]:
    """Let `count` changes of the schema through, and stop before the next; gives what came through."""
    done: list[str] = []

    @event.listens_for(connection, "before_cursor_execute")
    def look(_: object, __: object, statement: str, *___: object) -> None:
        if statement.lstrip().startswith(("CREATE", "ALTER", "DROP")):
            if len(done) == count:
                raise _BreakOffError
            done.append(statement)

    return done


def _run_and_break_off(database: TestDatabase, change: partial[None], *, count: int) -> bool:
    """Whether it came to its end, before `count` statements were done."""
    engine = database.engine()
    try:
        with engine.begin() as connection:
            _break_off_after(connection, count)
            change(connection)
    except _BreakOffError:
        return False
    finally:
        engine.dispose()
    return True


async def test_an_upgrade_that_breaks_off_at_any_statement_goes_on_when_it_is_repeated(
    database: TestDatabase, administrator: Administrator
) -> None:
    change = partial(upgrade, partition_count=_PARTITIONS)
    tries = 0
    if database.kind == "postgresql":
        assert not _run_and_break_off(database, change, count=20)
        assert catalog_of(database) == {}
        assert (await administrator.facts()).revision is None
    else:
        # Each gets one statement further than the one before it.
        while not _run_and_break_off(database, change, count=1):
            tries += 1
            assert tries < 100
        tables = schema.metadata.tables.values()
        assert tries >= len(tables) + sum(len(table.indexes) for table in tables)
    facts = await administrator.upgrade(HEAD_REVISION, partition_count=99)
    assert facts.partitions == (99 if database.kind == "postgresql" else _PARTITIONS)
    engine = database.engine()
    broken_off = catalog_of(database)
    await administrator.downgrade("base")
    with engine.begin() as connection:
        create_schema(connection)
    engine.dispose()
    assert catalog_of(database) == broken_off


async def test_a_downgrade_that_breaks_off_is_repeated_and_until_then_refused_by_an_upgrade(
    database: TestDatabase, administrator: Administrator
) -> None:
    await administrator.upgrade("0001", partition_count=_PARTITIONS)
    old = catalog_of(database)
    await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
    newest = catalog_of(database)
    assert not _run_and_break_off(database, partial(downgrade, revision="0001"), count=2)
    if database.kind == "postgresql":
        assert catalog_of(database) == newest
    else:
        with pytest.raises(UserError, match=r"lacks worker .*db downgrade") as caught:
            await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
        assert caught.value.code == "DATABASE_UNUSABLE"
    await administrator.downgrade("0001")
    assert catalog_of(database) == old
    await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
    assert catalog_of(database) == newest


async def test_upgrades_at_the_same_time_wait_for_each_other(
    database: TestDatabase, administrator: Administrator
) -> None:
    many = [administrator.upgrade(HEAD_REVISION, partition_count=count) for count in (5, 6, 7)]
    facts = await asyncio.gather(*many)
    assert len({each.partitions for each in facts}) == 1
    assert {each.revision for each in facts} == {HEAD_REVISION}
    assert set(catalog_of(database)) == set(schema.metadata.tables)


async def test_an_upgrade_gives_up_when_another_takes_too_long(
    database: TestDatabase, administrator: Administrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(administration, "_LOCK_WAIT_US", 1_000_000)
    entered, done = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        fault = administrator._fault  # type: ignore[attr-defined]  # the same reader as the other's
        async with administration.administering(
            database.server_url, fault=fault, operation="holding", is_change=True
        ):
            entered.set()
            await done.wait()

    holder = asyncio.create_task(hold())
    await entered.wait()
    with pytest.raises(UnavailableError) as caught:
        await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
    assert caught.value.code == "DATABASE_UNAVAILABLE"
    assert "another upgrade, downgrade or copy" in caught.value.message
    done.set()
    await holder
    assert (await administrator.upgrade(HEAD_REVISION, partition_count=3)).partitions == 3


async def test_an_upgrade_does_not_queue_behind_a_long_reader(
    database: TestDatabase, administrator: Administrator
) -> None:
    await administrator.upgrade("0002", partition_count=_PARTITIONS)
    insert_rows(database)
    reader = connect(database.server_url)
    cursor = reader.cursor()
    cursor.execute("SELECT * FROM node")
    with pytest.raises(UnavailableError) as caught:
        await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
    assert caught.value.code == "DATABASE_UNAVAILABLE"
    reader.close()
    facts = await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
    assert facts.revision == HEAD_REVISION


async def test_a_downgrade_waits_for_no_node_and_refuses_a_living_one(
    database: TestDatabase, administrator: Administrator
) -> None:
    await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
    insert_rows(database)
    stop = asyncio.Event()

    def renew() -> None:
        connection = connect(database.server_url)
        connection.cursor().execute("UPDATE node SET renewals = renewals + 1")
        connection.commit()
        connection.close()

    async def live() -> None:
        while not stop.is_set():
            await asyncio.to_thread(renew)
            await asyncio.sleep(0.2)

    life = asyncio.create_task(live())
    try:
        with pytest.raises(ConflictError) as caught:
            await administrator.downgrade("0001")
    finally:
        stop.set()
        await life
    assert caught.value.code == "NODE_ALREADY_RUNNING"
    assert (await administrator.facts()).revision == HEAD_REVISION
    # Its row is left, and it renews itself no more.
    assert (await administrator.downgrade("0001")).revision == "0001"


async def test_an_unreachable_server_is_said_so(database: TestDatabase) -> None:
    url = database.url.replace(f":{database.server_url.port}/", ":1/")
    with pytest.raises(OstinatoError) as caught:
        await administrator_of(url, clock=SystemClock()).facts()
    assert caught.value.code == "DATABASE_UNAVAILABLE"


@pytest.mark.parametrize("kind", [PrivatePostgres, PrivateMariadb], ids=["postgresql", "mariadb"])
async def test_a_server_that_says_nothing_is_not_waited_for(
    kind: type[PrivateServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (administration, migration):
        monkeypatch.setattr(module, "ANSWER_US", 1_000_000)
    with kind() as server:
        administrator = administrator_of(server.make_database("jobs"), clock=SystemClock())
        assert (await administrator.facts()).revision is None
        server.freeze()
        try:
            with pytest.raises(UnavailableError) as caught:
                await administrator.facts()
        finally:
            server.thaw()
        assert caught.value.code == "DATABASE_UNAVAILABLE"
        assert (await administrator.facts()).revision is None
