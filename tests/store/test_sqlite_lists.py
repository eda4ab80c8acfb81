"""Lists of SQLite where every way through the table stops early, and how the ways are walked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import pytest

from ostinato.core.failure.failure import Failure
from ostinato.core.states import State
from ostinato.store.batches import InstanceFilter
from ostinato.store.protocol import Store
from ostinato.store.sqlite import lists
from ostinato.store.sqlite.store import SqliteStore
from ostinato.testing.contracts.store_kit import (
    T0,
    ContractClock,
    Owner,
    counts,
    end_attempt,
    make_definition,
    make_instance,
)
from ostinato.testing.contracts.store_pages import PageContract


class TestEveryWayStopsEarly(PageContract):
    """The contract of pages once more, with so few rows per call that pages are short and often empty."""

    @pytest.fixture
    async def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
        monkeypatch.setattr(lists, "SCANNED_ROWS_MAX", 9)
        monkeypatch.setattr(lists, "_SCANNED_FOR_CODE_MAX", 9)
        monkeypatch.setattr(lists, "_NAMESPACES_MAX", 2)
        store = SqliteStore(str(tmp_path / "a.db"), clock=ContractClock())
        await store.open()
        yield store
        await store.close()

    #: It goes through the whole table, which would be thousands of calls here.
    test_c189_a_page_of_what_is_rare_may_be_empty_and_go_on = None  # type: ignore[assignment] # not run


async def test_no_way_sorts_more_than_the_rows_that_it_may_look_at(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "a.db"), clock=ContractClock())
    await store.open()
    await Owner.of(store)
    plans: dict[str, list[str]] = {}

    def explain_all(connection: lists.sqlite3.Connection) -> None:
        filters = product((None, "n"), (None, "t"), ((), (State.FAILED,), (State.SUCCESS,)), (None, "k"))
        for namespace, task, states, key in filters:
            where = InstanceFilter(namespace, task, states, key)
            # One row may be looked at, so that nothing is few.
            query = lists._Query(connection, where, cursor=None, scanned_max=0)
            for way in query.ways():
                assert not way.is_whole
                text = (
                    f"EXPLAIN QUERY PLAN SELECT id, rowid FROM instance INDEXED BY {way.index}"
                    f" WHERE {way.condition} AND id >= :first AND id < :before ORDER BY id DESC LIMIT 9"
                )
                plans[way.index] = [row[3] for row in connection.execute(text, query.values)]

    await store._list_reader.run("a test", explain_all)
    await store.close()
    assert set(plans) == {"instance_key", "instance_task", "instance_state", "sqlite_autoindex_instance_1"}
    for plan in plans.values():
        assert not any("TEMP B-TREE" in step for step in plan), plan
        assert any("id>? AND id<?" in step for step in plan), plan


async def test_namespaces_cost_a_seek_each_whatever_the_number_of_tasks(tmp_path: Path) -> None:
    """Counted in steps of SQLite's machine, not in time."""
    store = SqliteStore(str(tmp_path / "a.db"), clock=ContractClock())
    await store.open()

    async def steps() -> int:
        count = 0

        def step() -> int:
            nonlocal count
            count += 1
            return 0

        await store._list_reader.run("a test", lambda c: c.set_progress_handler(step, 1))
        assert await store.namespaces(limit=100) == ["default"]
        await store._list_reader.run("a test", lambda c: c.set_progress_handler(None, 1))
        return count

    await store.apply([make_definition("first")], now_us=T0)
    before = await steps()
    await store.apply([make_definition(f"t{number}") for number in range(2_000)], now_us=T0)
    assert await steps() <= before
    assert await counts(store) == {}
    await store.close()


async def test_failures_behind_large_payloads_are_read_for_so_many_bytes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "_PASSED_BYTES_MAX", 10_000)
    store = SqliteStore(str(tmp_path / "a.db"), clock=ContractClock())
    await store.open()
    owner = await Owner.of(store)
    # The last is larger than all that may be read, and is read nevertheless.
    sizes = [100] * 20 + [4_000] * 10 + [20_000]
    running = await owner.run(*[make_instance(n, payload=b"x" * size) for n, size in enumerate(sizes)])
    batch = owner.batch()
    batch.ended_attempts = [
        end_attempt(row, State.FAILED, failure=Failure("E" if n else "RARE", "transient", "no"))
        for n, row in enumerate(running)
    ]
    await store.commit(batch)
    pages = [await store.list_instances(InstanceFilter(code="RARE"), cursor=None, limit=9)]
    while pages[-1].cursor is not None:
        cursor = pages[-1].cursor
        pages.append(await store.list_instances(InstanceFilter(code="RARE"), cursor=cursor, limit=9))
    assert [len(page.instances) for page in pages] == [0, 0, 0, 0, 0, 1]
    counted = await store.count_instances(InstanceFilter(code="RARE"), limit=1_000)
    assert (counted.by_state, counted.exact) == ({}, False)
    await store.close()
