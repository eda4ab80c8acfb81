"""What an owner reads from the in-memory tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from heapq import merge
from itertools import islice, takewhile

from ostinato.core.definition import TaskRef
from ostinato.core.model import Instance
from ostinato.core.schedule.overlap import fire_of, stands_before
from ostinato.core.states import WAITING_STATES, Hold
from ostinato.store.batches import (
    ChangedTask,
    FoundTriggers,
    FoundWork,
    HeldQuery,
    Request,
    TaskChange,
    WaitingTasks,
)
from ostinato.store.memory.tables import Tables, without_payload
from ostinato.store.rules import AGEING_US_PER_PRIORITY, TOLD_COUNT


def find_work(
    tables: Tables, partitions: Sequence[int], *, now_us: int, limit: int, held: Sequence[HeldQuery]
) -> FoundWork:
    owned = frozenset(partitions)
    ranked = merge(*(_due(tables, priority, owned=owned, now_us=now_us) for priority in sorted(tables.due)))
    found = [identifier for _, identifier in islice(ranked, limit + 1)]
    chosen = dict.fromkeys(found[:limit])
    for query in held:
        chosen.update(dict.fromkeys(_held(tables, query, owned=owned)))
    return FoundWork(
        instances=[_work_row(tables.instances[identifier]) for identifier in chosen],
        more=len(found) > limit,
        next_due_us=_next_due_us(tables, owned, now_us=now_us),
    )


def _work_row(instance: Instance) -> Instance:
    row = copy(instance)
    row.failure = None
    return row


def _due(tables: Tables, priority: int, *, owned: frozenset[int], now_us: int) -> Iterator[tuple[int, str]]:
    for due_us, identifier in tables.due[priority]:
        if due_us > now_us:
            return
        if tables.instances[identifier].partition in owned:
            yield due_us - priority * AGEING_US_PER_PRIORITY, identifier


def _held(tables: Tables, query: HeldQuery, *, owned: frozenset[int]) -> list[str]:
    ranked = sorted(
        (due_us - tables.instances[identifier].priority * AGEING_US_PER_PRIORITY, identifier)
        for due_us, identifier in tables.held[query.ref]
        if tables.instances[identifier].hold in query.holds
        and tables.instances[identifier].partition in owned
    )
    return [identifier for _, identifier in ranked[: query.limit]]


def _next_due_us(tables: Tables, owned: frozenset[int], *, now_us: int) -> int | None:
    later: list[int] = []
    for queue in tables.due.values():
        for due_us, identifier in queue.after((now_us + 1, "")):
            if tables.instances[identifier].partition in owned:
                later.append(due_us)
                break
    return min(later, default=None)


def waiting_tasks(
    tables: Tables, partitions: Sequence[int], *, now_us: int, first: TaskRef | None, limit: int
) -> WaitingTasks:
    owned = frozenset(partitions)
    live = sorted(ref for ref, queue in tables.live.items() if queue and (first is None or ref >= first))
    return WaitingTasks(
        [ref for ref in live[:limit] if _waits(tables, ref, owned=owned, now_us=now_us)],
        live[limit] if len(live) > limit else None,
    )


def _waits(tables: Tables, ref: TaskRef, *, owned: frozenset[int], now_us: int) -> bool:
    newest = [tables.instances[key[1]] for key in islice(tables.live[ref].before(None), TOLD_COUNT + 1)]
    told = any(
        row.state in WAITING_STATES and row.hold is None and row.due_us <= now_us and row.partition in owned
        for row in newest[:TOLD_COUNT]
    )
    return told or (len(newest) > TOLD_COUNT and newest[-1].partition in owned)


def find_overlap_ready(tables: Tables, refs: Sequence[TaskRef]) -> list[Instance]:
    ready: list[Instance] = []
    for ref in dict.fromkeys(refs):
        live = [tables.instances[identifier] for _, identifier in tables.live[ref]]
        waiting = [instance for instance in live if instance.hold is Hold.OVERLAP]
        if not waiting:
            continue
        first = min(waiting, key=_overlap_order)
        if not any(stands_before(other, first) for other in live if other.hold is not Hold.OVERLAP):
            # The shards of a fire start together.
            together = [row for row in waiting if row.shard_total > 1 and fire_of(row) == fire_of(first)]
            ready += [_work_row(row) for row in together or [first]]
    return ready


def _overlap_order(instance: Instance) -> tuple[int, int, str]:
    fire_us = instance.created_us if instance.fire_us is None else instance.fire_us
    return fire_us, instance.created_us, instance.id


def held_tasks(tables: Tables, partitions: Sequence[int]) -> list[tuple[TaskRef, Hold]]:
    owned = frozenset(partitions)
    found = {
        (ref, hold)
        for ref, queue in tables.held.items()
        for _, identifier in queue
        if (hold := tables.instances[identifier].hold) is not None
        and tables.instances[identifier].partition in owned
    }
    return sorted(found)


def count_waiting(tables: Tables, *, now_us: int, limit: int) -> int:
    queues = (*tables.due.values(), *tables.held.values())
    due = (1 for queue in queues for _ in takewhile(lambda entry: entry[0] <= now_us, queue))
    return sum(islice(due, limit))


def find_expired(tables: Tables, partitions: Sequence[int], *, now_us: int, limit: int) -> list[Instance]:
    owned = frozenset(partitions)
    found: list[Instance] = []
    for expires_us, identifier in tables.expiring:
        if expires_us >= now_us or len(found) == limit:
            break
        if tables.instances[identifier].partition in owned:
            found.append(copy(tables.instances[identifier]))
    return found


def next_expiry_us(tables: Tables, partitions: Sequence[int]) -> int | None:
    owned = frozenset(partitions)
    return next(
        (
            expires_us
            for expires_us, identifier in tables.expiring
            if tables.instances[identifier].partition in owned
        ),
        None,
    )


def find_due_triggers(tables: Tables, partitions: Sequence[int], *, now_us: int, limit: int) -> FoundTriggers:
    owned = frozenset(partitions)
    active = sorted(
        (row.next_us, row.id)
        for row in tables.triggers.values()
        if row.next_us is not None and row.partition in owned and _may_fire(tables, row.ref)
    )
    due = [
        identifier
        for next_us, identifier in active
        if next_us <= now_us and _is_in_force(tables, tables.triggers[identifier].ref)
    ]
    return FoundTriggers(
        triggers=[tables.triggers[identifier] for identifier in due[:limit]],
        more=len(due) > limit,
        next_us=next((next_us for next_us, _ in active if next_us > now_us), None),
    )


def _may_fire(tables: Tables, ref: TaskRef) -> bool:
    task = tables.tasks.get(ref)
    return task is not None and not task.paused and not task.disabled


def _is_in_force(tables: Tables, ref: TaskRef) -> bool:
    task = tables.tasks[ref]
    return task.scheduled_version == task.version


def live_instances(tables: Tables, refs: Sequence[TaskRef], *, limit: int) -> dict[TaskRef, list[Instance]]:
    return {
        ref: [
            without_payload(tables.instances[identifier]) for _, identifier in islice(tables.live[ref], limit)
        ]
        for ref in refs
    }


def find_changed_tasks(tables: Tables, partitions: Sequence[int], *, limit: int) -> list[ChangedTask]:
    owned = frozenset(partitions)
    changed = sorted(
        (task.updated_us, ref)
        for ref, task in tables.tasks.items()
        if task.partition in owned and task.scheduled_version != task.version
    )
    found: list[ChangedTask] = []
    for _, ref in changed[:limit]:
        task = tables.tasks[ref]
        change = TaskChange(task.definition, task.version, task.partition, task.disabled, task.updated_us)
        found.append(ChangedTask(change, tables.triggers_of(ref)))
    return found


def find_requests(tables: Tables, partitions: Sequence[int], *, limit: int) -> list[Request]:
    owned = frozenset(partitions)
    waiting = (tables.requests[identifier] for _, identifier in tables.open_requests)
    return list(islice((request for request in waiting if request.partition in owned), limit))


def running_instances(
    tables: Tables, partitions: Sequence[int], *, after_id: str, limit: int
) -> list[Instance]:
    owned = frozenset(partitions)
    running = (tables.instances[identifier] for identifier in tables.running.after(after_id))
    mine = (without_payload(instance) for instance in running if instance.partition in owned)
    return list(islice(mine, limit))
