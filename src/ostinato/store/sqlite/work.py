"""What an owner reads: due and held work, what runs, what has expired."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from ostinato.core.definition import TaskRef
from ostinato.core.model import Instance
from ostinato.core.schedule.overlap import sharded_fires
from ostinato.core.states import Hold
from ostinato.store.batches import FoundWork, HeldQuery, Request, WaitingTasks
from ostinato.store.rules import AGEING_US_PER_PRIORITY, TOLD_COUNT
from ostinato.store.sqlite.rows import read_brief, read_whole, read_work, row_numbers
from ostinato.store.sqlite.statements import statement

_PRIORITIES = range(10)


def find_work(
    connection: sqlite3.Connection, owned: str, *, now_us: int, limit: int, held: Sequence[HeldQuery]
) -> FoundWork:
    """Ten seeks into the queue, one per priority, merged by age; then the rows themselves."""
    connection.execute("BEGIN")
    branches = [statement("find_due").format(priority=priority, owned=owned) for priority in _PRIORITIES]
    due = row_numbers(connection, _by_age(branches), parameters={"now_us": now_us, "limit": limit + 1})
    chosen = dict.fromkeys(due[:limit])
    for query in held:
        chosen.update(dict.fromkeys(_held(connection, query, owned=owned)))
    found = FoundWork(
        instances=read_work(connection, list(chosen)),
        more=len(due) > limit,
        next_due_us=_next_due_us(connection, owned, now_us=now_us),
    )
    connection.commit()
    return found


def _by_age(branches: Iterable[str]) -> str:
    return (
        f"SELECT row_number FROM ({' UNION ALL '.join(branches)})"
        f" ORDER BY due_us - priority * {AGEING_US_PER_PRIORITY}, id LIMIT :limit"
    )


def _held(connection: sqlite3.Connection, query: HeldQuery, *, owned: str) -> list[int]:
    branches = [
        statement("find_held").format(hold=hold.value, priority=priority, owned=owned)
        for hold in sorted(set(query.holds))
        for priority in _PRIORITIES
    ]
    if not branches:
        return []
    return row_numbers(
        connection,
        _by_age(branches),
        parameters={
            "limit": query.limit,
            "namespace": query.ref.namespace,
            "task": query.ref.name,
        },
    )


def _next_due_us(connection: sqlite3.Connection, owned: str, *, now_us: int) -> int | None:
    branches = [statement("next_due").format(priority=priority, owned=owned) for priority in _PRIORITIES]
    earliest: int | None = connection.execute(
        f"SELECT min(due_us) FROM ({' UNION ALL '.join(branches)})", {"now_us": now_us}
    ).fetchone()[0]
    return earliest


def waiting_tasks(
    connection: sqlite3.Connection, owned: str, *, now_us: int, first: TaskRef | None, limit: int
) -> WaitingTasks:
    """Backwards by name."""
    bound = "" if first is None else "AND (namespace, task) <= (:namespace, :task)"
    names = {} if first is None else {"namespace": first.namespace, "task": first.name}
    query = statement("waiting_tasks").format(bound=bound, owned=owned, told=TOLD_COUNT)
    rows = sorted(connection.execute(query, {"now_us": now_us, "limit": limit, **names}))
    refs = [TaskRef(namespace, task) for _, namespace, task, waits in rows if waits]
    return WaitingTasks(refs, TaskRef(*rows[limit][1:3]) if len(rows) > limit else None)


def find_overlap_ready(connection: sqlite3.Connection, refs: Sequence[TaskRef]) -> list[Instance]:
    connection.execute("BEGIN")
    numbers: list[int] = []
    for ref in dict.fromkeys(refs):
        names = {"namespace": ref.namespace, "task": ref.name}
        numbers += row_numbers(connection, statement("overlap_ready"), parameters=names)
    instances = read_work(connection, numbers)
    for trigger, fire_us in sharded_fires(instances):
        fire = {"fire_trigger": trigger, "fire_us": fire_us}
        numbers += row_numbers(connection, statement("waiting_shards"), parameters=fire)
    if len(numbers) > len(instances):
        instances = read_work(connection, list(dict.fromkeys(numbers)))
    connection.commit()
    return instances


def held_tasks(connection: sqlite3.Connection, owned: str) -> list[tuple[TaskRef, Hold]]:
    rows = connection.execute(
        "SELECT DISTINCT namespace, task, hold FROM instance INDEXED BY instance_held"
        f" WHERE hold IS NOT NULL {owned} ORDER BY namespace, task, hold"
    )
    return [(TaskRef(namespace, task), Hold(hold)) for namespace, task, hold in rows]


def count_waiting(connection: sqlite3.Connection, *, now_us: int, limit: int) -> int:
    """From the indexes of the queue and of what is held; no row is read."""
    query = statement("count_waiting").format(priorities=", ".join(map(str, _PRIORITIES)))
    (count,) = connection.execute(query, {"now_us": now_us, "limit": limit}).fetchone()
    return min(int(count), limit)


def find_expired(connection: sqlite3.Connection, owned: str, *, now_us: int, limit: int) -> list[Instance]:
    connection.execute("BEGIN")
    query = statement("find_expired").format(owned=owned)
    instances = read_whole(
        connection, row_numbers(connection, query, parameters={"now_us": now_us, "limit": limit})
    )
    connection.commit()
    return instances


def next_expiry_us(connection: sqlite3.Connection, owned: str) -> int | None:
    row = connection.execute(statement("next_expiry").format(owned=owned)).fetchone()
    return None if row is None else int(row[0])


def live_instances(
    connection: sqlite3.Connection, refs: Sequence[TaskRef], *, limit: int
) -> dict[TaskRef, list[Instance]]:
    connection.execute("BEGIN")
    found: dict[TaskRef, list[Instance]] = {}
    for ref in refs:
        names = {"namespace": ref.namespace, "task": ref.name, "limit": limit}
        found[ref] = read_brief(
            connection, row_numbers(connection, statement("live_instances"), parameters=names)
        )
    connection.commit()
    return found


def running_instances(
    connection: sqlite3.Connection, owned: str, *, after_id: str, limit: int
) -> list[Instance]:
    connection.execute("BEGIN")
    query = statement("running").format(owned=owned)
    numbers = row_numbers(connection, query, parameters={"after_id": after_id, "limit": limit})
    instances = read_brief(connection, numbers)
    connection.commit()
    return instances


def find_requests(connection: sqlite3.Connection, owned: str, *, limit: int) -> list[Request]:
    rows = connection.execute(
        "SELECT id, partition, kind, namespace, created_us, task, instance_id, body, by FROM request"
        f" WHERE code IS NULL {owned} ORDER BY created_us, id LIMIT ?",
        (limit,),
    )
    return [
        Request(
            id=row[0],
            partition=row[1],
            kind=row[2],
            namespace=row[3],
            created_us=row[4],
            task=row[5],
            instance_id=row[6],
            body=row[7],
            by=row[8],
        )
        for row in rows
    ]
