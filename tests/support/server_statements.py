"""Runs cold operations of the servers one transaction each, and counts what they cost."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from support.servers import TestDatabase

from ostinato.core.definition import TaskDefinition
from ostinato.store.batches import ApplyReceipt
from ostinato.store.server.apply import apply
from ostinato.testing.contracts.store_kit import PARTITION_COUNT, T0

Result = TypeVar("Result")


class Server:
    """One database, through SQLAlchemy alone."""

    def __init__(self, database: TestDatabase) -> None:
        url = database.server_url
        self.engine: AsyncEngine = create_async_engine(
            url.sqlalchemy_url(), connect_args=url.connect_arguments(), isolation_level="READ COMMITTED"
        )
        self.is_mysql = database.kind != "postgresql"
        #: Of the newest transaction that was begun, with their parameters.
        self.statements: list[tuple[str, Any]] = []
        event.listen(self.engine.sync_engine, "before_cursor_execute", self._note)

    def _note(self, *call: Any) -> None:
        self.statements.append((call[2], call[3]))

    async def run(self, work: Callable[[AsyncConnection], Awaitable[Result]]) -> Result:
        async with self.engine.begin() as connection:
            self.statements.clear()
            return await work(connection)

    async def apply(self, *definitions: TaskDefinition, **options: object) -> list[ApplyReceipt]:
        arguments = {"now_us": T0, "origin": "app", "expected": {}, "partition_count": PARTITION_COUNT}
        return await self.run(
            lambda c: apply(c, definitions, **arguments | options)  # type: ignore[arg-type] # by name
        )

    async def rows_read(self, work: Callable[[AsyncConnection], Awaitable[object]]) -> int:
        """Rows and entries of indexes that the server has gone through for `work`."""
        async with self.engine.connect() as connection:
            if self.is_mysql:
                # Looking costs reads of its own.
                first, second = await _handler_reads(connection), await _handler_reads(connection)
                await work(connection)
                return await _handler_reads(connection) - second - (second - first)
            self.statements.clear()
            # Undone, so that the second time meets the same rows.
            async with connection.begin_nested() as once:
                await work(connection)
                await once.rollback()
            read = 0
            # Once more, each with a count of the rows that every step of its plan went through.
            for statement, parameters in self._explainable():
                explained = await connection.exec_driver_sql(
                    f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters
                )
                plan: Any = explained.scalar_one()
                plan = json.loads(plan) if isinstance(plan, str) else plan
                read += sum(_rows_of_scan(step) for step in _steps(plan[0]["Plan"]))
            return read

    def _explainable(self) -> list[tuple[str, Any]]:
        return [entry for entry in self.statements if "SAVEPOINT" not in entry[0]]


async def _handler_reads(connection: AsyncConnection) -> int:
    rows = await connection.execute(text("SHOW SESSION STATUS LIKE 'Handler_read%'"))
    return sum(int(count) for _, count in rows)


def _steps(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _steps(inner)


def _rows_of_scan(step: dict[str, Any]) -> int:
    if "Relation Name" not in step and "Index Name" not in step:
        return 0
    removed = sum(count for name, count in step.items() if name.startswith("Rows Removed"))
    return int((step["Actual Rows"] + removed) * step["Actual Loops"])
