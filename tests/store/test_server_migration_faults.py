"""Migrations of server databases that are broken off, meet each other, or a server that does not answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Engine
from support.catalogs import Catalog
from support.old_databases import catalog_of, insert_rows
from support.private_servers import PrivateMariadb, PrivatePostgres, PrivateServer
from support.servers import SERVER_KINDS, TestDatabase, connect, fresh_database

from ostinato.clock import SystemClock
from ostinato.errors import ConflictError, OstinatoError, UnavailableError, UserError
from ostinato.store import schema
from ostinato.store.administration import administrator_of
from ostinato.store.from_url import open_store_from_url
from ostinato.store.migrations import HEAD_REVISION, SERVER_CHANGE_TABLE
from ostinato.store.schema_facts import Administrator, SchemaFacts
from ostinato.store.server import administration, migration

_PARTITIONS = 8
_IS_FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"


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


@contextmanager
def _broken_off_before(statement_count: int) -> Iterator[list[str]]:
    """Let so many statements that change anything through, and stop before the next."""
    done: list[str] = []

    def look(_: object, __: object, statement: str, *___: object) -> None:
        if statement.lstrip().startswith(("CREATE", "ALTER", "DROP", "INSERT", "UPDATE", "DELETE")):
            if len(done) == statement_count:
                raise _BreakOffError
            done.append(statement)

    event.listen(Engine, "before_cursor_execute", look)
    try:
        yield done
    finally:
        event.remove(Engine, "before_cursor_execute", look)


async def _is_broken_off(change: Awaitable[SchemaFacts], *, before: int) -> bool:
    """Whether `change` had a statement more than `before`."""
    with _broken_off_before(before):
        try:
            await change
        except _BreakOffError:
            return True
    return False


#: From where to where.
_CHANGES = [
    ("base", HEAD_REVISION),
    ("0001", HEAD_REVISION),
    (HEAD_REVISION, "0001"),
    (HEAD_REVISION, "base"),
]


def _bring(administrator: Administrator, revision: str, *, is_upgrade: bool) -> Awaitable[SchemaFacts]:
    if is_upgrade:
        return administrator.upgrade(revision, partition_count=_PARTITIONS)
    return administrator.downgrade(revision)


@pytest.mark.parametrize(("before", "after"), _CHANGES)
async def test_a_change_broken_off_at_any_statement_is_never_taken_for_whole_and_goes_on_when_repeated(
    database: TestDatabase, administrator: Administrator, before: str, after: str
) -> None:
    is_upgrade = after == HEAD_REVISION
    bring = partial(_bring, administrator, after, is_upgrade=is_upgrade)
    bring_back = partial(_bring, administrator, before, is_upgrade=not is_upgrade)

    async def look() -> tuple[SchemaFacts, Catalog]:
        return await administrator.facts(), catalog_of(database)

    await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
    if is_upgrade:
        end = await look()
        await bring_back()
        beginning = await look()
    else:
        beginning = await look()
        await bring()
        end = await look()
        await bring_back()
    is_one_transaction = database.kind == "postgresql"
    # Each place of the first revision takes seconds.
    step = 1 if not is_one_transaction and (_IS_FULL or "base" not in (before, after)) else 7
    refused, count = 0, 0
    while await _is_broken_off(bring(), before=count):
        facts, found = await look()
        # Made first; a row is in it once a step has begun.
        found.pop(SERVER_CHANGE_TABLE, None)
        if (facts, found) not in (beginning, end):
            refused += 1
            await _refuse_all_but_the_repetition(database, administrator, is_upgrade=is_upgrade)
        await bring()
        assert await look() == end
        await bring_back()
        assert await look() == beginning
        count += step
    assert count >= 5
    assert refused == 0 if is_one_transaction else refused >= count // step // 2


async def _refuse_all_but_the_repetition(
    database: TestDatabase, administrator: Administrator, *, is_upgrade: bool
) -> None:
    before = (await administrator.facts(), catalog_of(database))
    change = before[0].change
    assert change is not None
    assert not before[0].is_current
    store = open_store_from_url(database.url, clock=SystemClock())
    opposite = _bring(administrator, "base" if is_upgrade else HEAD_REVISION, is_upgrade=not is_upgrade)
    for act in (store.open(), opposite):
        with pytest.raises(UserError, match="is in the middle of a schema") as caught:
            await act
        assert caught.value.code == "SCHEMA_VERSION"
        assert change.command in caught.value.hint
    assert (await administrator.facts(), catalog_of(database)) == before


async def test_what_a_change_broken_off_would_leave_is_not_enough(
    database: TestDatabase, administrator: Administrator
) -> None:
    if database.kind == "postgresql":
        # It undoes what breaks off: there is nothing that would not be enough.
        assert await _is_broken_off(administrator.upgrade("0002", partition_count=_PARTITIONS), before=30)
        assert (await administrator.facts()).revision is None
        return
    assert await _is_broken_off(administrator.upgrade("0002", partition_count=_PARTITIONS), before=30)
    with pytest.raises(UserError, match="from nothing to 0002") as caught:
        await administrator.upgrade("0001", partition_count=_PARTITIONS)
    assert caught.value.hint.endswith("ostinato db upgrade --to 0002")
    assert (await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)).is_current
    assert await _is_broken_off(administrator.downgrade("0001"), before=5)
    with pytest.raises(UserError, match=f"from {HEAD_REVISION} to 0001") as caught:
        await administrator.downgrade("0002")
    assert caught.value.hint.endswith("ostinato db downgrade --to 0001")
    assert (await administrator.downgrade("base")).revision is None


async def test_a_table_of_ours_that_is_missing_is_found_by_an_upgrade(
    database: TestDatabase, administrator: Administrator
) -> None:
    await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
    engine = database.engine()
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE worker"))
    engine.dispose()
    with pytest.raises(UserError, match=r"lacks worker .*db downgrade") as caught:
        await administrator.upgrade(HEAD_REVISION, partition_count=_PARTITIONS)
    assert caught.value.code == "DATABASE_UNUSABLE"


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
