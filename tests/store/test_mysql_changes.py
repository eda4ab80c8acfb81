"""How a store on MariaDB or MySQL hears of what others commit, and takes what is long."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from support.servers import SERVER_KINDS, TestDatabase, fresh_database

from ostinato.clock import SystemClock
from ostinato.core.instants import SECOND
from ostinato.store.batches import Request, RequestAnswer
from ostinato.store.mysql.store import MysqlStore
from ostinato.testing.contracts.store_kit import (
    T0,
    Owner,
    counts,
    make_definition,
    make_instance,
    make_submission,
)

SUBMISSIONS = 200_000 if os.environ.get("OSTINATO_CASES_FULL") == "1" else 20_000


@pytest.fixture(scope="module", params=[kind for kind in SERVER_KINDS if kind != "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    with fresh_database(request.param) as database:
        yield database


@pytest.fixture
def clock() -> SystemClock:
    return SystemClock()


@pytest.fixture
async def store(database: TestDatabase, clock: SystemClock) -> AsyncIterator[MysqlStore]:
    database.clean()
    store = MysqlStore(database.server_url, clock=clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def other(database: TestDatabase, store: MysqlStore, clock: SystemClock) -> AsyncIterator[MysqlStore]:
    other = MysqlStore(database.server_url, clock=clock)
    await other.open()
    yield other
    await other.close()


def _request(identifier: str) -> Request:
    return Request(
        id=identifier, partition=3, kind="cancel", namespace="default", created_us=T0, instance_id="i000001"
    )


async def _submit(store: MysqlStore) -> None:
    # Ids that come before those that are there: a transaction may commit later than one that began after it.
    await store.submit([make_submission("h000000")])


async def _ask(store: MysqlStore) -> None:
    await store.add_requests([_request("r2")])


async def _apply(store: MysqlStore) -> None:
    await store.apply([make_definition("another")], now_us=T0 - SECOND)


@pytest.mark.parametrize("act", [_submit, _ask, _apply])
async def test_what_another_process_commits_ends_the_wait(
    store: MysqlStore,
    other: MysqlStore,
    clock: SystemClock,
    act: Callable[[MysqlStore], Awaitable[None]],
) -> None:
    await store.submit([make_submission(1)])
    await store.add_requests([_request("r1")])
    await store.apply([make_definition()], now_us=T0)
    await _hear_what_there_is(store, clock)
    begun_us = clock.boot_us()
    waiting = asyncio.create_task(store.wait_for_change(begun_us + 60 * SECOND))
    await act(other)
    await asyncio.wait_for(waiting, 30)
    assert clock.boot_us() - begun_us < 5 * SECOND


async def test_what_is_answered_is_no_news(store: MysqlStore, other: MysqlStore, clock: SystemClock) -> None:
    owner = await Owner.of(other)
    await other.submit([make_submission(1)])
    await other.add_requests([_request("r1"), _request("r2")])
    await _hear_what_there_is(store, clock)
    waiting = asyncio.create_task(store.wait_for_change(clock.boot_us() + SECOND))
    batch = owner.batch()
    batch.answers = [RequestAnswer("r1", 3, "OK", "")]
    await other.commit(batch)
    done, _ = await asyncio.wait([waiting], timeout=0.6)
    assert not done
    await waiting


async def _hear_what_there_is(store: MysqlStore, clock: SystemClock) -> None:
    """What a store has committed itself it knows at once, and finds once more when it looks for others'."""
    for _ in range(3):
        await store.wait_for_change(clock.boot_us() + SECOND // 4)


async def test_c121_a_very_long_list_is_accepted_whole(store: MysqlStore) -> None:
    submissions = [make_submission(f"{number:08}", partition=number % 64) for number in range(SUBMISSIONS)]
    receipts = await store.submit(submissions)
    assert all(receipt.created for receipt in receipts)
    assert await counts(store) == {"pending": SUBMISSIONS}


async def test_c141_a_long_list_of_which_some_are_there_is_completed(store: MysqlStore) -> None:
    await store.submit([make_submission(f"{number:08}") for number in range(0, 3_000, 7)])
    receipts = await store.submit([make_submission(f"{number:08}") for number in range(3_000)])
    assert [receipt.created for receipt in receipts] == [number % 7 != 0 for number in range(3_000)]
    assert await counts(store) == {"pending": 3_000}


async def test_texts_come_back_as_they_were(store: MysqlStore) -> None:
    """Whatever is special in a statement's text, which the values are part of."""
    texts = [
        "'",
        "\\",
        "\\'",
        '"',
        "%s %(x)s {table: id}",
        "\0\n\r\x1a",
        "é \U0001f600",
        "a ",
        "A",
        "-- ",
        "?",
    ]
    rows = [make_instance(number, reason=text, payload=text.encode()) for number, text in enumerate(texts)]
    await Owner(store, []).submit(*rows)
    found = await store.get_instances([row.id for row in rows])
    assert [found[row.id] for row in rows] == rows
