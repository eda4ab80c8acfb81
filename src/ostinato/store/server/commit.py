"""One transaction of an owner on a server: proofs, moves, fires, history, answers.

The statements are the adapter's.

A batch is written at once. Where the server refuses a row as data, everything is rolled back and written once
more, carefully: in savepoints, so that the offender is found by bisection, left out, and the rest is written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import cast

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.core.model import HistoryRow, Instance
from ostinato.errors import invariant
from ostinato.store.batches import CommitBatch, CommitReport, Proof, RequestAnswer, TriggerAdvance
from ostinato.store.rules import birth_problem, move_problem, moves_of
from ostinato.store.server import tasks, triggers


class RefusedDataError(Exception):
    """The server refused a row of the batch; whose, is found by writing it carefully."""


class BatchWriter(ABC):
    """The statements of one transaction of an owner. Every list may be empty."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection

    @abstractmethod
    async def proven(self, proofs: Sequence[Proof], *, touched: Collection[int]) -> set[int]:
        """Partitions whose proof holds; those of `touched` stay locked against a change of owner (I5)."""

    @abstractmethod
    async def advance(self, rows: Sequence[TriggerAdvance]) -> set[str]:
        """Ids of the triggers that were where the row expected them, and have been moved on."""

    @abstractmethod
    async def move(self, batch: CommitBatch) -> set[str]:
        """Ids of the instances whose move matched nothing; every kind of move of `batch` is written."""

    @abstractmethod
    async def insert(self, rows: Sequence[Instance]) -> set[str]:
        """Ids of the instances that are new; one whose id or fire exists is left out (I8)."""

    @abstractmethod
    async def append_history(self, rows: Sequence[HistoryRow]) -> None:
        """In this order."""

    @abstractmethod
    async def answer(self, rows: Sequence[RequestAnswer]) -> None:
        """The first answer to a request stands."""

    @abstractmethod
    def data_problem(self, error: BaseException) -> str | None:
        """What is wrong with a row, without its values; None where `error` is not about the data of a row."""

    async def write(self, batch: CommitBatch) -> set[str]:
        """Write `batch`, whose proofs hold; returns the ids of what did not match."""
        unmatched = set[str]()
        #: Fires of triggers that somebody else has advanced: they leave no trace at all.
        unborn = set[str]()
        if batch.advances:
            advanced = await self.advance(batch.advances)
            stale = {row.trigger_id for row in batch.advances} - advanced
            unborn = {row.id for row in batch.inserts if row.fire_trigger in stale}
        unmatched |= unborn | await self.move(batch)
        inserts = [row for row in batch.inserts if row.id not in unborn]
        if inserts:
            unmatched |= {row.id for row in inserts} - await self.insert(inserts)
        history = [
            row
            for row in batch.history
            if row.instance_id not in unborn and (row.unconditional or row.instance_id not in unmatched)
        ]
        if history:
            await self.append_history(history)
        answers = [row for row in batch.answers if row.instance_id not in unmatched]
        if answers:
            await self.answer(answers)
        if batch.switches:
            await triggers.switch_versions(self.connection, batch.switches)
        for flags in batch.flags:
            await tasks.set_flags(self.connection, flags)
        # Last, so that nothing of the same batch puts a trigger of the task in force again.
        for deletion in batch.deletions:
            await tasks.delete_task(self.connection, deletion)
        return unmatched


async def commit_batch(writer: BatchWriter, batch: CommitBatch, *, careful: bool) -> CommitReport:
    """Write `batch` within the caller's transaction; what is left out, and why, is the report.

    Raises ``RefusedDataError`` unless `careful`, when the server refuses a row as data.
    """
    touched = {row.partition for rows in _lists(batch) for row in rows}
    proven = await writer.proven(batch.proofs, touched=touched)
    lost = frozenset((touched | {proof.partition for proof in batch.proofs}) - proven)
    if lost:
        batch = _narrow(batch, lambda partition, _: partition in proven)
    rejected = illegal(batch)
    batch = _without(batch, rejected)
    if not careful:
        try:
            unmatched = await writer.write(batch)
        except Exception as error:
            if writer.data_problem(error) is None:
                raise
            raise RefusedDataError from error
    else:
        unmatched = await _write_carefully(writer, batch, rejected=rejected)
    return CommitReport(lost, frozenset(unmatched), rejected)


async def _write_carefully(writer: BatchWriter, batch: CommitBatch, *, rejected: dict[str, str]) -> set[str]:
    """Adds to `rejected` whose rows were refused as data."""
    unmatched, problem = await _attempt(writer, batch, keep=True)
    if problem is None:
        return unmatched
    rejected.update(await _offenders(writer, batch, names=sorted(_names(batch)), problem=problem))
    unmatched, problem = await _attempt(writer, _without(batch, rejected), keep=True)
    invariant(problem is None, "bisect", f"a batch fails without its offenders: {problem}")
    return unmatched


async def _attempt(writer: BatchWriter, batch: CommitBatch, *, keep: bool) -> tuple[set[str], str | None]:
    """What did not match; and what is wrong with a row, in which case nothing is written."""
    await writer.connection.exec_driver_sql("SAVEPOINT batch")
    unmatched, problem = set[str](), None
    try:
        unmatched = await writer.write(batch)
    except Exception as error:
        problem = writer.data_problem(error)
        if problem is None:
            raise
    if problem is not None or not keep:
        await writer.connection.exec_driver_sql("ROLLBACK TO SAVEPOINT batch")
    await writer.connection.exec_driver_sql("RELEASE SAVEPOINT batch")
    return unmatched, problem


async def _offenders(
    writer: BatchWriter, batch: CommitBatch, *, names: list[str], problem: str
) -> dict[str, str]:
    """Those of `names` whose rows cannot be written, found by halving; `problem` is that of the whole."""
    if len(names) == 1:
        return {names[0]: problem}
    found: dict[str, str] = {}
    middle = len(names) // 2
    for half in (names[:middle], names[middle:]):
        part = _only(batch, frozenset(half))
        _, problem_of_half = await _attempt(writer, part, keep=False)
        if problem_of_half is not None:
            found.update(await _offenders(writer, part, names=half, problem=problem_of_half))
    invariant(bool(found), "bisect", f"a batch fails whose halves do not: {problem}")
    return found


# ── parts of a batch ──────────────────────────────────────────────────────────────────────────────────


class _PartRow(msgspec.Struct):
    """What every row of a batch has."""

    partition: int


_LISTS = tuple(name for name in CommitBatch.__struct_fields__ if name != "proofs")


def kinds_of(batch: CommitBatch) -> list[str]:
    """Names of the lists of `batch` that have rows, proofs apart."""
    return [name for name in _LISTS if getattr(batch, name)]


def is_empty(batch: CommitBatch) -> bool:
    """Nothing to prove and nothing to write."""
    return not batch.proofs and not kinds_of(batch)


def _lists(batch: CommitBatch) -> Iterable[Sequence[_PartRow]]:
    return (cast(Sequence[_PartRow], getattr(batch, name)) for name in _LISTS)


def _name_of(row: object) -> str:
    """Whose row it is: all rows of one instance stand or fall together."""
    if isinstance(row, Instance):
        return row.id
    if isinstance(row, RequestAnswer):
        return row.instance_id or row.request_id
    for field in ("instance_id", "trigger_id"):
        name: str | None = getattr(row, field, None)
        if name is not None:
            return name
    return f"{getattr(row, 'namespace', '')}/{getattr(row, 'task', '')}"


def _names(batch: CommitBatch) -> set[str]:
    return {_name_of(row) for rows in _lists(batch) for row in rows}


def _narrow(batch: CommitBatch, keep: Callable[[int, str], bool]) -> CommitBatch:
    """The rows of `batch` whose partition and name `keep` accepts."""
    kept = CommitBatch(proofs=batch.proofs)
    for name in _LISTS:
        setattr(kept, name, [row for row in getattr(batch, name) if keep(row.partition, _name_of(row))])
    return kept


def _without(batch: CommitBatch, rejected: dict[str, str]) -> CommitBatch:
    return _narrow(batch, lambda _, name: name not in rejected) if rejected else batch


def _only(batch: CommitBatch, names: frozenset[str]) -> CommitBatch:
    return _narrow(batch, lambda _, name: name in names)


def illegal(batch: CommitBatch) -> dict[str, str]:
    """What no constraint of one row can show: a move that the table of states does not know."""
    rejected: dict[str, str] = {}
    for move in moves_of(batch):
        problem = move_problem(move)
        if problem is not None:
            rejected[move.instance_id] = problem
    for instance in batch.inserts:
        problem = birth_problem(instance)
        if problem is not None:
            rejected[instance.id] = problem
    return rejected
