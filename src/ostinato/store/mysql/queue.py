"""Due work of many partitions, in the order of one queue, at a cost that grows with neither.

The index holds a queue for each partition and priority. First it is asked which partitions have rows, one
seek each, then the same of their queues; then only those that have due rows are read, a few rows of each; and
those of which more could be among the first are read further. What is read so is at most a small multiple of
what was asked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ostinato.store.mysql.literals import statement
from ostinato.store.mysql.session import Columns, Driver, fetch, read_rows
from ostinato.store.rules import AGEING_US_PER_PRIORITY
from ostinato.store.server.queue_floors import LOWEST_US, QueueFloors, QueueLook

#: Partition and priority.
_Group: TypeAlias = tuple[int, int]

_PRIORITIES = range(10)
#: Rows of each group that are read first where many groups share them.
_FIRST_ROWS_MIN = 4
#: Branches of one statement: each has the table opened once.
_BRANCHES_MAX = 200


class Due(NamedTuple):
    """One due row; they compare as the queue orders them."""

    rank_us: int
    id: str


class Queue(NamedTuple):
    """What is due now, and when to look again."""

    due: list[Due]
    next_due_us: int | None


async def find_due(
    driver: Driver, partitions: Sequence[int], *, now_us: int, limit: int, floors: QueueFloors
) -> Queue:
    """The first `limit` due rows of `partitions`, by age and id."""
    pairs = [(partition, priority) for partition in sorted(partitions) for priority in _PRIORITIES]
    with floors.look() as look:
        asked = await _in_use(driver, pairs) if look.is_full else pairs
        firsts = await _firsts(driver, asked, look)
        empty = [pair for pair in pairs if pair not in firsts]
        full_us = floors.looked(look, firsts, empty=empty, now_us=now_us)
    queue = await _find_due(driver, firsts, now_us=now_us, limit=limit)
    if full_us is None:
        return queue
    return queue._replace(next_due_us=min(full_us, queue.next_due_us or full_us))


async def _in_use(driver: Driver, pairs: Sequence[_Group]) -> list[_Group]:
    """Those of `pairs` that may have rows: of most partitions none has."""
    partitions = dict.fromkeys(partition for partition, _ in pairs)
    rows = await read_rows(driver, "due_partitions", rows=[(partition,) for partition in partitions])
    highest: dict[int, int] = {row[0]: row[1] for row in rows}
    return [(partition, priority) for partition, priority in pairs if priority <= highest.get(partition, -1)]


async def _firsts(driver: Driver, pairs: Sequence[_Group], look: QueueLook) -> dict[_Group, int]:
    """Due time of the first row from its floor on, by group; groups without rows are left out."""
    # A bound that stands in a table of values is no bound of the index: a floor has to be written out.
    floors = {pair: floor_us for pair in pairs if (floor_us := look.floor_us(pair)) != LOWEST_US}
    rows = await read_rows(driver, "due_groups", rows=[pair for pair in pairs if pair not in floors])
    firsts: dict[_Group, int] = {(row[0], row[1]): row[2] for row in rows}
    branches = [_branch("next_due", pair, now_us=floor_us - 1) for pair, floor_us in floors.items()]
    async for partition, priority, first_us, _ in _union(driver, branches):
        if first_us is not None:
            firsts[partition, priority] = first_us
    return firsts


async def _find_due(driver: Driver, firsts: Mapping[_Group, int], *, now_us: int, limit: int) -> Queue:
    """The same, of the groups that have rows, by the due times of their first."""
    due = {group: first_us for group, first_us in firsts.items() if first_us <= now_us}
    later = [first_us for first_us in firsts.values() if first_us > now_us]
    if not due:
        return Queue([], min(later, default=None))
    # Only groups whose first rows come first can give any of the first rows; equals are told apart by ids.
    ranks = {group: first_us - group[1] * AGEING_US_PER_PRIORITY for group, first_us in due.items()}
    rank_us_max = sorted(ranks.values())[: max(limit, 1)][-1]
    candidates = [group for group, rank_us in ranks.items() if rank_us <= rank_us_max]
    count = min(max(_FIRST_ROWS_MIN, 2 * limit // len(due)), limit)

    def rows_of(groups: Sequence[_Group], limit: int) -> list[str]:
        return [
            _branch("due_rows", group, first_us=firsts[group], now_us=now_us, limit=limit) for group in groups
        ]

    branches = rows_of(candidates, count)
    branches += [_branch("next_due", group, now_us=now_us) for group in due]
    rows, times = await _read(driver, branches)
    if count < limit:
        last = _last_rank(rows, limit)
        # Of these more rows may come before the last that has been found.
        cut = [group for group, row in rows.items() if len(row) == count and (last is None or row[-1] < last)]
        rows |= (await _read(driver, rows_of(cut, limit)))[0]
    found = sorted(row for group in rows.values() for row in group)[:limit]
    return Queue(found, min(later + times, default=None))


def _last_rank(rows: Mapping[_Group, Sequence[Due]], limit: int) -> Due | None:
    """The last of the first `limit`; None where there are not so many."""
    ranked = sorted(due for group in rows.values() for due in group)
    return ranked[limit - 1] if len(ranked) >= limit else None


async def _read(driver: Driver, branches: Sequence[str]) -> tuple[dict[_Group, list[Due]], list[int]]:
    """Due rows by group, in their order, and the times of later ones."""
    rows: dict[_Group, list[Due]] = {}
    times: list[int] = []
    async for partition, priority, due_us, identifier in _union(driver, branches):
        if identifier is not None:
            found = Due(due_us - priority * AGEING_US_PER_PRIORITY, identifier)
            rows.setdefault((partition, priority), []).append(found)
        elif due_us is not None:
            times.append(due_us)
    for ranked in rows.values():
        ranked.sort()
    return rows, times


async def _union(driver: Driver, branches: Sequence[str]) -> AsyncIterator[Columns]:
    """Rows of all branches, in as many statements as it takes."""
    for start in range(0, len(branches), _BRANCHES_MAX):
        for row in await fetch(driver, " UNION ALL ".join(branches[start : start + _BRANCHES_MAX])):
            yield row


def _branch(name: str, group: _Group, *, now_us: int, first_us: int = 0, limit: int = 0) -> str:
    partition, priority = group
    return statement(name).format(
        partition=partition, priority=priority, first_us=first_us, now_us=now_us, limit=limit
    )
