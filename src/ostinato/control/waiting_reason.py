"""Why an instance that is due does not run, where nothing is on record about it.

Dispatch looks at no more rows than there are free slots, and some; what is due beyond them has no reason of
its own. It is worked out here, when somebody asks, from what nodes have recorded of their workers, which is
about a second older than what it tells.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.routing import RoutingRound, WorkerView, is_eligible
from ostinato.store.batches import WorkerRow
from ostinato.store.protocol import Store


async def waiting_reason(store: Store, definition: TaskDefinition) -> str:
    """What holds due work of a task up: nobody can run it, or all who can are busy. Empty: neither."""
    nodes = {node.id for node in await store.nodes()}
    return reason_of(definition, await store.workers(), nodes=nodes)


def reason_of(definition: TaskDefinition, rows: Sequence[WorkerRow], *, nodes: Collection[str]) -> str:
    """As `waiting_reason`; rows count while their node is one of `nodes`."""
    views = _views([row for row in rows if row.state == "connected" and row.node_id in nodes], definition)
    if any(view.free[definition.pool] > 0 for view in views if is_eligible(view, definition)):
        return ""
    return RoutingRound(views, strategy="least_loaded").unplaced(definition).reason


def _views(rows: Sequence[WorkerRow], definition: TaskDefinition) -> list[WorkerView]:
    """One for each worker; how many attempts it has is known over all of its pools alone."""
    pool = definition.pool
    running: dict[str, int] = {}
    for row in rows:
        running[row.worker_id] = running.get(row.worker_id, 0) + row.running_count
    by_id = {row.worker_id: row for row in rows}
    return [
        WorkerView(
            worker_id=row.worker_id,
            worker_name=row.worker_name,
            labels=row.labels,
            tasks=frozenset(TaskRef(*name.split("/", 1)) for name in row.tasks if "/" in name),
            executors=frozenset(row.executors),
            capacity=row.capacity,
            free={pool: row.capacity.get(pool, 0) - running[row.worker_id]},
        )
        for row in by_id.values()
    ]
