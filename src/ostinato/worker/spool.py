"""The durable spool: outcomes are on the disk before they are sent, and stay there until acknowledged (I2).

::

    append ──► unwritten ──commit──► durable: may be sent ──► forget ──► deleted by a later commit
                   │ the disk refuses
                   ▼
               unwritable: sent from memory, no new work, tried again every 2 s

A group is whatever has gathered while the commit before was under way and for a moment after it, so groups
grow with the load and a lone outcome waits for nothing. Deletions gather for a moment. One that is lost
costs a repeated outcome, which the node acknowledges without effect (I6).

Spools whose worker is gone are taken over: their outcomes become ours, durably, before their files are
deleted. Nothing is lost whenever that breaks off, and two workers that want the same file are kept apart by
its lock.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ostinato.clock import Clock
from ostinato.core.instants import MINUTE, SECOND
from ostinato.core.model import Outcome
from ostinato.errors import UserError
from ostinato.wire.ledgers import outcome_bytes
from ostinato.worker.credits import Credits
from ostinato.worker.spool_disk import SpoolDirectory, SpoolDisk
from ostinato.worker.spool_file import is_damaged
from ostinato.worker.waiting import gathering_us, within
from ostinato.worker.workspace import FULL_DISK

_log = logging.getLogger("ostinato.worker")

#: Between attempts to write to a disk that refused.
RETRY_US = 2 * SECOND
#: Between looks for spools that belong to nobody.
SCAN_US = 5 * SECOND
#: A spool that stays unwritable is told once in this time.
TOLD_US = MINUTE
#: How long deletions gather: each costs what a group costs.
_FORGET_DELAY_S = 0.1
#: One group: small enough that a disk with little room takes something.
_GROUP_COUNT_MAX = 5_000
_GROUP_BYTES_MAX = 8 * 1024 * 1024


class SpoolListener(Protocol):
    """Who sends outcomes; called on the event loop."""

    def durable(self, attempt_ids: Sequence[str]) -> None:
        """These outcomes are on the disk."""
        ...

    def add_outcomes(self, outcomes: Iterable[Outcome]) -> None:
        """Outcomes of a worker that is gone are to be sent; they come back by `Spool.append`."""
        ...

    def unwritable(self) -> None:
        """What waits for the disk need not wait any longer."""
        ...


class Spool:
    """The spool of one worker process, on its event loop. `open` it before anything else is called."""

    def __init__(
        self, data_dir: Path, *, worker_id: str, clock: Clock, disk: SpoolDisk | None = None
    ) -> None:
        """`disk`: what stands for the files below `data_dir`; None: these files."""
        self.worker_id = worker_id
        self.path = data_dir / "spool" / f"{worker_id}.db"
        #: For whatever the worker keeps while it lives; whoever takes the spool over deletes it.
        self.own_directory = data_dir / "workers" / worker_id
        self._clock = clock
        self._disk = SpoolDirectory(data_dir, worker_id=worker_id) if disk is None else disk
        self._listener: SpoolListener | None = None
        self._credits: Credits | None = None
        self._lock: int | None = None
        #: Every outcome that is not acknowledged, and those of them that are not on the disk.
        self._held: dict[str, Outcome] = {}
        self._unwritten: dict[str, Outcome] = {}
        self._forgotten: dict[str, None] = {}
        #: Set while every outcome is on the disk or acknowledged.
        self.is_safe = asyncio.Event()
        self.is_safe.set()
        self._forget_timer: asyncio.TimerHandle | None = None
        self._is_forgetting_due = False
        self._has_work = asyncio.Event()
        #: Set and cleared after each commit and each failure of one.
        self._committed = asyncio.Event()
        self._closing = asyncio.Event()
        self._scan: asyncio.Task[None] | None = None
        #: What works until `close`; ends before only with a bug.
        self.loops: list[asyncio.Task[None]] = []
        #: Workers whose spools were taken over: supervisor and guardian are gone, and nothing of them runs.
        self.ended_workers: list[str] = []
        self._told_us: int | None = None
        self._told_others: list[dict[str, str]] = []
        self.is_writable = True

    @property
    def lock_descriptor(self) -> int:
        """Descriptor of the lock, inheritable: the spool belongs to somebody as long as any copy is open."""
        assert self._lock is not None, "open() comes first"
        return self._lock

    async def open(self, listener: SpoolListener, credits: Credits) -> None:
        """Take the own lock, then write and look around until `close`; `credits` rest while it cannot write.

        A full disk is waited for. Raises ``INVALID_SETTING`` for a directory that cannot be used.
        """
        self._listener, self._credits = listener, credits
        while self._lock is None:
            try:
                self._lock = await self._disk.take_own_lock()
            except OSError as error:
                if error.errno not in FULL_DISK:
                    reason = f"{self.path.parent} cannot be used: {error.strerror or error}"
                    raise UserError("INVALID_SETTING", reason, field="--data-dir") from error
                self._tell_unwritable(error)
                await self._clock.sleep_until_us(self._clock.boot_us() + RETRY_US)
        # Tried before the worker takes work: a disk that is full already is known by then.
        if not await self._write([], is_probe=True):
            self._has_work.set()
        self.loops = [asyncio.create_task(self._write_loop()), asyncio.create_task(self._scan_loop())]

    def append(self, outcomes: Iterable[Outcome]) -> None:
        """Write outcomes with the next group; the listener hears when they are durable."""
        for outcome in outcomes:
            self._held[outcome.attempt_id] = outcome
            self._unwritten[outcome.attempt_id] = outcome
        if self._unwritten:
            self.is_safe.clear()
            self._has_work.set()

    def forget(self, attempt_ids: Iterable[str]) -> None:
        """The node has these for good: delete them, some time soon."""
        for attempt_id in attempt_ids:
            self._held.pop(attempt_id, None)
            self._unwritten.pop(attempt_id, None)
            # Whether or not it was written: a commit that adds it may be under way.
            self._forgotten[attempt_id] = None
        self._tell_safe()
        if self._forgotten and self._forget_timer is None:
            loop = asyncio.get_running_loop()
            self._forget_timer = loop.call_later(_FORGET_DELAY_S, self._forget_now)

    def _forget_now(self) -> None:
        self._forget_timer = None
        self._is_forgetting_due = True
        self._has_work.set()

    async def close(self) -> None:
        """Write what waits, once; delete the files if nothing is left in them. Idempotent."""
        self._closing.set()
        self._has_work.set()
        loops, self.loops = self.loops, []
        if loops:
            await asyncio.wait(loops)
        if self._forget_timer is not None:
            self._forget_timer.cancel()
        if self._unwritten:
            told = {"path": str(self.path), "held_count": len(self._unwritten)}
            _log.error("outcomes_not_spooled", extra=told)
        lock, self._lock = self._lock, None
        await self._disk.close(lock, is_empty=not self._held)
        for loop in loops:
            loop.result()

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────

    async def _write_loop(self) -> None:
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            self._is_forgetting_due |= self._closing.is_set() and bool(self._forgotten)
            group = self._next_group()
            was_written = await self._write(group, is_probe=not self.is_writable)
            if self._closing.is_set() and not (was_written and self._unwritten):
                return
            if not was_written:
                await self._pause(RETRY_US)
            elif not self._closing.is_set():
                # The disk may be fast, but a commit takes as much of the processor as some attempts.
                await self._clock.sleep_until_us(self._clock.boot_us() + gathering_us(len(group)))
            if self._unwritten or not was_written:
                self._has_work.set()

    async def _write(self, group: list[Outcome], *, is_probe: bool = False) -> bool:
        """Commit one group, then deletions that have waited long enough; False if the disk refused."""
        try:
            if group or is_probe:
                await self._disk.add(group)
                self._tell_durable([outcome.attempt_id for outcome in group])
            if self._is_forgetting_due:
                self._is_forgetting_due = False
                forgotten, self._forgotten = list(self._forgotten), {}
                await self._disk.forget(forgotten)
        except (sqlite3.Error, OSError) as error:
            self._is_forgetting_due = True
            await self._refused(error)
            return False
        if not self.is_writable and not self._unwritten:
            self._tell_writable()
        return True

    def _tell_durable(self, attempt_ids: list[str]) -> None:
        for attempt_id in attempt_ids:
            self._unwritten.pop(attempt_id, None)
        self._tell_safe()
        assert self._listener is not None, "open() comes first"
        self._listener.durable(attempt_ids)
        self._pulse()

    def _next_group(self) -> list[Outcome]:
        group: list[Outcome] = []
        size_bytes = 0
        for outcome in self._unwritten.values():
            size_bytes += outcome_bytes(outcome)
            if group and (len(group) >= _GROUP_COUNT_MAX or size_bytes > _GROUP_BYTES_MAX):
                break
            group.append(outcome)
        return group

    async def _refused(self, error: sqlite3.Error | OSError) -> None:
        if is_damaged(error):
            try:
                new_path = await self._disk.set_own_aside()
            except OSError as failure:
                error = failure
            else:
                # What was durable is so no longer, but is in memory: it is written to a new file.
                self._unwritten = dict(self._held)
                self.is_safe.clear()
                _tell_damaged(self.path, new_path, str(error))
        self._tell_unwritable(error)
        self._pulse()

    def _tell_unwritable(self, error: Exception) -> None:
        now_us = self._clock.boot_us()
        if self._told_us is None or now_us - self._told_us >= TOLD_US:
            self._told_us = now_us
            _log.error(
                "spool_unwritable",
                extra={
                    "path": str(self.path),
                    "reason": str(error),
                    "held_count": len(self._unwritten),
                    "held_bytes": sum(outcome_bytes(outcome) for outcome in self._unwritten.values()),
                },
            )
        self.is_writable = False
        assert self._listener is not None, "open() comes first"
        assert self._credits is not None, "open() comes first"
        self._credits.pause_granting(f"the worker's spool cannot be written: {error}")
        self._listener.unwritable()

    def _tell_writable(self) -> None:
        self.is_writable, self._told_us = True, None
        _log.info("spool_writable", extra={"path": str(self.path)})
        assert self._credits is not None, "open() comes first"
        self._credits.resume_granting()

    def _tell_safe(self) -> None:
        if not self._unwritten:
            self.is_safe.set()

    def _pulse(self) -> None:
        self._committed.set()
        self._committed.clear()

    async def _pause(self, duration_us: int) -> None:
        with suppress(TimeoutError):
            await within(self._clock, self._closing.wait(), limit_us=duration_us)

    # ── taking over ───────────────────────────────────────────────────────────────────────────────────

    async def _scan_loop(self) -> None:
        while not self._closing.is_set():
            await self.take_over()
            await self._pause(SCAN_US)

    async def take_over(self) -> None:
        """Make the outcomes of workers that are gone our own, and delete what else they have left."""
        if self._scan is None or self._scan.done():
            self._scan = asyncio.create_task(self._take_over_all())
        # A caller that waits no longer leaves it: a lock is being held.
        await asyncio.shield(self._scan)

    async def _take_over_all(self) -> None:
        try:
            worker_ids = await self._disk.other_workers()
        except OSError as error:
            self._tell_not_taken_over(self.path.parent, error)
            return
        for worker_id in worker_ids:
            await self._take_over_one(worker_id)

    async def _take_over_one(self, worker_id: str) -> None:
        path = self.path.with_name(f"{worker_id}.db")
        lock: int | None = None
        try:
            lock = await self._disk.take_lock(worker_id)
            if lock is None:
                return
            # Its guardian has done that already, unless that was killed too.
            left = await self._disk.end_processes(worker_id)
            if left:
                self._tell_not_taken_over(path, OSError(left))
            else:
                # Even if its outcomes must wait: on a full disk this is what makes room.
                await self._disk.remove_directory(worker_id)
            contents = await self._disk.read(worker_id)
            if not await self._adopt(contents.outcomes):
                return
            # Told of none whose containers may run on; its own directory brings the next look back here.
            if not left and worker_id not in self.ended_workers:
                self.ended_workers.append(worker_id)
            if contents.problem:
                _tell_damaged(path, await self._disk.set_aside(worker_id), contents.problem)
            await self._disk.remove(worker_id)
        except (sqlite3.Error, OSError) as error:
            # Nothing is deleted before it is ours, so the next look finds all of it again.
            self._tell_not_taken_over(path, error)
        else:
            if contents.outcomes:
                told = {"path": str(path), "outcome_count": len(contents.outcomes)}
                _log.info("spool_taken_over", extra=told)
        finally:
            if lock is not None:
                self._disk.release(lock)

    async def _adopt(self, outcomes: Sequence[Outcome]) -> bool:
        """Have outcomes sent, and wait until they are durable here; False if the disk refuses them."""
        if self._closing.is_set() or (outcomes and not self.is_writable):
            return False
        assert self._listener is not None, "open() comes first"
        self._listener.add_outcomes(outcomes)
        attempt_ids = {outcome.attempt_id for outcome in outcomes}
        while not self._unwritten.keys().isdisjoint(attempt_ids):
            if not self.is_writable or self._closing.is_set():
                return False
            await self._committed.wait()
        return True

    def _tell_not_taken_over(self, path: Path, error: Exception) -> None:
        """Once for each file and reason, not at every look."""
        told = {"path": str(path), "reason": str(error)}
        if told not in self._told_others:
            self._told_others.append(told)
            _log.warning("spool_not_taken_over", extra=told)


def _tell_damaged(path: Path, new_path: Path, reason: str) -> None:
    told = {"path": str(path), "renamed_to": str(new_path), "reason": reason}
    _log.error("spool_damaged", extra=told)
