"""What an owner reads: due and held work, what runs, what has expired."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ostinato.core.definition import TaskRef
from ostinato.core.model import Instance
from ostinato.core.schedule.overlap import sharded_fires
from ostinato.core.states import WAITING_STATES, Hold, State
from ostinato.store.batches import FoundWork, HeldQuery, WaitingTasks
from ostinato.store.mysql.literals import Item, chunks, listed, literal, statement
from ostinato.store.mysql.queue import find_due
from ostinato.store.mysql.session import Columns, Driver, fetch, read_rows
from ostinato.store.rules import AGEING_US_PER_PRIORITY, TOLD_COUNT
from ostinato.store.server.queue_floors import QueueFloors
from ostinato.store.server.rows import BRIEF, WHOLE, WORK, brief_instance, whole_instance, work_instance

_PRIORITIES = range(10)
#: Branches of one statement: each has the table opened once or twice.
_BRANCHES_MAX = 50
#: Newest instances of a task that are read first.
_TOLD_COUNT_FIRST = 4


async def find_work(
    driver: Driver,
    partitions: Sequence[int],
    *,
    now_us: int,
    limit: int,
    held: Sequence[HeldQuery],
    floors: QueueFloors,
) -> FoundWork:
    """As the protocol says; the rows are read last, so that only those that are given are read."""
    queue = await find_due(driver, partitions, now_us=now_us, limit=limit + 1, floors=floors)
    chosen = dict.fromkeys(due.id for due in queue.due[:limit])
    chosen.update(dict.fromkeys(await _held(driver, held, partitions=partitions)))
    instances = await _read(driver, list(chosen), columns=WORK, build=work_instance)
    # What somebody has moved between the statements is no work any more.
    instances = [
        row for row in instances if row.state in WAITING_STATES and (row.hold or row.due_us <= now_us)
    ]
    return FoundWork(instances, more=len(queue.due) > limit, next_due_us=queue.next_due_us)


async def _held(driver: Driver, queries: Sequence[HeldQuery], *, partitions: Sequence[int]) -> list[str]:
    """Of each query the first rows by age, up to its limit; two statements for all but very many tasks."""
    if not queries or not partitions:
        return []
    wanted = [
        (number, query.ref.namespace, query.ref.name, hold.value, priority)
        for number, query in enumerate(queries)
        for hold in sorted(set(query.holds))
        for priority in _PRIORITIES
    ]
    groups = await read_rows(driver, "held_groups", rows=wanted)
    branches = [
        statement("held_rows").format(
            query=number,
            hold=literal(hold),
            namespace=literal(queries[number].ref.namespace),
            task=literal(queries[number].ref.name),
            priority=priority,
            first_us=first_us,
            partitions=listed(sorted(partitions)),
            limit=queries[number].limit,
        )
        for number, hold, priority, first_us in groups
    ]
    ranked: dict[int, list[tuple[int, str]]] = {}
    for part in _parts(branches):
        for number, priority, due_us, identifier in await fetch(driver, " UNION ALL ".join(part)):
            rank_us = due_us - priority * AGEING_US_PER_PRIORITY
            ranked.setdefault(number, []).append((rank_us, identifier))
    return [
        identifier
        for number, rows in sorted(ranked.items())
        for _, identifier in sorted(rows)[: queries[number].limit]
    ]


async def waiting_tasks(
    driver: Driver, partitions: Sequence[int], *, now_us: int, first: TaskRef | None, limit: int
) -> WaitingTasks:
    """By name. Its newest few tell of nearly every task; of the others more are read."""
    found = await _live_tasks(driver, first=first, limit=limit + 1)
    asked = [ref for ref, is_live in found[:limit] if is_live]
    owned = frozenset(partitions)
    waiting: set[TaskRef] = set()
    for count in (_TOLD_COUNT_FIRST, TOLD_COUNT + 1):
        newest = await _newest_live(driver, asked, now_us=now_us, limit=count)
        for ref, rows in newest.items():
            told = any(waits and partition in owned for partition, waits in rows[:TOLD_COUNT])
            if told or any(partition in owned for partition, _ in rows[TOLD_COUNT:]):
                waiting.add(ref)
        asked = [ref for ref, rows in newest.items() if ref not in waiting and len(rows) == count]
    return WaitingTasks(
        [ref for ref, _ in found[:limit] if ref in waiting], found[limit][0] if len(found) > limit else None
    )


async def _live_tasks(driver: Driver, *, first: TaskRef | None, limit: int) -> list[tuple[TaskRef, bool]]:
    """Tasks that have instances, by name, and whether any of these has not ended."""
    wheres = [""]
    if first is not None:
        # One range of the index each: of a comparison of pairs neither server makes one.
        namespace = literal(first.namespace)
        wheres = [
            f"WHERE namespace = {namespace} AND task >= {literal(first.name)}",
            f"WHERE namespace > {namespace}",
        ]
    found: list[tuple[TaskRef, bool]] = []
    for where in wheres:
        if len(found) < limit:
            query = statement("live_tasks").format(where=where, limit=limit - len(found))
            rows = await fetch(driver, query)
            found += [
                (TaskRef(namespace, task), created_us is not None) for namespace, task, created_us in rows
            ]
    return found


async def _newest_live(
    driver: Driver, refs: Sequence[TaskRef], *, now_us: int, limit: int
) -> dict[TaskRef, list[tuple[int, bool]]]:
    """Of each task its newest instances: their partition, and whether each waits."""
    newest: dict[TaskRef, list[tuple[int, bool]]] = {}
    for part in _parts(refs):
        branches = [
            statement("newest_live").format(
                number=number,
                now_us=now_us,
                namespace=literal(ref.namespace),
                task=literal(ref.name),
                limit=limit,
            )
            for number, ref in enumerate(part)
        ]
        for number, partition, waits in await fetch(driver, " UNION ALL ".join(branches)):
            newest.setdefault(part[number], []).append((partition, bool(waits)))
    return newest


async def find_overlap_ready(driver: Driver, refs: Sequence[TaskRef]) -> list[Instance]:
    found: list[str] = []
    for part in _parts(list(dict.fromkeys(refs))):
        branches = [
            statement("overlap_ready").format(namespace=literal(ref.namespace), task=literal(ref.name))
            for ref in part
        ]
        found += [row[0] for row in await fetch(driver, " UNION ALL ".join(branches))]
    instances = await _read(driver, found, columns=WORK, build=work_instance)
    if fires := sharded_fires(instances):
        pairs = ", ".join(f"({literal(trigger)}, {fire_us})" for trigger, fire_us in fires)
        found += [row[0] for row in await fetch(driver, statement("waiting_shards").format(fires=pairs))]
        instances = await _read(driver, list(dict.fromkeys(found)), columns=WORK, build=work_instance)
    return [row for row in instances if row.hold is Hold.OVERLAP]


async def held_tasks(driver: Driver, partitions: Sequence[int]) -> list[tuple[TaskRef, Hold]]:
    if not partitions:
        return []
    query = statement("held_tasks").format(partitions=listed(sorted(partitions)))
    rows = sorted(tuple(row) for row in await fetch(driver, query))
    return [(TaskRef(namespace, task), Hold(hold)) for namespace, task, hold in rows]


async def count_waiting(driver: Driver, partitions: Sequence[int], *, now_us: int, limit: int) -> int:
    """From the indexes of the queues and of what is held."""
    query = statement("count_waiting").format(
        partitions=listed(partitions), priorities=listed(_PRIORITIES), now_us=now_us, limit=limit
    )
    ((count,),) = await fetch(driver, query)
    return min(int(count), limit)


async def find_expired(
    driver: Driver, partitions: Sequence[int], *, now_us: int, limit: int
) -> list[Instance]:
    if not partitions:
        return []
    query = statement("find_expired").format(
        now_us=now_us, partitions=listed(sorted(partitions)), limit=limit
    )
    found = [row[0] for row in await fetch(driver, query)]
    instances = await _read(driver, found, columns=WHOLE, build=whole_instance)
    return [row for row in instances if row.state in WAITING_STATES]


async def next_expiry_us(driver: Driver, partitions: Sequence[int]) -> int | None:
    if not partitions:
        return None
    query = statement("next_expiry").format(partitions=listed(sorted(partitions)))
    rows = await fetch(driver, query)
    return int(rows[0][0]) if rows else None


async def live_instances(
    driver: Driver, refs: Sequence[TaskRef], *, limit: int
) -> dict[TaskRef, list[Instance]]:
    found: dict[TaskRef, list[Instance]] = {ref: [] for ref in refs}
    ids: list[str] = []
    for part in _parts(list(found)):
        branches = [
            statement("live_instances").format(
                namespace=literal(ref.namespace), task=literal(ref.name), limit=limit
            )
            for ref in part
        ]
        ids += [row[0] for row in await fetch(driver, " UNION ALL ".join(branches))]
    for instance in await _read(driver, ids, columns=BRIEF, build=brief_instance):
        if instance.finished_us is None:
            found[instance.ref].append(instance)
    return found


async def running_instances(
    driver: Driver, partitions: Sequence[int], *, after_id: str, limit: int
) -> list[Instance]:
    if not partitions:
        return []
    query = statement("running").format(
        after_id=literal(after_id), partitions=listed(sorted(partitions)), limit=limit
    )
    found = [row[0] for row in await fetch(driver, query)]
    instances = await _read(driver, found, columns=BRIEF, build=brief_instance)
    # The last one found names the next page, so an end in between must not leave the page empty.
    return [row for row in instances if row.state is State.RUNNING]


async def _read(
    driver: Driver, ids: Sequence[str], *, columns: Sequence[str], build: Callable[[Columns], Instance]
) -> list[Instance]:
    """Instances in the order of `ids`; those that have gone meanwhile are left out."""
    names = ", ".join(f"`{name}`" for name in columns)
    found: dict[str, Instance] = {}
    for chunk in chunks(ids):
        query = f"SELECT {names} FROM instance FORCE INDEX (PRIMARY) WHERE id IN {listed(chunk)}"
        found |= {row[0]: build(row) for row in await fetch(driver, query)}
    return [found[identifier] for identifier in ids if identifier in found]


def _parts(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), _BRANCHES_MAX):
        yield items[start : start + _BRANCHES_MAX]
