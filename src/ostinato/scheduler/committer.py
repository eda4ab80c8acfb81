"""One transaction of the owner: proofs, an answer that may be lost, and what memory makes of it.

A batch whose answer was lost is sent again: its rows name the state that they expect, so nothing happens
twice. What then matches nothing is read, and counts as written if the row shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from ostinato.clock import Clock
from ostinato.core.changes import CommitBatch, CommitReport
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.model import Instance
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.state import settle
from ostinato.core.states import TERMINAL_STATES, Hold, State
from ostinato.errors import OstinatoError, invariant
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import GroupCommitted, WritesRefused
from ostinato.scheduler.database_state import DatabaseState
from ostinato.scheduler.held_work import HeldWork
from ostinato.scheduler.ownership import Ownership
from ostinato.scheduler.reporting import report_effects
from ostinato.store.protocol import Store

Row = TypeVar("Row")

#: Rows of a batch that move or make an instance; each has `instance_id` and `partition`.
_MOVES = ("assigns", "successes", "ended_attempts", "holds", "ended_waiting", "cancel_requests", "replays")
_OTHERS = ("advances", "switches", "flags", "deletions", "history", "answers", "inserts")

#: As which the database's errors within a round are told.
_NAME = "commit"
_RETRY_FIRST_US = 50 * MILLISECOND
_RETRY_LAST_US = SECOND


class CommitOutcome(CommitReport):
    """A report, with every instance whose rows were not written in one set."""

    dropped: frozenset[str] = frozenset()
    #: Of these, instances whose attempt goes on running after all: decide again.
    still_running: frozenset[str] = frozenset()


class Committer:
    """Writes effects and applies them to memory; the one place that a loop commits through."""

    def __init__(
        self, ownership: Ownership, held: HeldWork, *, store: Store, clock: Clock, hooks: Hooks
    ) -> None:
        self._ownership = ownership
        self._held = held
        self._store = store
        self._clock = clock
        self._hooks = hooks
        #: Called after each commit with what was dropped: tells workers, wakes the loops that it concerns.
        self.after_commit: Callable[[Effects, frozenset[str]], None] = _nothing_more
        #: Partitions of the batches that are being written, how many batches each.
        self._under_way: Counter[int] = Counter()
        #: One for all loops of a node.
        self.database = DatabaseState(clock, hooks)

    def is_under_way(self, partition: int) -> bool:
        """Whether a batch about the partition is being written, or applied to memory."""
        return self._under_way[partition] > 0

    async def commit(self, effects: Effects) -> CommitOutcome:
        """Write, settle, report.

        Raises ``UnavailableError`` when belief ends before the database answers, and ``DATABASE_FULL`` at
        once: memory is as it was before.
        """
        batch = effects.batch
        if effects.is_empty():
            return CommitOutcome()
        _require_one_move_each(batch)
        partitions = _partitions(batch)
        self._under_way.update(partitions)
        # Once they are written they can be cancelled, perhaps long before the answer arrives.
        entering = self._ownership.memory.entering
        for attempt in effects.started:
            entering[attempt.attempt_id] = attempt
        try:
            return await self._commit(effects)
        finally:
            self._under_way.subtract(partitions)
            for attempt in effects.started:
                del entering[attempt.attempt_id]

    async def _commit(self, effects: Effects) -> CommitOutcome:
        batch = effects.batch
        began_us = self._clock.boot_us()
        report = await self._write(batch)
        lost = report.lost_partitions
        dropped = frozenset(report.unmatched) | frozenset(report.rejected)
        if lost:
            dropped |= {
                row.instance_id for name in _MOVES for row in getattr(batch, name) if row.partition in lost
            }
            dropped |= {row.id for row in batch.inserts if row.partition in lost}
            self._refused(batch, lost)
        still_running = await self._still_running(effects, report)
        settle(
            self._ownership.memory,
            effects,
            dropped=dropped,
            # What a former proof could not end may have been read anew since, under the next one.
            kept=frozenset(report.rejected)
            | still_running
            | {ended.instance_id for ended in effects.ended if ended.partition in lost},
        )
        self._note_overlaps(effects)
        count = sum(len(rows) for rows in _lists(batch, (*_MOVES, "inserts")))
        self._hooks.emit(
            GroupCommitted(
                count=count,
                duration_us=self._clock.boot_us() - began_us,
                unmatched_count=len(dropped),
            )
        )
        report_effects(self._hooks, effects, dropped=dropped)
        self.after_commit(effects, dropped)
        return CommitOutcome(
            lost_partitions=lost,
            unmatched=report.unmatched,
            rejected=report.rejected,
            payloads=report.payloads,
            dropped=dropped,
            still_running=still_running,
        )

    def _refused(self, batch: CommitBatch, lost: frozenset[int]) -> None:
        """A write of a former owner: it has been frozen, or cut off, or handed these over meanwhile."""
        count = sum(row.partition in lost for name in (*_MOVES, *_OTHERS) for row in getattr(batch, name))
        node_id = self._ownership.node_id
        self._hooks.emit(WritesRefused(node_id=node_id, count=count, partition_count=len(lost)))
        # Under this proof alone: it may have been taken anew since, under the next one.
        epochs = self._ownership.memory.epochs
        current = [
            proof.partition
            for proof in batch.proofs
            if proof.partition in lost
            and proof.owner == node_id
            and epochs.get(proof.partition) == proof.epoch
        ]
        self._ownership.lose(current, "another node has taken them over")

    async def _still_running(self, effects: Effects, report: CommitReport) -> frozenset[str]:
        """Attempts that this batch could not end because a wish to cancel them had come in between.

        Memory learns of the wish here, whoever recorded it.
        """
        unmatched = {ended.instance_id: ended for ended in effects.ended} if report.unmatched else {}
        ids = sorted(report.unmatched.intersection(unmatched))
        if not ids:
            return frozenset()
        rows = await self._store.get_instances(ids)
        running = {
            row.id
            for row in rows.values()
            if row.state is State.RUNNING and row.attempt_id == unmatched[row.id].attempt_id
        }
        for instance_id in running:
            attempt = self._ownership.memory.running.get(instance_id)
            if attempt is not None and rows[instance_id].cancel_requested_us is not None:
                attempt.cancel_requested = True
                attempt.cancel_reason = rows[instance_id].cancel_reason
        return frozenset(running)

    def _note_overlaps(self, effects: Effects) -> None:
        for insert in effects.batch.inserts:
            if insert.hold is Hold.OVERLAP:
                self._held.note(insert.ref, Hold.OVERLAP)
        for ended in effects.ended:
            if ended.state in TERMINAL_STATES:
                self._held.freed(ended.ref)
        for waiting in effects.ended_waiting:
            self._held.freed(waiting.ref)

    async def _write(self, batch: CommitBatch) -> CommitReport:
        batch.proofs = self._ownership.proofs(_partitions(batch))
        is_ambiguous = False
        retry_us = _RETRY_FIRST_US
        while True:
            try:
                report = await self._store.commit(batch)
                if not is_ambiguous:
                    return report
                report = await self._confirm(batch, report)
                self.database.succeeded(_NAME)
                return report
            except OstinatoError as error:
                if error.code == "DATABASE_UNAVAILABLE":
                    is_ambiguous = True
                # What is certainly not written (on a full disk, perhaps for hours) is decided anew later, by
                # what is true then. What may have been written is sent again until the database answers.
                if (
                    not is_ambiguous
                    or not error.code.startswith("DATABASE_")
                    or not self._ownership.is_believed
                ):
                    if is_ambiguous and self._store.capabilities.many_nodes:
                        self._ownership.doubt(batch.proofs)
                    # The loop whose round this is tells of it.
                    self.database.forget(_NAME)
                    raise
                self.database.failed(_NAME, error)
            await self._clock.sleep_until_us(self._clock.boot_us() + retry_us)
            retry_us = min(retry_us * 2, _RETRY_LAST_US)

    async def _confirm(self, batch: CommitBatch, report: CommitReport) -> CommitReport:
        """Of the rows that matched nothing at the repetition, those that the lost answer had written."""
        if not report.unmatched:
            return report
        rows = await self._store.get_instances(sorted(report.unmatched))
        written = {name for name, row in rows.items() if _shows(batch, row)}
        return CommitReport(
            lost_partitions=report.lost_partitions,
            unmatched=report.unmatched - written,
            rejected=report.rejected,
            payloads=report.payloads | {name: rows[name].payload for name in written},
        )


def _nothing_more(_: Effects, __: frozenset[str]) -> None:
    """What follows a commit until the node says otherwise."""


def _require_one_move_each(batch: CommitBatch) -> None:
    """Of two moves only the first would match, and memory could not tell which of them it was."""
    moved = [row.instance_id for rows in _lists(batch, _MOVES) for row in rows]
    if len(set(moved)) == len(moved):
        return
    twice = next(name for name, count in Counter(moved).items() if count > 1)
    invariant(False, "I5", f"a batch moves instance {twice} twice", subject=twice)


def _lists(batch: CommitBatch, names: Iterable[str]) -> list[list[Any]]:
    """Those of a batch's lists that hold anything: few do."""
    return [rows for name in names if (rows := getattr(batch, name))]


def _partitions(batch: CommitBatch) -> set[int]:
    return {row.partition for rows in _lists(batch, (*_MOVES, *_OTHERS)) for row in rows}


def _shows(batch: CommitBatch, row: Instance) -> bool:
    """Whether the stored row is what this batch wanted to write."""
    if any(assign.attempt_id == row.attempt_id for assign in _of(batch.assigns, row)):
        return row.state is State.RUNNING
    if any(success.attempt_id == row.attempt_id for success in _of(batch.successes, row)):
        return row.state is State.SUCCESS
    if any(
        ended.attempt_id == row.attempt_id and ended.counters == row.counters
        for ended in _of(batch.ended_attempts, row)
    ):
        return row.state is not State.RUNNING
    if any(True for _ in _of(batch.cancel_requests, row)):
        return row.cancel_requested_us is not None
    if any(hold.hold is row.hold for hold in _of(batch.holds, row)):
        return True
    if any(ending.state is row.state for ending in _of(batch.ended_waiting, row)):
        return True
    if any(replay.expected_generation + 1 == row.generation for replay in _of(batch.replays, row)):
        return True
    return any(insert.id == row.id for insert in batch.inserts)


def _of(rows: Iterable[Row], instance: Instance) -> Iterator[Row]:
    return (row for row in rows if getattr(row, "instance_id", None) == instance.id)
