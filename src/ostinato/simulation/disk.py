"""What a machine keeps over a crash, and what it loses because it was not synced.

::

    write ──► cache (seen by every process of the machine) ──fsync──► disk (survives the loss of power)

A process that dies takes nothing of the cache with it. A machine that loses power loses, of what was not
synced, all that came after a point that is drawn; a deletion that was not synced may be undone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from random import Random

from ostinato.core.model import Outcome
from ostinato.simulation.event_loop import SimulatedLoop, wake
from ostinato.simulation.process import Process
from ostinato.worker.spool_file import Contents

#: A call that syncs, and one that does not: at least, at most.
_SYNC_US_MIN, _SYNC_US_MAX = 200, 8_000
_LOOK_US_MIN, _LOOK_US_MAX = 20, 500


class _File:
    """One spool: rows of outcomes by their number, as the machine sees them and as the disk has them."""

    def __init__(self) -> None:
        self.cached: dict[int, list[Outcome]] = {}
        self.synced: dict[int, list[Outcome]] = {}
        #: It was deleted, and that may not have reached the disk.
        self.is_deleted = False

    def sync(self) -> None:
        self.synced = dict(self.cached)

    def lose_power(self, rng: Random) -> None:
        """A part of what was not synced has reached the disk all the same."""
        unsynced = [row for row in self.cached if row not in self.synced]
        kept = set(unsynced[: int(rng.random() * (len(unsynced) + 1))])
        rows = {row: body for row, body in self.cached.items() if row in self.synced or row in kept}
        if self.is_deleted or rng.random() < 0.5:
            # Deletions were not synced either.
            rows = {**self.synced, **rows}
        self.cached, self.synced = rows, dict(rows)
        self.is_deleted = False


class MachineDisk:
    """The spools of one machine, by worker id. Faults come and go by its methods."""

    def __init__(self, loop: SimulatedLoop, rng: Random) -> None:
        self._loop = loop
        self._rng = rng
        self._files: dict[str, _File] = {}
        #: Processes that hold the lock of a worker; there is a lock file as long as there is an entry.
        self._locks: dict[str, dict[Process, None]] = {}
        self._row_count = 0
        #: Writes fail for want of room.
        self.is_full = False
        #: Every call takes so much longer, in true microseconds.
        self.extra_us = 0

    # ── faults ────────────────────────────────────────────────────────────────────────────────────────

    def lose_power(self) -> None:
        """What was not synced is lost, or a part of it; locks are nobody's."""
        for worker_id, file in list(self._files.items()):
            was_deleted = file.is_deleted
            file.lose_power(self._rng)
            if was_deleted and (not file.cached or self._rng.random() < 0.5):
                del self._files[worker_id]
        for holders in self._locks.values():
            holders.clear()

    def wipe(self) -> None:
        """The machine comes back with another disk."""
        self._files.clear()
        self._locks.clear()

    # ── what processes do ─────────────────────────────────────────────────────────────────────────────

    async def syncing(self) -> None:
        """The time of a call that syncs."""
        await self._takes(_SYNC_US_MIN, _SYNC_US_MAX)

    async def looking(self) -> None:
        """The time of a call that does not."""
        await self._takes(_LOOK_US_MIN, _LOOK_US_MAX)

    async def _takes(self, us_min: int, us_max: int) -> None:
        done = self._loop.create_future()
        took_us = us_min + int(self._rng.random() * (us_max - us_min)) + self.extra_us
        handle = self._loop.call_at_us(self._loop.true_us + took_us, wake, done)
        try:
            await done
        finally:
            handle.cancel()

    def require_room(self) -> None:
        """Raise as SQLite does when there is no room."""
        if self.is_full:
            raise sqlite3.OperationalError("database or disk is full")

    def write(self, worker_id: str, outcomes: Sequence[Outcome]) -> int:
        """Write a row into the cache; its number."""
        self.require_room()
        self._row_count += 1
        self.file(worker_id).cached[self._row_count] = list(outcomes)
        return self._row_count

    def file(self, worker_id: str) -> _File:
        """The file of a worker, made if it was missing."""
        found = self._files.get(worker_id)
        if found is None or found.is_deleted:
            found = self._files[worker_id] = _File()
        return found

    def has_file(self, worker_id: str) -> bool:
        found = self._files.get(worker_id)
        return found is not None and not found.is_deleted

    def read(self, worker_id: str) -> Contents:
        """As ``read_spool``."""
        if not self.has_file(worker_id):
            return Contents([], "")
        found: dict[str, Outcome] = {}
        for outcomes in self._files[worker_id].cached.values():
            for outcome in outcomes:
                found.setdefault(outcome.attempt_id, outcome)
        return Contents(list(found.values()), "")

    def delete(self, worker_id: str) -> None:
        """Delete the file, not its lock; without a sync. Idempotent."""
        found = self._files.get(worker_id)
        if found is not None:
            found.cached = {}
            found.is_deleted = True

    def names(self) -> list[str]:
        """Workers of which there is a file or a lock, in order."""
        files = {worker_id for worker_id in self._files if self.has_file(worker_id)}
        return sorted(files | self._locks.keys())

    def try_lock(self, worker_id: str, process: Process) -> bool:
        """Take a lock for a process; False while another lives that has it."""
        holders = self._locks.setdefault(worker_id, {})
        if any(holder.is_alive for holder in holders):
            return False
        self.share_lock(worker_id, process)
        return True

    def share_lock(self, worker_id: str, process: Process) -> None:
        """Hold a lock together with who has it: its descriptor was passed on. It ends with the process."""
        self._locks.setdefault(worker_id, {})[process] = None

    def unlock(self, worker_id: str, process: Process) -> None:
        """A process closes its descriptor. Idempotent."""
        self._locks.get(worker_id, {}).pop(process, None)

    def delete_lock(self, worker_id: str) -> None:
        """Delete the lock file. Idempotent."""
        self._locks.pop(worker_id, None)
