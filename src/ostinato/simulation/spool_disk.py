"""The disk of a simulated machine, as the spool of one supervisor asks for it."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from ostinato.core.model import Outcome
from ostinato.simulation.machine import Machine
from ostinato.simulation.process import Process
from ostinato.worker.spool_file import Contents


class SimulatedSpoolDisk:
    """The ``SpoolDisk`` of one supervisor."""

    def __init__(self, machine: Machine, process: Process, *, worker_id: str) -> None:
        self._machine = machine
        self._disk = machine.disk
        self._process = process
        self._worker_id = worker_id
        self._locked: dict[int, str] = {}
        self._row_of: dict[str, int] = {}
        self._needed_count: dict[int, int] = {}

    def _lock_number(self, worker_id: str) -> int:
        number = len(self._locked) + 1
        self._locked[number] = worker_id
        return number

    async def take_own_lock(self) -> int | None:
        await self._disk.looking()
        if self._disk.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        while not self._disk.try_lock(self._worker_id, self._process):
            await self._disk.looking()
        return self._lock_number(self._worker_id)

    async def add(self, outcomes: Sequence[Outcome]) -> None:
        self._disk.require_room()
        row = self._disk.write(self._worker_id, outcomes)
        # From here on a process that takes over finds it, though it is on no disk yet.
        await self._disk.syncing()
        self._disk.require_room()
        self._disk.file(self._worker_id).sync()
        self._row_of.update((outcome.attempt_id, row) for outcome in outcomes)
        self._needed_count[row] = len(outcomes)

    async def forget(self, attempt_ids: Sequence[str]) -> None:
        for attempt_id in attempt_ids:
            row = self._row_of.pop(attempt_id, None)
            if row is not None:
                self._needed_count[row] -= 1
        done = [row for row, needed_count in self._needed_count.items() if not needed_count]
        if not done:
            return
        self._disk.require_room()
        file = self._disk.file(self._worker_id)
        for row in done:
            file.cached.pop(row, None)
            del self._needed_count[row]
        await self._disk.syncing()
        file.sync()

    async def set_own_aside(self) -> Path:
        await self._disk.looking()
        self._row_of.clear()
        self._needed_count.clear()
        self._disk.delete(self._worker_id)
        return Path(f"{self._worker_id}.db.corrupt")

    async def close(self, lock: int | None, *, is_empty: bool) -> None:
        await self._disk.looking()
        if lock is None:
            return
        if is_empty:
            self._disk.delete(self._worker_id)
            self._disk.delete_lock(self._worker_id)
        self._disk.unlock(self._worker_id, self._process)

    async def other_workers(self) -> list[str]:
        await self._disk.looking()
        return [worker_id for worker_id in self._disk.names() if worker_id != self._worker_id]

    async def take_lock(self, worker_id: str) -> int | None:
        await self._disk.looking()
        if not self._disk.try_lock(worker_id, self._process):
            return None
        return self._lock_number(worker_id)

    def release(self, lock: int) -> None:
        self._disk.unlock(self._locked.pop(lock), self._process)

    async def end_processes(self, worker_id: str) -> str:
        await self._disk.looking()
        self._machine.kill_marked(worker_id)
        return ""

    async def remove_directory(self, worker_id: str) -> None:
        await self._disk.looking()

    async def read(self, worker_id: str) -> Contents:
        await self._disk.looking()
        return self._disk.read(worker_id)

    async def set_aside(self, worker_id: str) -> Path:
        await self._disk.looking()
        self._disk.delete(worker_id)
        return Path(f"{worker_id}.db.corrupt")

    async def remove(self, worker_id: str) -> None:
        await self._disk.looking()
        self._disk.delete(worker_id)
        self._disk.delete_lock(worker_id)
