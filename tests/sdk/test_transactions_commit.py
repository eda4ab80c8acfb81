"""A task submitted inside the user's transaction exists exactly if that transaction commits."""

from __future__ import annotations

import pytest
from support.transaction_databases import Database
from support.transaction_ways import FIRST_WAYS, WAYS, Blocking, Way

from ostinato import App, Submission
from ostinato.core.definition import TaskRef


@pytest.mark.parametrize("way", WAYS, ids=repr)
async def test_the_instance_exists_once_the_transaction_has_committed(
    way: Way, database: Database, shop: App
) -> None:
    async with way.open(database) as opened:
        await opened.run("INSERT INTO orders VALUES (17)")
        handle = await opened.submit(shop, "notify", {"customer": 17}, priority=9)
        assert handle.created
        assert database.instance_ids() == []
        await opened.commit()
    assert database.instance_ids() == [handle.id]
    assert database.rows("SELECT number FROM orders") == [(17,)]
    found = database.rows(
        "SELECT namespace, task, task_version, state, priority, attempt, payload, due_us - created_us"
        " FROM instance"
    )
    assert found == [("default", "notify", 1, "pending", 9, 0, b'{"customer":17}', 0)]


@pytest.mark.parametrize("way", WAYS, ids=repr)
async def test_nothing_is_left_of_a_submission_that_is_rolled_back(
    way: Way, database: Database, shop: App
) -> None:
    async with way.open(database) as opened:
        await opened.submit(shop, "notify", {"customer": 17}, key="order-17")
        await opened.rollback()
    assert (database.instance_ids(), database.taken_keys()) == ([], [])


@pytest.mark.parametrize("way", WAYS, ids=repr)
async def test_a_savepoint_that_is_rolled_back_takes_its_submission_with_it(
    way: Way, database: Database, shop: App
) -> None:
    async with way.open(database) as opened:
        kept = await opened.submit(shop, "notify", {"customer": 17}, key="kept")
        await opened.run("SAVEPOINT inner_part")
        await opened.submit(shop, "notify", {"customer": 18}, key="lost")
        await opened.run("ROLLBACK TO SAVEPOINT inner_part")
        await opened.commit()
    assert database.instance_ids() == [kept.id]
    assert database.taken_keys() == [("kept", kept.id)]


@pytest.mark.parametrize("way", FIRST_WAYS, ids=repr)
async def test_ten_thousand_in_one_call_are_all_there_or_none_is(
    way: Way, database: Database, shop: App
) -> None:
    entries = [Submission({"customer": number}, key=f"k{number % 9_999}") for number in range(9_999)]
    async with way.open(database) as opened:
        await opened.submit_many(shop, "notify", entries)
        await opened.rollback()
    assert (database.instance_ids(), database.taken_keys()) == ([], [])
    async with way.open(database) as opened:
        handles = await opened.submit_many(shop, "notify", [*entries, entries[7]])
        await opened.commit()
    assert [handle.created for handle in handles] == [True] * 9_999 + [False]
    assert handles[-1].id == handles[7].id
    assert database.instance_ids() == sorted(handle.id for handle in handles[:-1])


@pytest.mark.parametrize("way", FIRST_WAYS, ids=repr)
async def test_large_payloads_travel_in_several_statements(way: Way, database: Database, shop: App) -> None:
    """Together they exceed what a server takes in one."""
    text = "'\\%?$1\"`:x" * 20_000
    async with way.open(database) as opened:
        handles = await opened.submit_many(
            shop, "notify", [{"customer": number, "text": text} for number in range(100)]
        )
        await opened.commit()
    assert database.instance_ids() == sorted(handle.id for handle in handles)
    (length,) = database.rows(f"SELECT DISTINCT length(payload) FROM instance WHERE id = '{handles[50].id}'")
    assert length[0] > 200_000


@pytest.mark.parametrize("way", FIRST_WAYS, ids=repr)
async def test_due_times_are_of_the_databases_clock(way: Way, database: Database, shop: App) -> None:
    now = {
        "postgresql": "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)",
        "mysql": "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
        "sqlite": "SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000",
    }[way.kind]
    async with way.open(database) as opened:
        if way.kind == "mysql":
            await opened.run("SET time_zone = '+05:00'")
        ((before_us,),) = database.rows(now)
        await opened.submit(shop, "notify", {"customer": 1}, delay="5m")
        ((after_us,),) = database.rows(now)
        await opened.commit()
    ((created_us, due_us),) = database.rows("SELECT created_us, due_us FROM instance")
    # SQLite's own clock, by which this test looks, counts milliseconds.
    assert before_us - 1000 <= created_us <= after_us + 1000
    assert due_us - created_us == 300_000_000


@pytest.mark.parametrize("way", [*FIRST_WAYS, *(way for way in WAYS if way.name == "asyncpg")], ids=repr)
async def test_tasks_and_their_options_submit_in_a_transaction_too(
    way: Way, database: Database, shop: App
) -> None:
    notify, backup = shop.registered[TaskRef("default", "notify")], shop.shell("backup", "true")
    database.put_tasks([backup.definition])
    async with way.open(database) as opened:
        call = notify.options(key="order-17", connection=opened.connection)
        command = backup.options(delay="5m", connection=opened.connection)
        if isinstance(opened, Blocking):
            handles = [call.submit(17), command.submit()]
        else:
            handles = [await call.submit_async(17), await command.submit_async()]
        assert database.instance_ids() == []
        await opened.commit()
    assert database.instance_ids() == sorted(handle.id for handle in handles)
    assert database.taken_keys() == [("order-17", handles[0].id)]


@pytest.mark.parametrize("way", FIRST_WAYS, ids=repr)
async def test_no_submissions_ask_nothing_of_the_database(way: Way, database: Database, shop: App) -> None:
    async with way.open(database) as opened:
        assert await opened.submit_many(shop, "notify", []) == []
