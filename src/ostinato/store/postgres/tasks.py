"""Rows of tasks by name, which every submission reads: its own statement, as building it takes longer."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.core.definition import TaskRef, TaskRow
from ostinato.store.postgres.statements import statement
from ostinato.store.server.database import DriverConnection
from ostinato.store.server.dialect_sql import chunks, findable
from ostinato.store.server.tasks import task_row


async def get_tasks(driver: DriverConnection, refs: Sequence[TaskRef]) -> dict[TaskRef, TaskRow]:
    """Live rows of tasks; missing ones are left out."""
    found: dict[TaskRef, TaskRow] = {}
    for chunk in chunks([ref for ref in dict.fromkeys(refs) if findable(ref.namespace, ref.name)]):
        names = [ref.namespace for ref in chunk], [ref.name for ref in chunk]
        tasks = [task_row(row) for row in await driver.fetch(statement("tasks"), *names)]
        found |= {row.ref: row for row in tasks}
    return found
