"""Due work of many partitions, in the order of one queue, at a cost that grows with neither.

The index holds a queue for each partition and priority. First it is asked which of these have rows, one seek
each; then only those that have due rows are read, a few rows of each; and those of which more could be among
the first are read further. What is read so is at most a small multiple of what was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ostinato.store.mysql.literals import statement
from ostinato.store.mysql.session import Driver, fetch, read_rows
from ostinato.store.rules import AGEING_US_PER_PRIORITY

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


async def find_due(driver: Driver, partitions: Sequence[int], *, now_us: int, limit: int) -> Queue:
    """The first `limit` due rows of `partitions`, by age and id."""
    pairs = [(partition, priority) for partition in sorted(partitions) for priority in _PRIORITIES]
    firsts = {(row[0], row[1]): row[2] for row in await read_rows(driver, "due_groups", rows=pairs)}
    due = {group: first_us for group, first_us in firsts.items() if first_us <= now_us}
    later = [first_us for first_us in firsts.values() if first_us > now_us]
    if not due:
        return Queue([], min(later, default=None))
    # Only groups whose first rows come first can give any of the first rows; equals are told apart by ids.
    ranks = {group: first_us - group[1] * AGEING_US_PER_PRIORITY for group, first_us in due.items()}
    rank_us_max = sorted(ranks.values())[: max(limit, 1)][-1]
    candidates = [group for group, rank_us in ranks.items() if rank_us <= rank_us_max]
    count = min(max(_FIRST_ROWS_MIN, 2 * limit // len(due)), limit)
    branches = [_branch("due_rows", group, now_us=now_us, limit=count) for group in candidates]
    branches += [_branch("next_due", group, now_us=now_us) for group in due]
    rows, times = await _read(driver, branches)
    if count < limit:
        last = _last_rank(rows, limit)
        # Of these more rows may come before the last that has been found.
        cut = [group for group, row in rows.items() if len(row) == count and (last is None or row[-1] < last)]
        further = [_branch("due_rows", group, now_us=now_us, limit=limit) for group in cut]
        rows |= (await _read(driver, further))[0]
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
    for start in range(0, len(branches), _BRANCHES_MAX):
        query = " UNION ALL ".join(branches[start : start + _BRANCHES_MAX])
        for partition, priority, due_us, identifier in await fetch(driver, query):
            if identifier is not None:
                found = Due(due_us - priority * AGEING_US_PER_PRIORITY, identifier)
                rows.setdefault((partition, priority), []).append(found)
            elif due_us is not None:
                times.append(due_us)
    for ranked in rows.values():
        ranked.sort()
    return rows, times


def _branch(name: str, group: _Group, *, now_us: int, limit: int = 0) -> str:
    partition, priority = group
    return statement(name).format(partition=partition, priority=priority, now_us=now_us, limit=limit)
