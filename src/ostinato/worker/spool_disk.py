"""What a spool asks of its disk, and the directory that gives it.

Every call waits for the disk in a thread, so that a slow one holds nothing up. A worker's files are its own
as long as somebody holds its lock; see ``spool_file.py`` for their names and order.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from ostinato.core.model import Outcome
from ostinato.worker.engine.leftovers import end_containers, may_have_containers
from ostinato.worker.process_tree import kill_marked
from ostinato.worker.spool_file import (
    Contents,
    SpoolFile,
    lock_path,
    read_spool,
    remove_spool,
    set_aside,
    take_lock,
)

Value = TypeVar("Value")


class SpoolDisk(Protocol):
    """The files of one spool and of its neighbours. Calls raise ``OSError`` and ``sqlite3.Error``."""

    async def take_own_lock(self) -> int | None:
        """Make the directory and wait for the own lock; its descriptor, inheritable."""
        ...

    async def add(self, outcomes: Sequence[Outcome]) -> None:
        """As ``SpoolFile.add``: on the disk, durable, when it returns."""
        ...

    async def forget(self, attempt_ids: Sequence[str]) -> None:
        """As ``SpoolFile.forget``."""
        ...

    async def set_own_aside(self) -> Path:
        """As ``SpoolFile.set_aside``."""
        ...

    async def close(self, lock: int | None, *, is_empty: bool) -> None:
        """Give everything back, the own lock last; without it nothing is deleted, nor if it is not empty."""
        ...

    async def other_workers(self) -> list[str]:
        """Ids of workers that have left something here, living ones among them; oldest first."""
        ...

    async def take_lock(self, worker_id: str) -> int | None:
        """Descriptor of another worker's lock; None while somebody has it."""
        ...

    def release(self, lock: int) -> None:
        """Give a lock back."""
        ...

    async def end_processes(self, worker_id: str) -> str:
        """Kill what still runs of a worker that is gone, containers too; why some may run on, or empty."""
        ...

    async def remove_directory(self, worker_id: str) -> None:
        """Delete what a worker that is gone has kept while it lived."""
        ...

    async def read(self, worker_id: str) -> Contents:
        """As ``read_spool``, of a worker whose lock is held here."""
        ...

    async def set_aside(self, worker_id: str) -> Path:
        """Rename the damaged file of a worker whose lock is held here."""
        ...

    async def remove(self, worker_id: str) -> None:
        """Delete the file and the lock of a worker whose lock is held here."""
        ...


class SpoolDirectory:
    """``DATA_DIR/spool`` and ``DATA_DIR/workers``, seen from one worker."""

    def __init__(self, data_dir: Path, *, worker_id: str) -> None:
        self._worker_id = worker_id
        self._spools = data_dir / "spool"
        self._directories = data_dir / "workers"
        self.file = SpoolFile(self._path(worker_id))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ostinato-spool")

    async def in_thread(self, work: Callable[[], Value]) -> Value:
        """Run `work` in the one thread that uses the file."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _path(self, worker_id: str) -> Path:
        return self._spools / f"{worker_id}.db"

    async def take_own_lock(self) -> int | None:
        return await asyncio.to_thread(self._take_own_lock)

    def _take_own_lock(self) -> int | None:
        self._spools.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = take_lock(lock_path(self.file.path), wait=True)
        if descriptor is not None:
            os.set_inheritable(descriptor, True)
        return descriptor

    async def add(self, outcomes: Sequence[Outcome]) -> None:
        await self.in_thread(lambda: self.file.add(outcomes))

    async def forget(self, attempt_ids: Sequence[str]) -> None:
        await self.in_thread(lambda: self.file.forget(attempt_ids))

    async def set_own_aside(self) -> Path:
        return await self.in_thread(self.file.set_aside)

    async def close(self, lock: int | None, *, is_empty: bool) -> None:
        await asyncio.to_thread(self._close, lock, is_empty=is_empty)

    def _close(self, lock: int | None, *, is_empty: bool) -> None:
        self._thread.shutdown()
        self.file.close()
        if lock is None:
            return
        try:
            if is_empty:
                remove_spool(self.file.path)
                if not may_have_containers(self._directories / self._worker_id):
                    self._remove_directory(self._worker_id)
                lock_path(self.file.path).unlink(missing_ok=True)
        finally:
            os.close(lock)

    async def other_workers(self) -> list[str]:
        return await asyncio.to_thread(self._other_workers)

    def _other_workers(self) -> list[str]:
        found = {path.stem for path in self._spools.iterdir() if path.suffix in (".lock", ".db")}
        if self._directories.is_dir():
            found.update(path.name for path in self._directories.iterdir())
        return sorted(found - {self._worker_id})

    async def take_lock(self, worker_id: str) -> int | None:
        return await asyncio.to_thread(take_lock, lock_path(self._path(worker_id)), wait=False)

    def release(self, lock: int) -> None:
        os.close(lock)

    async def end_processes(self, worker_id: str) -> str:
        await asyncio.to_thread(kill_marked, worker_id)
        return await asyncio.to_thread(end_containers, self._directories / worker_id, worker_id)

    async def remove_directory(self, worker_id: str) -> None:
        await asyncio.to_thread(self._remove_directory, worker_id)

    def _remove_directory(self, worker_id: str) -> None:
        # What cannot be deleted is tried again by whoever looks next: it has no lock.
        shutil.rmtree(self._directories / worker_id, ignore_errors=True)

    async def read(self, worker_id: str) -> Contents:
        return await asyncio.to_thread(read_spool, self._path(worker_id))

    async def set_aside(self, worker_id: str) -> Path:
        return await asyncio.to_thread(set_aside, self._path(worker_id))

    async def remove(self, worker_id: str) -> None:
        path = self._path(worker_id)
        await asyncio.to_thread(remove_spool, path)
        lock_path(path).unlink(missing_ok=True)
