"""What an owner reads: due and held work, what runs, what has expired."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ostinato.core.definition import TaskRef
from ostinato.core.model import Instance
from ostinato.core.schedule.overlap import sharded_fires
from ostinato.core.states import WAITING_STATES, Hold
from ostinato.store.batches import FoundWork, HeldQuery, WaitingTasks
from ostinato.store.postgres.statements import statement
from ostinato.store.rules import AGEING_US_PER_PRIORITY, TOLD_COUNT
from ostinato.store.server.database import DriverConnection
from ostinato.store.server.queue_floors import Branch, QueueFloors, QueueLook
from ostinato.store.server.rows import BRIEF, WHOLE, WORK, brief_instance, whole_instance, work_instance

#: Rows that a branch of the queue gives at first: its head, which is all that is needed of most branches.
_HEAD_COUNT = 4
_PRIORITIES = range(10)


class QueueShape:
    """How many branches of the queue had due rows at the last look.

    The fewer there are, the longer are the heads that the next look reads: of a backlog that stands in one of
    them, as that of one task does, its first statement finds all that is asked for.
    """

    def __init__(self) -> None:
        self._branch_count = 0

    def head_count(self, count: int) -> int:
        """Rows of each branch to read at first, where `count` are asked for in all."""
        share = count if self._branch_count == 1 else 2 * count // max(self._branch_count, 1)
        return min(count, max(_HEAD_COUNT, share if self._branch_count else 0))

    def looked(self, branch_count: int) -> None:
        """So many had due rows."""
        self._branch_count = branch_count


def _age(row: Instance) -> tuple[int, str]:
    return row.due_us - row.priority * AGEING_US_PER_PRIORITY, row.id


def _reading(name: str, columns: Sequence[str]) -> str:
    return statement(name).format(columns=", ".join(f"instance.{column}" for column in columns))


def _by_age(name: str) -> str:
    columns = ", ".join(f"instance.{column}" for column in WORK)
    return statement(name).format(ageing=AGEING_US_PER_PRIORITY, columns=columns)


_DUE = _by_age("find_due")
_DUE_FROM = _by_age("find_due_from")
_DUE_REST = _by_age("find_due_rest")
_HELD = _by_age("find_held")
_INSTANCES = _reading("instances", WORK)
_WAITING_TASKS = statement("waiting_tasks").format(bound="", told=TOLD_COUNT)
_WAITING_TASKS_FROM = statement("waiting_tasks").format(
    bound="AND (namespace, task) <= ($4::text, $5::text)", told=TOLD_COUNT
)
_EXPIRED = _reading("find_expired", WHOLE)
_LIVE = _reading("live_instances", BRIEF)
_RUNNING = _reading("running", BRIEF)


async def find_work(
    driver: DriverConnection,
    partitions: Sequence[int],
    *,
    now_us: int,
    limit: int,
    held: Sequence[HeldQuery],
    floors: QueueFloors,
    shape: QueueShape,
) -> FoundWork:
    """Seeks into the queues of the partitions, merged by age; then the held rows."""
    due, next_due_us = await _due(
        driver, sorted(partitions), now_us=now_us, count=limit + 1, floors=floors, shape=shape
    )
    chosen = {row.id: row for row in due[:limit]}
    held_ids = await _held(driver, held, partitions=partitions)
    for row in await _work(driver, [identifier for identifier in held_ids if identifier not in chosen]):
        # One that has been released meanwhile may be due later.
        if row.hold or row.due_us <= now_us:
            chosen[row.id] = row
    return FoundWork([*chosen.values()], more=len(due) > limit, next_due_us=next_due_us)


async def _due(
    driver: DriverConnection,
    partitions: Sequence[int],
    *,
    now_us: int,
    count: int,
    floors: QueueFloors,
    shape: QueueShape,
) -> tuple[list[Instance], int | None]:
    """The first `count` due rows by age, and when to look again."""
    head_count = shape.head_count(count)
    with floors.look() as look:
        rows = await _heads(driver, partitions, look, now_us=now_us, head_count=head_count, count=count)
        due = [work_instance(row) for row in rows if row[0] is not None]
        branches: dict[Branch, list[Instance]] = {}
        for instance in due:
            branches.setdefault((instance.partition, instance.priority), []).append(instance)
        firsts = {branch: min(row.due_us for row in found) for branch, found in branches.items()}
        # Where there is room for more rows, whoever is not among them has none that is due.
        asked = _branches(partitions) if len(due) < count else ()
        full_us = floors.looked(
            look, firsts, empty=(branch for branch in asked if branch not in firsts), now_us=now_us
        )
    shape.looked(len(branches))
    next_us = [rows[0][-1], full_us]
    next_due_us: int | None = min((each for each in next_us if each is not None), default=None)
    # Of a branch whose head does not end here, nothing behind its head can belong here either.
    cut = [max(found, key=_age) for found in branches.values() if len(found) == head_count < count]
    if cut:
        ends = zip(*((row.partition, row.priority, row.due_us, row.id) for row in cut), strict=True)
        rest = await driver.fetch(_DUE_REST, *ends, now_us, count, count)
        due += map(work_instance, rest)
    return sorted(due, key=_age)[:count], next_due_us


async def _heads(
    driver: DriverConnection,
    partitions: Sequence[int],
    look: QueueLook,
    *,
    now_us: int,
    head_count: int,
    count: int,
) -> list[Any]:
    """Heads of the branches, each row with the next due time; one row without an id where none is due."""
    query, columns = _DUE, [partitions]
    if partitions and not look.is_full:
        branches = [*_branches(partitions)]
        floors = [look.floor_us(branch) for branch in branches]
        query, columns = _DUE_FROM, [*zip(*branches, strict=True), floors]
    return list(await driver.fetch(query, *columns, now_us, head_count, count))


def _branches(partitions: Sequence[int]) -> Iterator[Branch]:
    return ((partition, priority) for partition in partitions for priority in _PRIORITIES)


async def _held(
    driver: DriverConnection, queries: Sequence[HeldQuery], *, partitions: Sequence[int]
) -> list[str]:
    branches = [
        (number, query.ref.namespace, query.ref.name, hold.value, query.limit)
        for number, query in enumerate(queries)
        for hold in sorted(set(query.holds))
    ]
    if not branches:
        return []
    rows = await driver.fetch(_HELD, *zip(*branches, strict=True), sorted(partitions))
    return [row["id"] for row in rows]


async def _work(driver: DriverConnection, ids: Sequence[str]) -> list[Instance]:
    """Of these, those that still wait: what somebody has moved between the statements is no work any more."""
    if not ids:
        return []
    instances = [work_instance(row) for row in await driver.fetch(_INSTANCES, ids)]
    return [row for row in instances if row.state in WAITING_STATES]


async def waiting_tasks(
    driver: DriverConnection, partitions: Sequence[int], *, now_us: int, first: TaskRef | None, limit: int
) -> WaitingTasks:
    """Backwards by name."""
    if first is None:
        rows = await driver.fetch(_WAITING_TASKS, partitions, now_us, limit)
    else:
        rows = await driver.fetch(_WAITING_TASKS_FROM, partitions, now_us, limit, first.namespace, first.name)
    refs = [TaskRef(namespace, task) for namespace, task, waits in rows if waits]
    return WaitingTasks(refs, TaskRef(*rows[limit][:2]) if len(rows) > limit else None)


async def find_overlap_ready(driver: DriverConnection, refs: Sequence[TaskRef]) -> list[Instance]:
    names = _names(dict.fromkeys(refs))
    found = [row[0] for row in await driver.fetch(statement("overlap_ready"), *names)]
    instances = await _work(driver, found)
    if fires := sharded_fires(instances):
        triggers, instants = [trigger for trigger, _ in fires], [fire_us for _, fire_us in fires]
        found += [row[0] for row in await driver.fetch(statement("waiting_shards"), triggers, instants)]
        instances = await _work(driver, list(dict.fromkeys(found)))
    return [row for row in instances if row.hold is Hold.OVERLAP]


async def held_tasks(driver: DriverConnection, partitions: Sequence[int]) -> list[tuple[TaskRef, Hold]]:
    rows = await driver.fetch(statement("held_tasks"), partitions)
    return [(TaskRef(namespace, task), Hold(hold)) for namespace, task, hold in rows]


async def count_waiting(
    driver: DriverConnection, partitions: Sequence[int], *, now_us: int, limit: int
) -> int:
    """From the indexes of the queues and of what is held."""
    return min(int(await driver.fetchval(statement("count_waiting"), partitions, now_us, limit)), limit)


async def find_expired(
    driver: DriverConnection, partitions: Sequence[int], *, now_us: int, limit: int
) -> list[Instance]:
    return [whole_instance(row) for row in await driver.fetch(_EXPIRED, now_us, partitions, limit)]


async def next_expiry_us(driver: DriverConnection, partitions: Sequence[int]) -> int | None:
    earliest: int | None = await driver.fetchval(statement("next_expiry"), partitions)
    return earliest


async def live_instances(
    driver: DriverConnection, refs: Sequence[TaskRef], *, limit: int
) -> dict[TaskRef, list[Instance]]:
    found: dict[TaskRef, list[Instance]] = {ref: [] for ref in refs}
    for row in await driver.fetch(_LIVE, *_names(found), limit):
        instance = brief_instance(row)
        found[instance.ref].append(instance)
    return found


async def running_instances(
    driver: DriverConnection, partitions: Sequence[int], *, after_id: str, limit: int
) -> list[Instance]:
    rows = await driver.fetch(_RUNNING, after_id, partitions, limit)
    return [brief_instance(row) for row in rows]


def _names(refs: Iterable[TaskRef]) -> tuple[list[str], list[str]]:
    listed = list(refs)
    return [ref.namespace for ref in listed], [ref.name for ref in listed]
