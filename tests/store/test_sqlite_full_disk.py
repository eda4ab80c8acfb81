"""What the SQLite adapter makes of a disk that takes no writes: a clear code and nothing half-written."""

from __future__ import annotations

import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.small_disk import SmallDisk, small_disk

from ostinato.clock import SystemClock
from ostinato.errors import UnavailableError
from ostinato.store.batches import CommitBatch, NodeRow
from ostinato.store.sqlite.failures import translate
from ostinato.store.sqlite.store import SqliteStore
from ostinato.testing.contracts.store_kit import (
    T0,
    Owner,
    counts,
    make_assign,
    make_instance,
    make_submission,
)

NODE = NodeRow("node-1", 0, "", T0)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as mounted:
        yield mounted


def _store(path: Path) -> SqliteStore:
    return SqliteStore(str(path), clock=SystemClock())


@contextmanager
def _refused() -> Iterator[None]:
    with pytest.raises(UnavailableError) as caught:
        yield
    assert caught.value.code == "DATABASE_FULL"
    assert "the disk is full" in caught.value.message
    assert "nothing was written" in caught.value.message
    assert caught.value.hint == "free space on the disk of the database"


async def test_c123_every_write_is_refused_whole_and_every_read_goes_on(disk: SmallDisk) -> None:
    store = _store(disk.path / "a.db")
    await store.open()
    owner = await Owner.of(store)
    row = make_instance(1)
    await owner.submit(row)
    disk.fill()
    batch = owner.batch()
    batch.assigns = [make_assign(row)]
    batch.inserts = [make_instance(number, payload=b"x" * 9000) for number in range(2, 40)]
    for _ in range(3):
        with _refused():
            await store.commit(batch)
        with _refused():
            await store.submit([make_submission(n, payload=b"x" * 9000) for n in range(50, 90)])
    assert await owner.get(row.id) == row
    assert await counts(store) == {"pending": 1}
    disk.free()
    report = await store.commit(batch)
    assert not report.unmatched
    assert (await owner.get(row.id)).attempt == 1
    assert await counts(store) == {"pending": 38, "running": 1}
    await store.close()


async def test_c123_a_full_disk_takes_ownership_from_nobody_and_a_lost_lock_or_row_does(
    disk: SmallDisk,
) -> None:
    path = disk.path / "a.db"
    store = _store(path)
    await store.open()
    assert not await store.owns_by_lock("node-1")
    await store.register_node(NODE)
    disk.fill()
    with _refused():
        # The log may have room for a few.
        for _ in range(100):
            assert await store.renew_node("node-1")
    assert await store.owns_by_lock("node-1")
    assert not await store.owns_by_lock("node-2")
    os.rename(disk.path / "a.db.lock", disk.path / "away")
    assert not await store.owns_by_lock("node-1")
    os.rename(disk.path / "away", disk.path / "a.db.lock")
    assert await store.owns_by_lock("node-1")
    disk.free()
    assert await store.renew_node("node-1")
    other = sqlite3.connect(path)
    other.execute("DELETE FROM node")
    other.commit()
    other.close()
    assert not await store.owns_by_lock("node-1")
    await store.close()


async def test_c123_a_node_that_starts_on_a_full_disk_is_refused_and_starts_when_there_is_room(
    disk: SmallDisk,
) -> None:
    """Without tables, and without the files beside the database, which the last to close takes away."""
    path = disk.path / "a.db"
    store = _store(path)
    disk.fill()
    with _refused():
        await store.open()
    disk.free()
    await store.open()
    await store.submit([make_submission(1)])
    await store.close()
    assert not path.with_name("a.db-shm").exists()
    disk.fill()
    with _refused():
        await store.open()
        await store.register_node(NODE)
    await store.close()
    disk.free()
    await store.open()
    await store.register_node(NODE)
    assert await counts(store) == {"pending": 1}
    await store.close()


async def test_c123_a_lock_file_needs_no_room_where_there_was_one(disk: SmallDisk) -> None:
    path = disk.path / "a.db"
    store = _store(path)
    await store.open()
    disk.fill()
    with _refused():
        await store.register_node(NODE)
    await store.close()
    disk.free()
    await store.open()
    await store.register_node(NODE)
    assert (disk.path / "a.db.lock").read_text() == f"{os.getpid()} schedule\n"
    await store.close()


async def test_an_error_of_the_disk_says_that_the_outcome_of_the_write_is_unknown(tmp_path: Path) -> None:
    """A limit on the size of files, which the system answers with an error that is not a full disk."""
    store = _store(tmp_path / "a.db")
    await store.open()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "a.db").stat().st_size, before[1]))
    try:
        with pytest.raises(UnavailableError) as caught:
            await store.submit([make_submission(number, payload=b"x" * 9000) for number in range(200)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.code == "DATABASE_UNAVAILABLE"
    assert "disk I/O error" in caught.value.message
    assert await counts(store) == {}
    await store.submit([make_submission(number, payload=b"x" * 9000) for number in range(200)])
    assert await counts(store) == {"pending": 200}
    await store.close()


@pytest.mark.parametrize(
    ("name", "is_full", "code"),
    [
        ("SQLITE_IOERR_WRITE", True, "DATABASE_FULL"),
        ("SQLITE_IOERR_WRITE", False, "DATABASE_UNAVAILABLE"),
        ("SQLITE_CANTOPEN", True, "DATABASE_FULL"),
        ("SQLITE_CANTOPEN", False, "DATABASE_UNUSABLE"),
        # The frames are in the log: a crash may bring them back.
        ("SQLITE_IOERR_FSYNC", True, "DATABASE_UNAVAILABLE"),
        ("SQLITE_IOERR_SHMSIZE", True, "DATABASE_UNAVAILABLE"),
        ("SQLITE_IOERR_READ", False, "DATABASE_UNAVAILABLE"),
        ("SQLITE_READONLY", True, "DATABASE_UNUSABLE"),
    ],
)
def test_a_failing_file_is_a_full_disk_where_the_disk_says_so(
    disk: SmallDisk, name: str, is_full: bool, code: str
) -> None:
    if is_full:
        disk.fill()
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = getattr(sqlite3, name)
    translated = translate(error, path=str(disk.path / "a.db"), operation="a test")
    assert translated.code == code
    assert ("the disk is full" in translated.message) == (is_full and code != "DATABASE_UNUSABLE")


async def test_a_batch_without_rows_needs_no_room(disk: SmallDisk) -> None:
    store = _store(disk.path / "a.db")
    await store.open()
    owner = await Owner.of(store)
    disk.fill()
    assert not (await store.commit(CommitBatch(proofs=owner.proofs))).lost_partitions
    await store.close()


async def test_the_log_of_a_burst_is_given_back(tmp_path: Path) -> None:
    store = _store(tmp_path / "a.db")
    await store.open()
    await store.submit([make_submission(number, payload=b"x" * 100_000) for number in range(1000)])
    log = tmp_path / "a.db-wal"
    assert log.stat().st_size > 100_000_000
    for number in range(1000, 1003):
        await store.submit([make_submission(number)])
    assert log.stat().st_size <= 64 << 20
    await store.close()
