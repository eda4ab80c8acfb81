"""The simulated disk gives what the real one gives, and loses what was not synced."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ostinato.core.model import Outcome
from ostinato.simulation.event_loop import SimulatedLoop
from ostinato.simulation.machine import Machine
from ostinato.simulation.spool_disk import SimulatedSpoolDisk
from ostinato.worker.spool_disk import SpoolDirectory, SpoolDisk


def outcome(attempt_id: str) -> Outcome:
    return Outcome(
        instance_id=f"i-{attempt_id}",
        attempt=1,
        attempt_id=attempt_id,
        started_us=1,
        finished_us=2,
        result=b"1",
    )


def ids(outcomes: list[Outcome]) -> list[str]:
    return [item.attempt_id for item in outcomes]


class RealDisks:
    """Disks of workers that share a directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def disk_of(self, worker_id: str) -> SpoolDisk:
        return SpoolDirectory(self._folder, worker_id=worker_id)

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        asyncio.run(story)


class SimulatedDisks:
    """Disks of workers on one machine."""

    def __init__(self) -> None:
        self.loop = SimulatedLoop(1)
        self.machine = Machine(self.loop, "m")

    def disk_of(self, worker_id: str) -> SpoolDisk:
        return SimulatedSpoolDisk(self.machine, self.machine.process("supervisor"), worker_id=worker_id)

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.loop.run(story)
        self.loop.close()


Disks = RealDisks | SimulatedDisks


@pytest.fixture(params=["real", "simulated"])
def disks(request: pytest.FixtureRequest, tmp_path: Path) -> Disks:
    return RealDisks(tmp_path) if request.param == "real" else SimulatedDisks()


def told(disks: Disks, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    disks.run(story())


def test_a_later_worker_finds_what_was_added_and_not_what_was_forgotten(disks: Disks) -> None:
    async def story() -> None:
        first, second = disks.disk_of("a"), disks.disk_of("b")
        lock = await first.take_own_lock()
        await first.add([outcome("1"), outcome("2")])
        await first.add([outcome("3")])
        await first.forget(["3", "unknown"])
        await first.forget(["1"])
        assert await second.take_own_lock() is not None
        assert await second.other_workers() == ["a"]
        assert await second.take_lock("a") is None
        await first.close(lock, is_empty=False)
        taken = await second.take_lock("a")
        assert taken is not None
        contents = await second.read("a")
        assert ids(contents.outcomes) == ["1", "2"]
        assert contents.problem == ""
        await second.end_processes("a")
        await second.remove_directory("a")
        await second.remove("a")
        second.release(taken)
        assert await second.other_workers() == []
        assert ids((await second.read("a")).outcomes) == []

    told(disks, story)


def test_an_empty_spool_leaves_nothing(disks: Disks) -> None:
    async def story() -> None:
        first, second = disks.disk_of("a"), disks.disk_of("b")
        lock = await first.take_own_lock()
        await first.add([])
        await first.add([outcome("1")])
        await first.forget(["1"])
        await first.close(lock, is_empty=True)
        await second.take_own_lock()
        assert await second.other_workers() == []

    told(disks, story)


def test_a_damaged_spool_is_set_aside_under_another_name(disks: Disks) -> None:
    async def story() -> None:
        first, second = disks.disk_of("a"), disks.disk_of("b")
        lock = await first.take_own_lock()
        await first.add([outcome("1")])
        assert (await first.set_own_aside()).name == "a.db.corrupt"
        await first.add([outcome("2")])
        await first.close(lock, is_empty=False)
        await second.take_own_lock()
        taken = await second.take_lock("a")
        assert taken is not None
        assert ids((await second.read("a")).outcomes) == ["2"]
        assert (await second.set_aside("a")).suffix == ".corrupt"
        assert ids((await second.read("a")).outcomes) == []
        second.release(taken)

    told(disks, story)


def test_a_lock_ends_with_the_last_process_that_holds_it() -> None:
    disks = SimulatedDisks()
    machine = disks.machine

    async def story() -> None:
        owner, guardian, other = (machine.process(role) for role in ("supervisor", "guardian", "other"))
        first = SimulatedSpoolDisk(machine, owner, worker_id="a")
        second = SimulatedSpoolDisk(machine, other, worker_id="b")
        await first.take_own_lock()
        machine.disk.share_lock("a", guardian)
        owner.crash()
        assert await second.take_lock("a") is None
        guardian.crash()
        assert await second.take_lock("a") is not None

    disks.run(story())


def test_a_full_disk_refuses_as_sqlite_does() -> None:
    disks = SimulatedDisks()

    async def story() -> None:
        disk = disks.disk_of("a")
        disks.machine.disk.is_full = True
        with pytest.raises(OSError, match="No space"):
            await disk.take_own_lock()
        disks.machine.disk.is_full = False
        await disk.take_own_lock()
        disks.machine.disk.is_full = True
        with pytest.raises(sqlite3.OperationalError, match="full"):
            await disk.add([outcome("1")])
        disks.machine.disk.is_full = False
        await disk.add([outcome("2")])
        assert ids((await disk.read("a")).outcomes) == ["2"]

    disks.run(story())


@pytest.mark.parametrize("seed", range(5))
def test_what_was_durable_survives_the_loss_of_power_and_the_rest_may(seed: int) -> None:
    disks = SimulatedDisks()
    disks.machine.disk._rng = Random(seed)

    async def story() -> None:
        disk = disks.disk_of("a")
        await disk.take_own_lock()
        await disk.add([outcome("durable")])
        under_way = asyncio.create_task(disk.add([outcome("under way")]))
        await asyncio.wait([under_way], timeout=0.0001)
        assert not under_way.done()
        disks.machine.crash()
        later = disks.disk_of("b")
        await later.take_own_lock()
        found = ids((await later.read("a")).outcomes)
        assert found in (["durable"], ["durable", "under way"])
        assert await later.take_lock("a") is not None

    disks.run(story())


def test_a_process_that_dies_while_it_writes_has_written() -> None:
    """It is in the machine's memory, and whoever takes over reads it there."""
    disks = SimulatedDisks()

    async def story() -> None:
        process = disks.machine.process("supervisor")
        disk = SimulatedSpoolDisk(disks.machine, process, worker_id="a")
        process.spawn(disk.add([outcome("1")]))
        await asyncio.wait([disks.loop.create_future()], timeout=0.0001)
        process.crash()
        assert ids((await disks.disk_of("b").read("a")).outcomes) == ["1"]

    disks.run(story())


def test_another_disk_has_nothing() -> None:
    disks = SimulatedDisks()

    async def story() -> None:
        disk = disks.disk_of("a")
        await disk.take_own_lock()
        await disk.add([outcome("1")])
        disks.machine.crash(keeps_disk=False)
        assert await disks.disk_of("b").other_workers() == []

    disks.run(story())
