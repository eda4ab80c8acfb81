"""A worker on a disk that fills up: results are sent from memory, no new work, and it recovers by itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.small_disk import SmallDisk, small_disk

from ostinato.clock import SystemClock
from ostinato.core.definition import ShellSpec
from ostinato.core.instants import MINUTE
from ostinato.testing.contracts.executor_harness import attempt_of, opened, task_spec
from ostinato.worker.executors.protocol import StopReason
from ostinato.worker.executors.shell import ShellExecutor
from ostinato.worker.spool_file import read_spool
from tests.worker.spool_stories import Kept, ids_of, kept, names_in, outcome, outcomes


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as mounted:
        yield mounted


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.message == name]


async def test_c123_on_a_full_disk_outcomes_are_sent_from_memory_and_written_when_there_is_room(
    disk: SmallDisk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    made = Kept(disk.path)
    await made.open()
    made.outbox.add_outcomes(outcomes(3, "before"))
    await made.spool.is_safe.wait()
    disk.fill()
    lost_if_lost = [outcome(f"full-{n}", result=b"1" * 100_000) for n in range(20)]
    made.outbox.add_outcomes(lost_if_lost)
    await made.until(lambda: not made.spool.is_writable)
    # Sent although not durable: a node that is there is the safer place.
    assert made.sent() == outcomes(3, "before") + lost_if_lost
    made.outbox.add_outcomes(outcomes(1, "during"))
    assert made.sent() == outcomes(1, "during")
    # What is acknowledged needs no disk any more.
    made.acknowledge(["full-0", "full-1"])
    assert "spool cannot be written" in made.credits.pause_reason
    made.credits.take(made.stream, "async")
    made.credits.give_back("async")
    assert made.credits.granted(made.stream) == {"async": 2}
    disk.free()
    await made.until(lambda: made.spool.is_writable)
    assert made.spool.is_safe.is_set()
    assert made.credits.granted(made.stream) == {"async": 3}
    assert made.credits.pause_reason == ""
    (told,) = events(caplog, "spool_unwritable")
    assert "full" in told.__dict__["reason"]
    assert told.__dict__["held_count"] == 20
    assert told.__dict__["held_bytes"] > 2_000_000
    assert len(events(caplog, "spool_writable")) == 1
    await made.spool.close()
    held = [*ids_of(outcomes(3, "before")), *(f"full-{n}" for n in range(2, 20)), "during-0"]
    assert ids_of(read_spool(made.spool.path).outcomes) == held


async def test_c123_a_worker_that_starts_on_a_full_disk_grants_nothing_until_there_is_room(
    disk: SmallDisk,
) -> None:
    (disk.path / "spool").mkdir()
    disk.fill()
    async with kept(disk.path) as made:
        assert not made.spool.is_writable
        made.credits.take(made.stream, "async")
        made.credits.give_back("async")
        assert made.credits.granted(made.stream) == {"async": 2}
        disk.free()
        await made.until(lambda: made.spool.is_writable)
        assert made.credits.granted(made.stream) == {"async": 3}


async def test_c123_a_full_disk_leaves_the_spools_of_others_where_they_are(disk: SmallDisk) -> None:
    async with kept(disk.path, "dead") as made:
        left = [outcome(f"big-{n}", result=b"1" * 100_000) for n in range(20)]
        made.outbox.add_outcomes(left)
    async with kept(disk.path) as made:
        disk.fill()
        scratch = disk.path / "workers" / "dead" / "attempts"
        scratch.mkdir(parents=True)
        await made.spool.take_over()
        assert not scratch.exists()
        # Read, and sent from memory; the file stays, as it is the only durable place.
        await made.until(lambda: not made.spool.is_writable)
        assert ids_of(made.outbox.unacknowledged) == ids_of(left)
        assert ids_of(read_spool(disk.path / "spool" / "dead.db").outcomes) == ids_of(left)
        disk.free()
        await made.until(lambda: made.spool.is_writable)
        await made.spool.take_over()
        assert "dead.db" not in names_in(disk.path)
    assert ids_of(read_spool(made.spool.path).outcomes) == ids_of(left)


async def test_c123_what_neither_disk_nor_node_took_is_told_at_the_end(
    disk: SmallDisk, caplog: pytest.LogCaptureFixture
) -> None:
    made = Kept(disk.path)
    await made.open()
    disk.fill()
    made.outbox.add_outcomes([outcome("big", result=b"1" * 1_000_000)])
    await made.until(lambda: not made.spool.is_writable)
    await made.spool.close()
    (told,) = events(caplog, "outcomes_not_spooled")
    assert told.__dict__["held_count"] == 1


async def test_c123_a_command_without_room_for_its_scratch_directory_is_refused_not_failed(
    disk: SmallDisk,
) -> None:
    executor = ShellExecutor(clock=SystemClock(), data_dir=disk.path)
    start = attempt_of(task_spec("command", ShellSpec(command="true")), b'"' + b"x" * 500_000 + b'"')
    async with opened(executor) as sink:
        disk.fill()
        executor.start([start])
        finished = await sink.end_of(start.assignment.attempt_id)
        assert finished.failure is None
        assert finished.started_us is None
        assert finished.refused == "the worker has no room for its scratch directory: No space left on device"
        assert list(disk.path.glob("attempts/*")) == []
        disk.free()
        del sink.ends[start.assignment.attempt_id]
        executor.start([start])
        assert (await sink.end_of(start.assignment.attempt_id)).result is not None


async def test_c123_a_command_that_waits_for_room_can_be_stopped(disk: SmallDisk) -> None:
    class Stopped(SystemClock):
        """Its rest would never end."""

        async def sleep_until_us(self, boot_us: int) -> None:
            await super().sleep_until_us(boot_us + 10 * MINUTE)

    executor = ShellExecutor(clock=Stopped(), data_dir=disk.path)
    start = attempt_of(task_spec("command", ShellSpec(command="true")), b'"' + b"x" * 500_000 + b'"')
    async with opened(executor) as sink:
        disk.fill()
        executor.start([start])
        executor.stop(start.assignment.attempt_id, reason=StopReason.DRAIN, grace_us=0)
        assert (await sink.end_of(start.assignment.attempt_id)).refused
