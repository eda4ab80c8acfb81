"""What looks at triggers and edits cost on SQLite: as much with many tasks as with few."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ostinato.core.ids import partition_of
from ostinato.store.batches import SwitchVersion
from ostinato.store.sqlite.store import SqliteStore
from ostinato.testing.contracts.store_kit import (
    ALL,
    MINUTE,
    REF,
    T0,
    ContractClock,
    Owner,
    make_definition,
    make_trigger,
)

FEW, MANY = 300, 5_000


async def _steps(store: SqliteStore, look: Callable[[], Awaitable[object]]) -> int:
    """Work of the database for one look, in tens of its instructions."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    # Once for what is prepared the first time.
    await look()
    await store._work_reader.run("a test", lambda c: c.set_progress_handler(step, 10))
    await look()
    await store._work_reader.run("a test", lambda c: c.set_progress_handler(None, 10))
    return count


async def _switch(owner: Owner, names: list[str]) -> None:
    batch = owner.batch()
    count = owner.store.partition_count
    batch.switches = [
        SwitchVersion(
            REF.namespace,
            name,
            partition_of(REF.namespace, name, partition_count=count),
            1,
            [make_trigger(f"of-{name}", partition=3, next_us=T0 + MINUTE, name=name)],
        )
        for name in names
    ]
    assert not (await owner.store.commit(batch)).rejected


@pytest.mark.parametrize("what", ["changed", "due"])
async def test_a_look_costs_as_much_while_many_edits_wait_as_while_few_do(tmp_path: Path, what: str) -> None:
    store = SqliteStore(str(tmp_path / "x.db"), clock=ContractClock())
    await store.open()
    owner = await Owner.of(store)

    def look() -> Awaitable[object]:
        if what == "changed":
            return store.find_changed_tasks(ALL, limit=250)
        return store.find_due_triggers(ALL, now_us=T0, limit=250)

    few = [make_definition(f"few-{number:04}") for number in range(FEW)]
    many = [make_definition(f"many-{number:04}") for number in range(MANY)]
    await store.apply([*few, *many], now_us=T0)
    await _switch(owner, [definition.name for definition in (*few, *many)])
    # All at one instant, as from one document.
    await store.apply([make_definition(row.name, command="false") for row in few], now_us=T0 + 1)
    before = await _steps(store, look)
    assert before > 0
    await store.apply([make_definition(row.name, command="false") for row in many], now_us=T0 + 1)
    assert await _steps(store, look) <= before * 1.2
    await store.close()
