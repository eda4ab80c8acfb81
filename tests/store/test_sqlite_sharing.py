"""Two stores on one SQLite file, in one process and in two; large batches; what the queries read."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ostinato.clock import SystemClock
from ostinato.core.instants import SECOND
from ostinato.core.states import Hold
from ostinato.store.sqlite.statements import statement
from ostinato.store.sqlite.store import SqliteStore
from ostinato.testing.contracts.store_kit import (
    ALL,
    T0,
    ContractClock,
    Owner,
    counts,
    make_instance,
    make_submission,
)


async def _opened(path: Path) -> SqliteStore:
    store = SqliteStore(str(path), clock=ContractClock())
    await store.open()
    return store


async def test_a_commit_of_another_store_ends_the_wait_within_moments(tmp_path: Path) -> None:
    waiting, other = await _opened(tmp_path / "a.db"), await _opened(tmp_path / "a.db")
    clock = SystemClock()
    far_us = waiting._clock.boot_us() + 60 * SECOND
    waiter = asyncio.create_task(waiting.wait_for_change(far_us))
    await asyncio.wait([waiter], timeout=0.1)
    assert not waiter.done()
    began_us = clock.boot_us()
    await other.submit([make_submission(1)])
    await asyncio.wait_for(waiter, 5)
    assert clock.boot_us() - began_us < SECOND
    await waiting.close()
    await other.close()


async def test_a_commit_of_the_owner_does_not_wake_itself(tmp_path: Path) -> None:
    store = await _opened(tmp_path / "a.db")
    owner = await Owner.of(store)
    await owner.submit(make_instance(1))
    far_us = store._clock.boot_us() + 60 * SECOND
    await asyncio.wait_for(store.wait_for_change(far_us), 5)
    waiter = asyncio.create_task(store.wait_for_change(far_us))
    batch = owner.batch()
    await store.commit(batch)
    assert await store.renew_node("node-1")
    await asyncio.wait([waiter], timeout=0.2)
    assert not waiter.done()
    waiter.cancel()
    await store.close()


async def test_c137_parallel_submissions_through_two_stores_agree(tmp_path: Path) -> None:
    stores = [await _opened(tmp_path / "a.db") for _ in range(2)]
    answers = await asyncio.gather(
        *(stores[number % 2].submit([make_submission(number, key="k")]) for number in range(100))
    )
    receipts = [receipt for answer in answers for receipt in answer]
    assert len({receipt.instance_id for receipt in receipts}) == 1
    assert sum(receipt.created for receipt in receipts) == 1
    for store in stores:
        await store.close()


_SUBMITTER = """
import asyncio, sys
from ostinato.clock import SystemClock
from ostinato.store.sqlite.store import SqliteStore
from ostinato.testing.contracts.store_kit import make_submission

async def main():
    store = SqliteStore(sys.argv[1], clock=SystemClock())
    await store.open()
    start = int(sys.argv[2])
    for number in range(start, start + 100):
        await store.submit([make_submission(number)])
    await store.close()

asyncio.run(main())
"""


def _submitter(path: Path, start: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _SUBMITTER, str(path), str(start)])


async def test_processes_that_make_and_fill_one_database_together_lose_nothing(tmp_path: Path) -> None:
    """All open a file that does not exist yet; the owner assigns nothing, and keeps renewing meanwhile."""
    path = tmp_path / "a.db"
    submitters = [_submitter(path, start) for start in (0, 100, 200)]
    store = await _opened(path)
    await Owner.of(store)
    while any(submitter.poll() is None for submitter in submitters):
        assert await store.renew_node("node-1")
        await asyncio.wait(
            [asyncio.create_task(store.wait_for_change(store._clock.boot_us() + SECOND // 100))]
        )
    assert [submitter.returncode for submitter in submitters] == [0, 0, 0]
    assert await counts(store) == {"pending": 300}
    await store.close()


@pytest.mark.parametrize("count", [65_536, 200_000])
async def test_c121_very_many_in_one_call_are_accepted_whole(tmp_path: Path, count: int) -> None:
    store = await _opened(tmp_path / "a.db")
    submissions = [make_submission(number) for number in range(count)]
    receipts = await store.submit(submissions)
    assert all(receipt.created for receipt in receipts)
    assert await counts(store) == {"pending": count}
    await store.close()


async def test_finding_work_costs_the_same_with_many_future_held_and_finished_rows(tmp_path: Path) -> None:
    """Counted in steps of SQLite's machine, not in time."""
    store = await _opened(tmp_path / "a.db")
    owner = await Owner.of(store)
    await owner.submit(*[make_instance(number, priority=number % 10) for number in range(100)])

    async def steps() -> int:
        count = 0

        def step() -> int:
            nonlocal count
            count += 1
            return 0

        await store._work_reader.run("a test", lambda c: c.set_progress_handler(step, 10))
        found = await store.find_work(ALL, now_us=T0, limit=50)
        assert len(found.instances) == 50
        await store._work_reader.run("a test", lambda c: c.set_progress_handler(None, 10))
        return count

    await steps()
    before = await steps()
    await owner.submit(
        *[make_instance(1000 + n, due_us=T0 + 1 + n, priority=n % 10) for n in range(20_000)],
        *[make_instance(50_000 + n, hold=Hold.BUSY) for n in range(5_000)],
    )
    await owner.finish(*[make_instance(80_000 + n) for n in range(5_000)])
    assert await steps() <= before * 1.2
    await store.close()


def _plan(connection: sqlite3.Connection, query: str) -> list[str]:
    names = ("now_us", "limit", "namespace", "task", "after_id")
    values = {name: "0" for name in names}
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("find_due", "instance_due (priority=? AND due_us<?)"),
        ("next_due", "instance_due (priority=? AND due_us>?)"),
        ("find_held", "instance_held (namespace=? AND task=? AND hold=? AND priority=?)"),
        ("find_expired", "instance_expiry (expires_us>? AND expires_us<?)"),
        ("running", "instance_state (state=? AND id>?)"),
        ("live_instances", "instance_live (namespace=? AND task=?)"),
        ("waiting_tasks", "instance_live ((namespace,task)<(?,?))"),
    ],
)
async def test_hot_reads_seek_in_their_index_and_do_not_sort(tmp_path: Path, name: str, index: str) -> None:
    store = await _opened(tmp_path / "a.db")
    await store.close()
    connection = sqlite3.connect(tmp_path / "a.db")
    plan = _plan(connection, statement(name).format(owned="", priority=5, hold="busy", bound="", told=200))
    connection.close()
    assert any(index in step for step in plan), plan
    # Equal expiries may be sorted among themselves.
    assert not any("TEMP B-TREE" in step and "RIGHT PART" not in step for step in plan), plan


async def test_a_busy_event_loop_does_not_starve_the_lanes(tmp_path: Path) -> None:
    """A batch wins the interpreter lock back a few times, not once per row."""
    store = await _opened(tmp_path / "a.db")
    owner = await Owner.of(store)
    await owner.submit(*[make_instance(number) for number in range(500)])
    finding = asyncio.ensure_future(store.find_work(ALL, now_us=T0, limit=500))
    began = time.perf_counter()
    while not finding.done() and time.perf_counter() - began < 10:
        # The loop gets its turn only after much work of its own.
        spin_until = time.perf_counter() + 0.05
        while time.perf_counter() < spin_until:
            pass
        await asyncio.wait([finding], timeout=0)
    assert len((await finding).instances) == 500
    assert time.perf_counter() - began < 0.5
    await store.close()
