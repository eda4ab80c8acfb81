"""Idempotency keys inside the user's transactions: as outside, and between transactions that overlap."""

from __future__ import annotations

import asyncio

import pytest
from support.transaction_databases import Database
from support.transaction_ways import FIRST_WAYS, WAYS, Opened, Way

from ostinato import App, ConflictError, Submission
from ostinato.clock import SystemClock
from ostinato.core.instants import DAY, MILLISECOND, SECOND

#: Says how many sessions wait for a lock of another.
_WAITING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    " AND datname = current_database()",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    " AND trx_mysql_thread_id IN (SELECT id FROM information_schema.processlist WHERE db = DATABASE())",
}
_ON_SERVERS = [way for way in WAYS if way.kind != "sqlite"]


async def until_somebody_waits(database: Database) -> None:
    """Until a session stands behind a lock of another; SQLite's cannot be asked."""
    clock = SystemClock()
    end_us = clock.boot_us() + 20 * SECOND
    while database.rows(_WAITING[database.kind]) == [(0,)]:
        assert clock.boot_us() < end_us, "nobody waited for the other transaction"
        # InnoDB shows an old picture to whoever looks again within a tenth of a second.
        await clock.sleep_until_us(clock.boot_us() + 150 * MILLISECOND)


@pytest.mark.parametrize("way", WAYS, ids=repr)
async def test_a_live_key_is_answered_with_its_instance_or_refused(
    way: Way, database: Database, shop: App
) -> None:
    async with way.open(database) as opened:
        first = await opened.submit(shop, "notify", {"customer": 17}, key="order-17")
        same = await opened.submit(shop, "notify", {"customer": 17}, key="order-17")
        await opened.commit()
        await opened.begin()
        later = await opened.submit(shop, "notify", {"customer": 17}, key="order-17")
        with pytest.raises(ConflictError) as caught:
            await opened.submit(shop, "notify", {"customer": 18}, key="order-17")
        await opened.run("INSERT INTO orders VALUES (17)")
        await opened.commit()
    assert (same.id, same.created, later.id, later.created) == (first.id, False, first.id, False)
    error = caught.value
    assert (error.code, error.field, error.subject) == ("KEY_CONFLICT", "key", first.id)
    assert database.instance_ids() == [first.id]
    assert database.rows("SELECT number FROM orders") == [(17,)]


@pytest.mark.parametrize("way", FIRST_WAYS, ids=repr)
async def test_of_many_with_a_refused_key_none_is_written(way: Way, database: Database, shop: App) -> None:
    async with way.open(database) as opened:
        holder = await opened.submit(shop, "notify", {"customer": 1}, key="b")
        with pytest.raises(ConflictError, match=r"submissions\[2\]: .* 0 of the 4 submissions are accepted"):
            await opened.submit_many(
                shop,
                "notify",
                [
                    Submission({"customer": 2}),
                    Submission({"customer": 3}, key="a"),
                    Submission({"customer": 4}, key="b"),
                    Submission({"customer": 5}, key="c"),
                ],
            )
        await opened.commit()
    assert database.instance_ids() == [holder.id]
    assert database.taken_keys() == [("b", holder.id)]


@pytest.mark.parametrize("way", WAYS, ids=repr)
async def test_an_expired_key_is_replaced(way: Way, database: Database, shop: App) -> None:
    async with way.open(database) as opened:
        first = await opened.submit(shop, "notify", {"customer": 17}, key="order-17")
        await opened.commit()
    ((life_us,),) = database.rows(
        "SELECT idempotency_key.expires_us - created_us FROM idempotency_key, instance"
    )
    assert life_us == DAY
    database.rows("UPDATE idempotency_key SET expires_us = expires_us - 86400000000")
    async with way.open(database) as opened:
        second = await opened.submit(shop, "notify", {"customer": 18}, key="order-17")
        await opened.commit()
    assert second.created
    assert database.instance_ids() == sorted([first.id, second.id])
    assert database.taken_keys() == [("order-17", second.id)]


@pytest.mark.parametrize("way", FIRST_WAYS, ids=repr)
async def test_many_keys_of_which_some_have_expired_are_taken_in_one_call(
    way: Way, database: Database, shop: App
) -> None:
    entries = [Submission({"customer": number}, key=f"order-{number:04}") for number in range(1_000)]
    async with way.open(database) as opened:
        before = await opened.submit_many(shop, "notify", entries)
        await opened.commit()
    database.rows(
        "UPDATE idempotency_key SET expires_us = 1 WHERE instance_id > (SELECT min(id) FROM instance)"
    )
    async with way.open(database) as opened:
        after = await opened.submit_many(shop, "notify", entries)
        await opened.commit()
    kept = [one.id for one, other in zip(before, after, strict=True) if one.id == other.id]
    assert kept == [min(handle.id for handle in before)]
    assert sum(handle.created for handle in after) == 999
    assert [holder for _, holder in database.taken_keys()] == [handle.id for handle in after]


@pytest.mark.parametrize("way", _ON_SERVERS, ids=repr)
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_of_two_transactions_with_one_key_the_second_waits_for_the_first(
    way: Way, database: Database, shop: App, end: str
) -> None:
    async with way.open(database) as one, way.open(database) as other:
        # Its view of the database is from before the first has committed.
        await other.submit(shop, "notify", {"customer": 99})
        first = await one.submit(shop, "notify", {"customer": 17}, key="order-17")
        waiting = asyncio.create_task(other.submit(shop, "notify", {"customer": 17}, key="order-17"))
        await until_somebody_waits(database)
        await (one.commit() if end == "commit" else one.rollback())
        second = await waiting
        await other.commit()
    assert second.created is (end == "rollback")
    assert (second.id == first.id) is (end == "commit")
    assert len(database.instance_ids()) == 2
    assert database.taken_keys() == [("order-17", second.id)]


@pytest.mark.parametrize("way", [way for way in WAYS if way.kind == "sqlite"], ids=repr)
async def test_of_two_transactions_of_sqlite_with_one_key_the_second_finds_the_first(
    way: Way, database: Database, shop: App
) -> None:
    async with way.open(database) as one, way.open(database) as other:
        first = await one.submit(shop, "notify", {"customer": 17}, key="order-17")
        waiting = asyncio.create_task(other.submit(shop, "notify", {"customer": 17}, key="order-17"))
        await one.commit()
        second = await waiting
        await other.commit()
    assert (second.id, second.created) == (first.id, False)
    assert database.instance_ids() == [first.id]


@pytest.mark.parametrize("way", [way for way in _ON_SERVERS if "SQLAlchemy" not in way.name], ids=repr)
async def test_two_lists_of_the_same_keys_in_other_orders_do_not_lock_each_other_out(
    way: Way, database: Database, shop: App
) -> None:
    entries = [Submission({"customer": number}, key=f"order-{number}") for number in range(300)]
    async with way.open(database) as one, way.open(database) as other:

        async def submitted(opened: Opened, listed: list[Submission]) -> list[str]:
            handles = await opened.submit_many(shop, "notify", listed)
            await opened.commit()
            return [handle.id for handle in handles]

        ids, reversed_ids = await asyncio.gather(submitted(one, entries), submitted(other, entries[::-1]))
    assert ids == reversed_ids[::-1]
    assert database.instance_ids() == sorted(ids)
