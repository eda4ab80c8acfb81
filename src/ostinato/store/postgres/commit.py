"""The statements of an owner's transaction: one for each kind of row, however many rows there are.

Rows are sent as one array a column, sorted by instance, so that transactions of one owner lock instances in
one order; a long history goes by COPY. Two owners never meet: whoever holds the share lock of a partition
moves its instances alone (I5).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import asyncpg
from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.core.model import HistoryRow, Instance
from ostinato.store.batches import CommitBatch, Proof, RequestAnswer, TriggerAdvance
from ostinato.store.postgres.faults import data_problem
from ostinato.store.postgres.statements import statement
from ostinato.store.server.commit import BatchWriter
from ostinato.store.server.database import DriverConnection
from ostinato.store.server.move_rows import Row, move_rows
from ostinato.store.server.rows import HISTORY, Value, history_values, instance_values

#: Rows from which on COPY, with its three messages more, costs less than a statement with arrays.
COPIED_MIN = 50


class PostgresBatchWriter(BatchWriter):
    """See ``BatchWriter``."""

    def __init__(self, connection: AsyncConnection, driver: DriverConnection) -> None:
        super().__init__(connection)
        self._driver = driver

    async def proven(self, proofs: Sequence[Proof], *, touched: Collection[int]) -> set[int]:
        claimed = {proof.partition: (proof.owner, proof.epoch) for proof in proofs}
        written = sorted(claimed.keys() & set(touched))
        rows = await self._driver.fetch(statement("prove"), written, sorted(claimed.keys() - set(touched)))
        return {partition for partition, owner, epoch in rows if claimed[partition] == (owner, epoch)}

    async def advance(self, rows: Sequence[TriggerAdvance]) -> set[str]:
        values = [
            (row.trigger_id, row.partition, row.expected_next_us, row.next_us, row.last_us) for row in rows
        ]
        return await self._returned("advance_trigger", sorted(values, key=_first))

    async def move(self, batch: CommitBatch) -> set[str]:
        kinds = move_rows(batch)
        ids = sorted({str(row[0]) for _, rows in kinds for row in rows})
        if len(kinds) > 1:
            # Each statement locks in this order, several of them do not: two transactions of one owner whose
            # kinds cross would wait for each other.
            await self._driver.execute(statement("lock_instances"), ids)
        matched = set[str]()
        for name, rows in kinds:
            matched |= await self._returned(name, rows)
        return set(ids) - matched

    async def insert(self, rows: Sequence[Instance]) -> set[str]:
        return await self._returned("insert_instance", _sorted(map(instance_values, rows)))

    async def append_history(self, rows: Sequence[HistoryRow]) -> None:
        if len(rows) >= COPIED_MIN:
            await copy(self._driver, "history", names=HISTORY, rows=map(history_values, rows))
        else:
            await self._driver.execute(statement("insert_history"), *columns(list(map(history_values, rows))))

    async def answer(self, rows: Sequence[RequestAnswer]) -> None:
        values = [
            (row.request_id, row.partition, row.code, row.message, row.instance_id, row.answered_us)
            for row in rows
        ]
        await self._driver.execute(statement("answer"), *columns(sorted(values)))

    def data_problem(self, error: BaseException) -> str | None:
        return data_problem(error)

    async def _returned(self, name: str, rows: Sequence[Row]) -> set[str]:
        """Ids that the statement returns: those of the rows that it changed."""
        return {row[0] for row in await self._driver.fetch(statement(name), *columns(rows))}


async def copy(driver: DriverConnection, table: str, *, names: Sequence[str], rows: Iterable[Row]) -> None:
    """Add `rows`, in their order, to the columns `names` of a table, with the errors of a statement."""
    try:
        await driver.copy_records_to_table(table, records=rows, columns=names)
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        # What the driver makes of these itself for a statement.
        raise asyncpg.DataError(f"a value cannot be sent: {error}") from error


def columns(rows: Sequence[Row]) -> list[tuple[Value, ...]]:
    """One array a column; `rows` are not empty."""
    return list(zip(*rows, strict=True))


def _first(row: Row) -> str:
    return str(row[0])


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=_first)
