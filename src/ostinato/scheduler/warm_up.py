"""What a new owner reads before its loops run: running attempts to adopt, and tasks with held work."""

from __future__ import annotations

from ostinato.clock import Clock
from ostinato.core.partition.state import running_attempt
from ostinato.scheduler.definitions import Definitions
from ostinato.scheduler.held_work import HeldWork
from ostinato.scheduler.ownership import Ownership
from ostinato.store.protocol import Store

BATCH_COUNT = 1000


async def warm_up(
    ownership: Ownership, *, store: Store, clock: Clock, definitions: Definitions, held: HeldWork
) -> int:
    """Fill memory from the database; returns the number of running attempts found.

    A running attempt goes on with its worker when that reconnects; nothing is retried because of a restart.
    """
    memory = ownership.memory
    partitions = list(memory.epochs)
    after_id = ""
    while True:
        rows = await store.running_instances(partitions, after_id=after_id, limit=BATCH_COUNT)
        await definitions.load(rows)
        for row in rows:
            definition = definitions.pinned(row.ref, row.task_version)
            if definition is not None:
                memory.running[row.id] = running_attempt(row, definition, known_since_boot_us=clock.boot_us())
        if len(rows) < BATCH_COUNT:
            break
        after_id = rows[-1].id
    for ref, cause in await store.held_tasks(partitions):
        held.note(ref, cause)
    return len(memory.running)
