"""The statements of an owner's transaction: proofs, moves, fires, history, answers.

Moves are written in statements of many rows, each of which names the state and attempt that it expects; how
many rows they found is compared with how many there were. Where the two differ, they are undone, and the
instances are locked and read, so that it is known which moves match, and these alone are written. So nothing
rests on how the server counts: where it counts only rows that have changed, the second way is taken oftener.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.core.model import HistoryRow, Instance
from ostinato.store.batches import CommitBatch, Proof, RequestAnswer, TriggerAdvance
from ostinato.store.mysql.existing import first_of_each, known_instances
from ostinato.store.mysql.faults import fault, is_duplicate
from ostinato.store.mysql.literals import Row, chunks, listed
from ostinato.store.mysql.moves import Found, matches
from ostinato.store.mysql.session import Driver, change, fetch, require_writable, write_rows
from ostinato.store.rules import moves_of
from ostinato.store.server.commit import BatchWriter
from ostinato.store.server.move_rows import MoveRows, move_rows
from ostinato.store.server.rows import history_values, instance_values


class MysqlBatchWriter(BatchWriter):
    """Writes on `driver`, the connection below `connection`."""

    def __init__(self, connection: AsyncConnection, driver: Driver) -> None:
        super().__init__(connection)
        self.driver = driver

    async def proven(self, proofs: Sequence[Proof], *, touched: Collection[int]) -> set[int]:
        """Partitions whose proof holds; who takes over one of `touched` waits for this transaction.

        The others are looked at without a lock, which would only make their next owner wait.
        """
        owners = await self._owners(touched, lock=" LOCK IN SHARE MODE")
        others = {proof.partition for proof in proofs}.difference(touched)
        owners |= await self._owners(others, lock="")
        return {
            proof.partition for proof in proofs if owners.get(proof.partition) == (proof.owner, proof.epoch)
        }

    async def _owners(self, partitions: Collection[int], *, lock: str) -> dict[int, tuple[str, int]]:
        if not partitions:
            return {}
        # The index is forced: a look through the whole table would wait for the locks of other partitions.
        rows = await fetch(
            self.driver,
            "SELECT `partition`, owner, epoch FROM partition_owner FORCE INDEX (PRIMARY)"
            f" WHERE `partition` IN {listed(sorted(partitions))} ORDER BY `partition`{lock}",
        )
        return {partition: (owner, epoch) for partition, owner, epoch in rows}

    # ── triggers ─────────────────────────────────────────────────────────────────────────────────────

    async def advance(self, rows: Sequence[TriggerAdvance]) -> set[str]:
        """Ids of the triggers that were where the row expected them, and have been moved on."""
        values = _advance_values(rows)
        await change(self.driver, "SAVEPOINT advances")
        if await write_rows(self.driver, "advance_trigger", rows=values) == len(values):
            return {row.trigger_id for row in rows}
        await change(self.driver, "ROLLBACK TO SAVEPOINT advances")
        places = {
            (trigger_id, partition): next_us
            for chunk in chunks(sorted({row.trigger_id for row in rows}))
            for trigger_id, partition, next_us in await fetch(
                self.driver,
                "SELECT id, `partition`, next_us FROM task_trigger FORCE INDEX (PRIMARY)"
                f" WHERE id IN {listed(chunk)} ORDER BY id FOR UPDATE",
            )
        }
        moved: dict[str, TriggerAdvance] = {}
        for row in rows:
            place = (row.trigger_id, row.partition)
            if place in places and places[place] == row.expected_next_us:
                places[place] = row.next_us
                moved[row.trigger_id] = row
        # Their places are known and locked, so what they were is named again as it was read.
        await self._move_on(moved, rows)
        return set(moved)

    async def _move_on(self, moved: dict[str, TriggerAdvance], rows: Sequence[TriggerAdvance]) -> None:
        first: dict[str, int | None] = {}
        for row in rows:
            if row.trigger_id in moved:
                first.setdefault(row.trigger_id, row.expected_next_us)
        values: list[Row] = [
            (row.trigger_id, row.partition, first[row.trigger_id], row.next_us, row.last_us)
            for row in sorted(moved.values(), key=lambda row: row.trigger_id)
        ]
        await write_rows(self.driver, "advance_trigger", rows=values)

    # ── instances ────────────────────────────────────────────────────────────────────────────────────

    async def move(self, batch: CommitBatch) -> set[str]:
        """Ids of the instances whose move matched nothing."""
        if not any(True for _ in moves_of(batch)):
            return set()
        kinds = move_rows(batch)
        ids = {move.instance_id for move in moves_of(batch)}
        if sum(bool(kind.rows) for kind in kinds) > 1:
            # Each statement locks in one order, several of them do not: two transactions of one owner whose
            # moves cross would lock each other out.
            await self._lock(ids)
        await change(self.driver, "SAVEPOINT moves")
        if await self._write_moves(kinds):
            return set()
        await change(self.driver, "ROLLBACK TO SAVEPOINT moves")
        found = await self._lock(ids)
        unmatched = {
            move.instance_id
            for move in moves_of(batch)
            if move.instance_id not in found or not matches(move, found[move.instance_id])
        }
        for kind in kinds:
            # A row that nobody could store is said to be so, whether or not it would have matched.
            require_writable(self.driver, kind.statement, rows=kind.rows)
            rows = [row for row in kind.rows if row[0] not in unmatched]
            await write_rows(self.driver, kind.statement, rows=rows)
        return unmatched

    async def _write_moves(self, kinds: Sequence[MoveRows]) -> bool:
        """Whether every move has found its row; ends at the first kind that has not."""
        for kind in kinds:
            if await write_rows(self.driver, kind.statement, rows=kind.rows) != len(kind.rows):
                return False
        return True

    async def _lock(self, ids: set[str]) -> dict[str, Found]:
        found: dict[str, Found] = {}
        for chunk in chunks(sorted(ids)):
            rows = await fetch(
                self.driver,
                "SELECT id, `partition`, state, attempt, attempt_id, generation, cancel_requested_us"
                f" FROM instance FORCE INDEX (PRIMARY) WHERE id IN {listed(chunk)} ORDER BY id FOR UPDATE",
            )
            found |= {row[0]: Found(*row) for row in rows}
        return found

    async def insert(self, rows: Sequence[Instance]) -> set[str]:
        """Ids of the instances that are new."""
        new = first_of_each(rows)
        await change(self.driver, "SAVEPOINT inserts")
        try:
            await self._insert(new)
        except Exception as error:
            if not is_duplicate(error):
                raise
            await change(self.driver, "ROLLBACK TO SAVEPOINT inserts")
            known = await known_instances(self.driver, new)
            new = [row for row in new if row.id not in known]
            # One that comes in between repeats the transaction.
            await self._insert(new)
        return {row.id for row in new}

    async def _insert(self, rows: Sequence[Instance]) -> None:
        values = [instance_values(row) for row in sorted(rows, key=lambda row: row.id)]
        await write_rows(self.driver, "insert_instance", rows=values)

    # ── what depends on them ─────────────────────────────────────────────────────────────────────────

    async def append_history(self, rows: Sequence[HistoryRow]) -> None:
        await write_rows(self.driver, "insert_history", rows=[history_values(row) for row in rows])

    async def answer(self, rows: Sequence[RequestAnswer]) -> None:
        values: list[Row] = [
            (row.request_id, row.partition, row.code, row.message, row.instance_id, row.answered_us)
            for row in sorted(rows, key=lambda row: row.request_id)
        ]
        await write_rows(self.driver, "answer", rows=values)

    def data_problem(self, error: BaseException) -> str | None:
        found = fault(error)
        return found.reason if found is not None and found.kind == "data" else None


def _advance_values(rows: Sequence[TriggerAdvance]) -> list[Row]:
    return [
        (row.trigger_id, row.partition, row.expected_next_us, row.next_us, row.last_us)
        for row in sorted(rows, key=lambda row: row.trigger_id)
    ]
