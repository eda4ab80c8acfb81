"""What a new owner reads before its loops run: running attempts to adopt, and tasks with held work."""

from __future__ import annotations

from ostinato.core.partition.state import running_attempt
from ostinato.scheduler.parts import NodeParts

BATCH_COUNT = 1000


async def warm_up(parts: NodeParts) -> int:
    """Fill memory from the database; returns the number of running attempts found.

    A running attempt goes on with its worker when that reconnects; nothing is retried because of a restart.
    """
    memory, store, definitions = parts.ownership.memory, parts.store, parts.definitions
    partitions = list(memory.epochs)
    after_id = ""
    while True:
        rows = await store.running_instances(partitions, after_id=after_id, limit=BATCH_COUNT)
        await definitions.load(rows)
        for row in rows:
            definition = definitions.pinned(row.ref, row.task_version)
            if definition is not None:
                memory.running[row.id] = running_attempt(
                    row, definition, known_since_boot_us=parts.clock.boot_us()
                )
        if len(rows) < BATCH_COUNT:
            break
        after_id = rows[-1].id
    for ref, cause in await store.held_tasks(partitions):
        parts.held.note(ref, cause)
    return len(memory.running)
