"""Backpressure as an app meets it, straight into a database and over the API; and where it does not."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.rest import running_rest

from ostinato import App, Submission, UnavailableError, UserError
from ostinato.clock import SystemClock
from ostinato.core.instants import SECOND
from ostinato.core.pressure import Limits


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """An app on a database of its own, of which three instances may wait."""
    monkeypatch.setenv("OSTINATO_PRESSURE_RED", "3")
    app = App("shop", f"sqlite:///{tmp_path}/shop.db")

    @app.task
    def notify(customer: int) -> bool:
        return True

    app.apply()
    yield app
    app.close()


def waiting(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        count: int = connection.execute("SELECT count(*) FROM instance").fetchone()[0]
    return count


def refused_after_us(app: App, *entries: Submission) -> int:
    clock = SystemClock()
    before_us = clock.boot_us()
    with pytest.raises(UnavailableError) as caught:
        app.submit_many("notify", list(entries))
    assert caught.value.code == "BACKPRESSURE"
    assert "nothing was submitted" in caught.value.hint
    return clock.boot_us() - before_us


def test_an_app_on_a_database_is_refused_after_waits_of_its_own(shop: App, tmp_path: Path) -> None:
    handles = shop.submit_many("notify", [Submission({"customer": 1}, key=f"k{n}") for n in range(3)])
    assert 2 * SECOND <= refused_after_us(shop, Submission({"customer": 4})) <= 10 * SECOND
    again = shop.submit_many("notify", [Submission({"customer": 1}, key=f"k{n}") for n in range(3)])
    assert [each.id for each in again] == [each.id for each in handles]
    assert waiting(tmp_path) == 3


def test_what_is_submitted_in_a_transaction_of_the_users_own_is_never_refused(
    shop: App, tmp_path: Path
) -> None:
    shop.submit_many("notify", [{"customer": n} for n in range(3)])
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        shop.submit_many("notify", [{"customer": n} for n in range(10)], connection=connection)
        connection.execute("COMMIT")
    assert waiting(tmp_path) == 13


def test_a_limit_that_is_none_names_its_variable(shop: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_PRESSURE_YELLOW", "3")
    shop.close()
    with pytest.raises(UserError) as caught:
        shop.submit("notify", {"customer": 1})
    assert (caught.value.code, caught.value.field) == ("INVALID_SETTING", "OSTINATO_PRESSURE_YELLOW")


async def test_an_app_on_the_api_is_refused_by_the_node_and_comes_back(tmp_path: Path) -> None:
    async with running_rest(tmp_path, with_node=False, pressure=Limits(red=3)) as rest:
        app = App("shop", str(rest.client.base_url))
        try:
            await asyncio.to_thread(app.submit_many, "endless", [{}] * 3)
            clock = SystemClock()
            before_us = clock.boot_us()
            with pytest.raises(UnavailableError) as caught:
                await asyncio.to_thread(app.submit, "add", {"first": 1})
            assert caught.value.code == "BACKPRESSURE"
            assert clock.boot_us() - before_us >= 2 * SECOND
            # One that comes back after the backlog has gone is accepted.
            again = asyncio.create_task(asyncio.to_thread(app.submit, "add", {"first": 1}))
            await rest.start_node()
            assert await asyncio.to_thread((await again).result, timeout="20s") == 3
        finally:
            await asyncio.to_thread(app.close)
