"""One transaction of an owner: proofs, moves, fires, history, answers.

The uneventful batch runs a handful of statements and compares how many rows they changed with how many were
asked for. Where the two differ, everything is undone and written once more, carefully: the kind of move in
which they differ goes row by row, to learn which. A row that the database refuses as data is found by
bisection; the offender's rows are left out and the rest is written.

The proof needs no lock of its own: ``BEGIN IMMEDIATE`` lets in one writer, so no owner can change until the
transaction ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

import msgspec

from ostinato.core.model import Instance
from ostinato.errors import invariant
from ostinato.store.batches import CommitBatch, CommitReport, RequestAnswer
from ostinato.store.rules import birth_problem, move_problem, moves_of
from ostinato.store.sqlite.failures import DATA_ERRORS, safe_message
from ostinato.store.sqlite.moves import move_rows
from ostinato.store.sqlite.rows import history_values, instance_values
from ostinato.store.sqlite.statements import Row, run_rows, statement
from ostinato.store.sqlite.tasks import delete_task, set_flags, switch_versions


def commit(connection: sqlite3.Connection, batch: CommitBatch) -> CommitReport:
    """Write `batch` in one transaction; what is left out, and why, is the report."""
    try:
        return _transact(connection, batch, careful=False)
    except (_Differs, *DATA_ERRORS):
        connection.rollback()
    return _transact(connection, batch, careful=True)


def _transact(connection: sqlite3.Connection, batch: CommitBatch, *, careful: bool) -> CommitReport:
    connection.execute("BEGIN IMMEDIATE")
    proven = _proven(connection, batch)
    touched = {row.partition for rows in _lists(batch) for row in rows}
    lost = frozenset((touched | {proof.partition for proof in batch.proofs}) - proven)
    if lost:
        batch = _narrow(batch, lambda partition, _: partition in proven)
    rejected = _illegal(batch)
    batch = _without(batch, rejected)
    if careful:
        unmatched = _write_carefully(connection, batch, rejected=rejected)
    else:
        # Without savepoints, whose journal costs as much as the rows.
        unmatched = _Writer(connection, batch, careful=False).write()
    connection.commit()
    return CommitReport(lost, frozenset(unmatched), rejected)


def _write_carefully(
    connection: sqlite3.Connection, batch: CommitBatch, *, rejected: dict[str, str]
) -> set[str]:
    """Row by row where needed; adds to `rejected` whose rows were refused as data."""
    try:
        return _attempt(connection, batch)
    except DATA_ERRORS as error:
        rejected.update(_offenders(connection, batch, names=sorted(_names(batch)), error=error))
    return _attempt(connection, _without(batch, rejected))


class _Differs(Exception):
    """Some rows of the batch did not match."""


def _proven(connection: sqlite3.Connection, batch: CommitBatch) -> set[int]:
    owners = {
        partition: (owner, epoch)
        for partition, owner, epoch in connection.execute(
            "SELECT partition, owner, epoch FROM partition_owner"
        )
    }
    return {
        proof.partition for proof in batch.proofs if owners.get(proof.partition) == (proof.owner, proof.epoch)
    }


# ── parts of a batch ──────────────────────────────────────────────────────────────────────────────────


def _lists(batch: CommitBatch) -> tuple[Sequence[_PartRow], ...]:
    return tuple(getattr(batch, name) for name in CommitBatch.__struct_fields__ if name != "proofs")


class _PartRow(msgspec.Struct):
    """What every row of a batch has."""

    partition: int


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
    for name in CommitBatch.__struct_fields__:
        if name != "proofs":
            setattr(kept, name, [row for row in getattr(batch, name) if keep(row.partition, _name_of(row))])
    return kept


def _without(batch: CommitBatch, rejected: dict[str, str]) -> CommitBatch:
    return _narrow(batch, lambda _, name: name not in rejected) if rejected else batch


def _only(batch: CommitBatch, names: frozenset[str]) -> CommitBatch:
    return _narrow(batch, lambda _, name: name in names)


def _illegal(batch: CommitBatch) -> dict[str, str]:
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


# ── data errors ───────────────────────────────────────────────────────────────────────────────────────


def _attempt(connection: sqlite3.Connection, batch: CommitBatch) -> set[str]:
    """Write `batch` or nothing of it."""
    connection.execute("SAVEPOINT batch")
    try:
        unmatched = _Writer(connection, batch, careful=True).write()
    except DATA_ERRORS:
        connection.execute("ROLLBACK TO batch")
        connection.execute("RELEASE batch")
        raise
    connection.execute("RELEASE batch")
    return unmatched


def _offenders(
    connection: sqlite3.Connection, batch: CommitBatch, *, names: list[str], error: BaseException
) -> dict[str, str]:
    """Those of `names` whose rows cannot be written, found by trying halves; `error` is that of the whole."""
    if len(names) == 1:
        return {names[0]: safe_message(error)}
    found: dict[str, str] = {}
    middle = len(names) // 2
    for half in (names[:middle], names[middle:]):
        part = _only(batch, frozenset(half))
        connection.execute("SAVEPOINT probe")
        try:
            _attempt(connection, part)
        except DATA_ERRORS as failure:
            found.update(_offenders(connection, part, names=half, error=failure))
        connection.execute("ROLLBACK TO probe")
        connection.execute("RELEASE probe")
    invariant(bool(found), "bisect", f"a batch fails whose halves do not: {safe_message(error)}")
    return found


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────


class _Writer:
    """Writes a batch whose proofs hold, and remembers what did not match."""

    def __init__(self, connection: sqlite3.Connection, batch: CommitBatch, *, careful: bool) -> None:
        """`careful`: in a savepoint, finds out which rows did not match; otherwise raises ``_Differs``."""
        self.connection = connection
        self.careful = careful
        self.batch = batch
        self.unmatched: set[str] = set()
        #: Fires of triggers that somebody else has advanced: they leave no trace at all.
        self.unborn: set[str] = set()

    def write(self) -> set[str]:
        stale = self._advance()
        for statement_name, rows, instance_ids in move_rows(self.batch):
            if rows:
                self._write(statement_name, rows, ids=instance_ids)
        self._insert(stale)
        self._append_history()
        self._answer()
        switch_versions(self.connection, self.batch.switches)
        for flags in self.batch.flags:
            set_flags(self.connection, flags)
        # Last, so that nothing of the same batch puts a trigger of the task in force again.
        for deletion in self.batch.deletions:
            delete_task(self.connection, deletion)
        return self.unmatched

    def _write(self, name: str, rows: Sequence[Row], *, ids: Sequence[str]) -> None:
        """Write `rows` at once, or one by one where that did not change all of them."""
        if not self.careful:
            if run_rows(self.connection, name, rows=rows) != len(rows):
                raise _Differs
            return
        self.connection.execute("SAVEPOINT kind")
        if run_rows(self.connection, name, rows=rows) != len(rows):
            self.connection.execute("ROLLBACK TO kind")
            for row, instance_id in zip(rows, ids, strict=True):
                if run_rows(self.connection, name, rows=(row,)) == 0:
                    self.unmatched.add(instance_id)
        self.connection.execute("RELEASE kind")

    def _advance(self) -> set[str]:
        return {
            advance.trigger_id
            for advance in self.batch.advances
            if self.connection.execute(statement("advance_trigger"), msgspec.structs.asdict(advance)).rowcount
            == 0
        }

    def _insert(self, stale: set[str]) -> None:
        inserts = self.batch.inserts
        if stale:
            self.unborn = {instance.id for instance in inserts if instance.fire_trigger in stale}
            self.unmatched |= self.unborn
            inserts = [instance for instance in inserts if instance.id not in self.unborn]
        if inserts:
            rows = [instance_values(instance) for instance in inserts]
            self._write("insert_instance", rows, ids=[instance.id for instance in inserts])

    def _append_history(self) -> None:
        rows = self.batch.history
        if self.unmatched:
            rows = [
                row
                for row in rows
                if row.instance_id not in self.unborn
                and (row.unconditional or row.instance_id not in self.unmatched)
            ]
        run_rows(self.connection, "insert_history", rows=[history_values(row) for row in rows])

    def _answer(self) -> None:
        rows: list[Row] = [
            (
                answer.code,
                answer.message,
                answer.instance_id,
                answer.answered_us,
                answer.request_id,
                answer.partition,
            )
            for answer in self.batch.answers
            if answer.instance_id not in self.unmatched
        ]
        run_rows(self.connection, "answer", rows=rows)
