"""The durable spool: what it promises survives kill -9, full disks, damaged files and rival workers (I2)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ostinato.core.model import Outcome
from ostinato.errors import UserError
from ostinato.worker.process_tree import MARKER_VARIABLE
from ostinato.worker.spool import Spool
from ostinato.worker.spool_disk import SpoolDirectory
from ostinato.worker.spool_file import SpoolFile, lock_path, read_spool, take_lock
from tests.worker.spool_stories import (
    Kept,
    WorkerProcess,
    ids_of,
    kept,
    leave,
    names_in,
    outcome,
    outcomes,
    write,
)

RESULT_BYTES = 1024 * 1024


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.message == name]


# ── durability ────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_a_worker_killed_before_sending_had_spooled_a_later_one_sends_in_its_order(
    tmp_path: Path,
) -> None:
    leave(tmp_path, "dead", count=1000)
    assert ids_of(read_spool(tmp_path / "spool" / "dead.db").outcomes) == ids_of(outcomes(1000, "dead"))
    async with kept(tmp_path) as made:
        await made.spool.take_over()
        assert made.sent() == outcomes(1000, "dead")
        assert names_in(tmp_path) == ["own.db", "own.db-wal", "own.lock"]
        assert made.outbox.holds("dead-0")


async def test_every_part_of_an_outcome_and_a_result_of_the_greatest_size_come_back(tmp_path: Path) -> None:
    big = outcome("big", result=b'"' + b"x" * (RESULT_BYTES - 2) + b'"')
    unstarted = Outcome(
        instance_id="i",
        attempt=3,
        attempt_id="u",
        started_us=None,
        finished_us=5,
        unstarted_reason="no\0 room",
    )
    async with kept(tmp_path, "first") as made:
        made.outbox.add_outcomes([big, unstarted])
    assert read_spool(tmp_path / "spool" / "first.db").outcomes == [big, unstarted]


async def test_outcomes_that_gather_during_a_commit_are_the_next_group(tmp_path: Path) -> None:
    made = Kept(tmp_path)
    await made.open()
    made.outbox.add_outcomes(outcomes(1, "first"))
    # Until the commit of the first is under way.
    while made.spool._has_work.is_set():
        await made.clock.sleep_until_us(0)
    for item in outcomes(100, "later"):
        made.outbox.add_outcomes([item])
    await made.spool.is_safe.wait()
    assert made.sent() == outcomes(1, "first") + outcomes(100, "later")
    await made.spool.close()
    connection = sqlite3.connect(made.spool.path)
    bodies = [body for (body,) in connection.execute("select body from outcomes order by row")]
    connection.close()
    groups = [msgspec.msgpack.decode(body, type=list[Outcome]) for body in bodies]
    # The empty one was the trial at the start.
    assert [ids_of(group) for group in groups] == [[], ["first-0"], ids_of(outcomes(100, "later"))]


async def test_an_acknowledged_outcome_is_deleted_and_an_empty_spool_leaves_no_file(tmp_path: Path) -> None:
    async with kept(tmp_path, "first") as made:
        for item in outcomes(3):
            made.outbox.add_outcomes([item])
            await made.spool.is_safe.wait()
        made.acknowledge(["a-0", "a-2"])
    assert ids_of(read_spool(made.spool.path).outcomes) == ["a-1"]
    async with kept(tmp_path, "second") as made:
        await made.spool.take_over()
        made.acknowledge(["a-1"])
    assert names_in(tmp_path) == []


def test_a_group_is_deleted_once_all_of_it_is_acknowledged(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "w.db")
    file.add(outcomes(2, "a"))
    file.add(outcomes(2, "b"))
    file.forget(["a-0", "unknown", "b-0", "b-1"])
    assert ids_of(_held_by(file)) == ["a-0", "a-1"]
    file.forget(["a-0", "a-1"])
    assert _held_by(file) == []


def _held_by(file: SpoolFile) -> list[Outcome]:
    file.close()
    return read_spool(file.path).outcomes


def test_a_group_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    """A commit may be told as failed and be there nevertheless."""
    file = SpoolFile(tmp_path / "w.db")
    file.add(outcomes(2))
    file.add([outcome("a-1", result=b"2"), outcome("a-2")])
    assert _held_by(file) == outcomes(3)


def test_what_the_guardian_reads_with_needs_neither_event_loop_nor_network() -> None:
    code = (
        "import sys, ostinato.worker.spool_file\n"
        "print(*[name for name in ('asyncio', 'grpc', 'logging') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# ── whose it is ───────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_left_of_a_dead_worker_and_its_guardian_is_ended_and_told_with_what_was_spooled(
    tmp_path: Path,
) -> None:
    """Both were killed: only its mark says whose a process is."""
    async with kept(tmp_path, "first") as made:
        made.outbox.add_outcomes(outcomes(1))
    left, other = (
        subprocess.Popen(["sleep", "600"], env={MARKER_VARIABLE: mark})  # noqa: ASYNC220 - at once
        for mark in ("first.a1", "fir.a1")
    )
    try:
        async with kept(tmp_path, "second") as made:
            await made.spool.take_over()
            assert made.spool.ended_workers == ["first"]
            assert left.wait() == -signal.SIGKILL
            assert other.poll() is None
            made.acknowledge(["a-0"])
    finally:
        for process in (left, other):
            process.kill()
            process.wait()
    assert names_in(tmp_path) == []


async def test_the_spool_of_a_living_worker_is_left_alone(tmp_path: Path) -> None:
    process = WorkerProcess(tmp_path, "alive", count=3)
    try:
        process.wait_until_ready()
        async with kept(tmp_path) as made:
            await made.spool.take_over()
            assert made.outbox.unacknowledged == []
    finally:
        process.kill()
    assert ids_of(read_spool(tmp_path / "spool" / "alive.db").outcomes) == ids_of(outcomes(3, "alive"))


async def test_a_spool_is_free_only_when_supervisor_and_guardian_are_gone(tmp_path: Path) -> None:
    process = WorkerProcess(tmp_path, "dead", count=3)
    guardian = 0
    try:
        process.wait_until_ready()
        process.tell("guardian")
        guardian = int(process.line()[0])
        process.kill()
        async with kept(tmp_path) as made:
            await made.spool.take_over()
            assert made.outbox.unacknowledged == []
            os.kill(guardian, signal.SIGKILL)
            guardian = 0
            # Nobody asks: it looks by itself every few seconds.
            await made.until(lambda: ids_of(made.outbox.unacknowledged) == ids_of(outcomes(3, "dead")))
    finally:
        process.kill()
        if guardian:
            os.kill(guardian, signal.SIGKILL)


async def test_of_workers_that_take_over_at_once_one_gets_each_outcome(tmp_path: Path) -> None:
    left = ["dead1", "dead2", "dead3"]
    for name in left:
        leave(tmp_path, name, count=50)
    rivals = [WorkerProcess(tmp_path, f"rival{number}", count=0) for number in range(3)]
    try:
        for rival in rivals:
            rival.wait_until_ready()
        for rival in rivals:
            rival.tell("take over")
        found = [set(rival.line()) for rival in rivals]
        for rival in rivals:
            rival.tell("what do you hold")
        found = [got | set(rival.line()) for got, rival in zip(found, rivals, strict=True)]
        expected = {attempt_id for name in left for attempt_id in ids_of(outcomes(50, name))}
        assert set().union(*found) == expected
        assert sum(len(got) for got in found) == len(expected)
    finally:
        for rival in rivals:
            rival.kill()
    # All of it is durable at the rivals' own, and nothing of it twice.
    spooled = [item for name in names_in(tmp_path) if name.endswith(".db") for item in _read(tmp_path, name)]
    assert sorted(spooled) == sorted(expected)


def _read(folder: Path, name: str) -> list[str]:
    return ids_of(read_spool(folder / "spool" / name).outcomes)


async def test_scratch_directories_go_with_their_worker_and_not_before(tmp_path: Path) -> None:
    process = WorkerProcess(tmp_path, "other", count=1)
    scratch = tmp_path / "workers" / "other" / "attempts" / "a1"
    nobodys = tmp_path / "workers" / "nobody" / "attempts" / "a2"
    try:
        process.wait_until_ready()
        for path in (scratch, nobodys):
            path.mkdir(parents=True)
            (path / "big").write_text("x")
        async with kept(tmp_path) as made:
            async with asyncio.timeout(60):
                # The other worker looks too, and may be at it.
                while nobodys.exists():
                    await made.spool.take_over()
            assert scratch.exists()
            process.kill()
            await made.spool.take_over()
            assert not (tmp_path / "workers" / "other").exists()
    finally:
        process.kill()


def test_a_lock_that_was_deleted_under_a_waiting_worker_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "w.lock"
    first = take_lock(path, wait=True)
    assert first is not None
    assert take_lock(path, wait=False) is None
    path.unlink()
    second = take_lock(path, wait=True)
    assert second is not None
    assert path.exists()
    os.close(first)
    assert take_lock(path, wait=False) is None
    os.close(second)


async def test_a_directory_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file")
    made = Kept(tmp_path)
    with pytest.raises(UserError, match="spool cannot be used") as caught:
        await made.open()
    assert (caught.value.code, caught.value.field) == ("INVALID_SETTING", "--data-dir")
    await made.spool.close()


# ── damage ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("what", ["garbage", "foreign", "another form"])
async def test_a_file_that_is_no_spool_is_set_aside_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    write(tmp_path, "good", outcomes(2, "good"))
    path = write(tmp_path, "bad", outcomes(2, "bad"))
    if what == "garbage":
        path.write_bytes(b"this is no database" * 1000)
    else:
        connection = sqlite3.connect(path)
        number = 0 if what == "foreign" else 99
        connection.execute(f"pragma {'application_id' if what == 'foreign' else 'user_version'} = {number}")
        connection.close()
    content = path.read_bytes()
    async with kept(tmp_path) as made:
        await made.spool.take_over()
        assert ids_of(made.outbox.unacknowledged) == ids_of(outcomes(2, "good"))
    assert "bad.lock" not in names_in(tmp_path)
    assert path.with_name("bad.db.corrupt").read_bytes() == content
    (told,) = events(caplog, "spool_damaged")
    assert told.levelno == logging.ERROR
    assert told.__dict__["path"] == str(path)


async def test_outcomes_beside_an_unreadable_one_are_sent_and_the_file_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, "bad", *([item] for item in outcomes(3, "bad")))
    connection = sqlite3.connect(path)
    connection.execute("update outcomes set body = x'00ff' where row = 2")
    connection.commit()
    connection.close()
    contents = read_spool(path)
    assert ids_of(contents.outcomes) == ["bad-0", "bad-2"]
    assert "row 2 cannot be read" in contents.problem
    async with kept(tmp_path) as made:
        await made.spool.take_over()
        assert ids_of(made.outbox.unacknowledged) == ["bad-0", "bad-2"]
        made.acknowledge(["bad-0", "bad-2"])
    assert names_in(tmp_path) == ["bad.db.corrupt"]
    assert len(events(caplog, "spool_damaged")) == 1


async def test_a_spool_that_cannot_be_opened_for_now_stays_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "spool" / "odd.db"
    path.mkdir(parents=True)
    async with kept(tmp_path) as made:
        await made.spool.take_over()
        await made.spool.take_over()
        assert path.exists()
        (told,) = events(caplog, "spool_not_taken_over")
        assert told.__dict__["path"] == str(path)
        path.rmdir()
        write(tmp_path, "odd", outcomes(1))
        await made.spool.take_over()
        assert ids_of(made.outbox.unacknowledged) == ["a-0"]


async def test_the_own_file_when_damaged_is_written_anew_from_memory(tmp_path: Path) -> None:
    made = Kept(tmp_path)
    await made.open()
    made.outbox.add_outcomes(outcomes(3))
    await made.spool.is_safe.wait()
    disk = made.spool._disk
    assert isinstance(disk, SpoolDirectory)
    await disk.in_thread(disk.file.close)
    made.spool.path.write_bytes(b"overwritten by somebody" * 500)
    made.outbox.add_outcomes(outcomes(1, "later"))
    await made.until(lambda: not made.spool.is_writable)
    await made.until(lambda: made.spool.is_writable)
    await made.spool.close()
    assert sorted(ids_of(read_spool(made.spool.path).outcomes)) == ["a-0", "a-1", "a-2", "later-0"]
    assert "own.db.corrupt" in names_in(tmp_path)


def test_two_locks_of_one_spool_are_one_file(tmp_path: Path) -> None:
    spool = Spool(tmp_path, worker_id="w", clock=Kept(tmp_path).clock)
    assert lock_path(spool.path) == tmp_path / "spool" / "w.lock"
