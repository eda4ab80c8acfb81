"""Lists and counts of instances, whose cost has a bound whatever the filter and the table.

A list is newest first, which is the order of ids. Each way through the table gives rows in that order, or a
set small enough to sort, and is walked for a bounded number of rows; what no index knows is asked of those
rows. Of several ways only what lies above the place that all of them have reached is shown, and the cursor
names that place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from sqlalchemy import ColumnElement, and_, case, func, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.core.model import Instance
from ostinato.core.states import LIVE_STATES, State
from ostinato.store.batches import InstanceCounts, InstanceFilter, InstancePage
from ostinato.store.paging import (
    COUNTED_ENTRIES_MAX,
    SCANNED_ROWS_MAX,
    created_bounds,
    matches,
    read_cursor,
    write_cursor,
)
from ostinato.store.schema import instance
from ostinato.store.server.dialect_sql import code_of, findable, is_mysql
from ostinato.store.server.rows import BRIEF, brief_instance, columns_of
from ostinato.store.server.seeks import first_values
from ostinato.store.server.ways import (
    EVERYTHING,
    Way,
    entries,
    has_index,
    pin_plans,
    walked,
    way_of_key,
    way_of_state,
    way_of_task,
    ways_of_task,
)

#: Neither where all begin nor where most end: an index leads to few.
_INDEXED_STATES = frozenset(State) - {State.PENDING, State.SUCCESS}
#: A task without its namespace is looked for in so many; in more, all instances are gone through.
_NAMESPACES_MAX = 50
#: Rows that one call looks at for a code: their failures have to be read, and lie apart from them.
_SCANNED_FOR_CODE_MAX = 8_000
#: Rows that MySQL is asked to look at first: it looks at all before it gives the first that matches.
_FIRST_ROWS = 500

_BRIEF = select(*columns_of(BRIEF)).order_by(instance.c.id.desc())


class _Walk(msgspec.Struct, frozen=True):
    """What a way has shown: matching ids, newest first, and where it stopped; None at its end."""

    ids: list[str]
    stopped_id: str | None


class _Query:
    """A filter as a condition, and the ways that lead to its rows."""

    def __init__(
        self, connection: AsyncConnection, where: InstanceFilter, *, cursor: str | None, scanned_max: int
    ) -> None:
        self.connection = connection
        self.where = where
        self.scanned_max = scanned_max
        #: Rows that one way may look at; None: the ways share what all may.
        self.share: int | None = None
        first, before = created_bounds(where)
        last_id = read_cursor(cursor)
        self.bounds = first, before if last_id is None else min(before, last_id)
        self.matching = self._matching()

    def _matching(self) -> ColumnElement[bool]:
        """Condition that every row shown meets, the cheap parts first."""
        where, columns = self.where, instance.c
        terms: list[ColumnElement[bool]] = [
            columns[name] == getattr(where, name)
            for name in ("namespace", "task", "key")
            if getattr(where, name) is not None
        ]
        if where.states:
            terms.append(columns.state.in_([state.value for state in sorted(set(where.states))]))
        if where.created_from_us is not None:
            terms.append(columns.created_us >= where.created_from_us)
        if where.created_before_us is not None:
            terms.append(columns.created_us < where.created_before_us)
        if where.code is not None:
            terms.append(columns.failure.is_not(None))
            terms.append(code_of(self.connection, columns.failure) == where.code)
        return and_(true(), *terms)

    # ── ways ─────────────────────────────────────────────────────────────────────────────────────────

    async def ways(self) -> list[Way]:
        """The ways that together lead to every row of the filter."""
        if self.where.key:
            return [way_of_key(self.where.key)]
        few = await self._few()
        if few is not None:
            self.share = self.scanned_max
            return few
        return await self._many()

    async def _many(self) -> list[Way]:
        where = self.where
        if where.namespace is not None and where.task is not None:
            return [way_of_task(where.namespace, where.task)]
        by_state = [way_of_state(state) for state in sorted(set(where.states))]
        if by_state and _INDEXED_STATES.issuperset(where.states):
            return by_state
        if where.task is not None:
            return await self._by_task_alone(where.task)
        if by_state and all(has_index(self.connection, state) for state in where.states):
            return by_state
        return [EVERYTHING]

    async def _by_task_alone(self, task: str) -> list[Way]:
        namespaces = await first_values(
            self.connection, instance.c.namespace, index="instance_task", limit=_NAMESPACES_MAX + 1
        )
        if len(namespaces) > _NAMESPACES_MAX:
            return [EVERYTHING]
        return await ways_of_task(self.connection, task, namespaces=namespaces)

    async def _few(self) -> list[Way] | None:
        """Ways over so few rows that they are looked at all at once; None where there are none."""
        for ways in self._candidates():
            if await self._entry_count(ways) < self.scanned_max:
                return ways
        return None

    def _candidates(self) -> Iterator[list[Way]]:
        where = self.where
        states = sorted(set(where.states))
        names: tuple[str, ...] = () if where.namespace is None else (where.namespace,)
        if where.namespace is not None and where.task is not None:
            names = (where.namespace, where.task)
        if is_mysql(self.connection):
            # Every state has its ids in order; what is live has none that leaves out what has ended.
            if states:
                yield [way_of_state(state) for state in states]
        else:
            if states and LIVE_STATES.issuperset(states):
                yield [Way("instance_live", names, is_whole=True)]
            if states and State.SUCCESS not in states:
                ways = [way_of_state(state) for state in states if state is not State.PENDING]
                if State.PENDING in states:
                    ways.append(Way("instance_live", names, is_whole=True, state=State.PENDING.value))
                yield ways
        if where.namespace is not None and where.task is None:
            yield [Way("instance_task", names, is_whole=True)]

    async def _entry_count(self, ways: Sequence[Way]) -> int:
        """Entries of the ways' indexes, counted up to the number of rows that may be looked at."""
        count = 0
        for way in ways:
            if count < self.scanned_max:
                count += await _count(self.connection, way, limit=self.scanned_max - count)
        return count

    # ── walks ────────────────────────────────────────────────────────────────────────────────────────

    async def walk(self, way: Way, *, scanned_max: int, limit: int) -> _Walk:
        """Up to `limit` matching rows among the first `scanned_max` of the way."""
        if way.is_whole:
            ids = await self._matching_ids(way, self.bounds, scanned_max=scanned_max, limit=limit)
            return _Walk(ids, ids[-1] if len(ids) == limit else None)
        first, before = self.bounds
        found: list[str] = []
        for count in self._portions(scanned_max):
            wanted = limit - len(found)
            found += await self._matching_ids(way, (first, before), scanned_max=count, limit=wanted)
            if len(found) == limit:
                return _Walk(found, found[-1])
            end = walked(self.connection, way, columns=[instance.c.id], bounds=(first, before))
            stopped_id = await self.connection.scalar(end.limit(1).offset(count - 1))
            if stopped_id is None:
                return _Walk(found, None)
            before = stopped_id
        return _Walk(found, before)

    def _portions(self, scanned_max: int) -> list[int]:
        if not is_mysql(self.connection) or scanned_max <= _FIRST_ROWS:
            return [scanned_max]
        return [_FIRST_ROWS, scanned_max - _FIRST_ROWS]

    async def _matching_ids(
        self, way: Way, bounds: tuple[str, str], *, scanned_max: int, limit: int
    ) -> list[str]:
        columns = [instance.c.id, self.matching.label("is_meant")]
        rows = (
            walked(self.connection, way, columns=columns, bounds=bounds)
            .limit(scanned_max)
            .subquery("looked_at")
        )
        statement = select(rows.c.id).where(rows.c.is_meant)
        if way.is_whole or is_mysql(self.connection):
            # MySQL keeps the order of what it has looked at, but promises nothing.
            statement = statement.order_by(rows.c.id.desc())
        return list((await self.connection.scalars(statement.limit(limit))).all())

    async def count(self, way: Way, *, scanned_max: int) -> tuple[dict[str, int], int, bool]:
        """Matching rows by state among the newest of the way, rows looked at, and whether those were all."""
        columns = [instance.c.state, self.matching.label("is_meant")]
        rows = (
            walked(self.connection, way, columns=columns, bounds=self.bounds)
            .limit(scanned_max)
            .subquery("looked_at")
        )
        meant = func.sum(case((rows.c.is_meant, 1), else_=0))
        statement = select(rows.c.state, func.count(), meant).group_by(rows.c.state)
        counted = (await self.connection.execute(statement)).all()
        looked_at = sum(row[1] for row in counted)
        return {row[0]: int(row[2]) for row in counted}, looked_at, looked_at < scanned_max


async def _count(connection: AsyncConnection, way: Way, *, limit: int) -> int:
    """Entries of the way, counted up to `limit`."""
    counted = entries(connection, way).limit(limit).subquery("counted")
    return int(await connection.scalar(select(func.count()).select_from(counted)) or 0)


def _can_exist(where: InstanceFilter) -> bool:
    texts = (where.namespace, where.task, where.key, where.code)
    return findable(*(text for text in texts if text is not None))


async def list_instances(
    connection: AsyncConnection, where: InstanceFilter, *, cursor: str | None, limit: int
) -> InstancePage:
    """A page of instances, newest first; its cost is bounded, whatever the filter and the number of rows."""
    allowed = SCANNED_ROWS_MAX if where.code is None else _SCANNED_FOR_CODE_MAX
    query = _Query(connection, where, cursor=cursor, scanned_max=max(allowed, limit + 1))
    if not _can_exist(where):
        return InstancePage([], None)
    await pin_plans(connection)
    ways = await query.ways()
    share = query.share or max(query.scanned_max // max(len(ways), 1), 1)
    walks = [await query.walk(way, scanned_max=share, limit=limit + 1) for way in ways]
    reached = max((walk.stopped_id for walk in walks if walk.stopped_id is not None), default="")
    found = sorted((name for walk in walks for name in walk.ids if name >= reached), reverse=True)
    shown = found[:limit]
    instances = await _read(connection, shown, where=where)
    if len(found) > limit:
        return InstancePage(instances, write_cursor(shown[-1]))
    return InstancePage(instances, write_cursor(reached) if reached else None)


async def _read(connection: AsyncConnection, ids: Sequence[str], *, where: InstanceFilter) -> list[Instance]:
    """Rows for a list; what has changed since it was found and is not meant any more is left out."""
    if not ids:
        return []
    rows = [brief_instance(row) for row in await connection.execute(_BRIEF.where(instance.c.id.in_(ids)))]
    return [row for row in rows if matches(row, where)]


# ── counts ────────────────────────────────────────────────────────────────────────────────────────────


async def count_instances(
    connection: AsyncConnection, where: InstanceFilter, *, limit: int
) -> InstanceCounts:
    """Number of instances by state, counting at most `limit` rows where an index alone does not tell."""
    if not _can_exist(where):
        return InstanceCounts({}, True)
    await pin_plans(connection)
    if where == InstanceFilter(states=where.states):
        counts, exact = await _count_by_indexes(connection, where.states)
    else:
        counts, exact = await _count_rows(connection, where, limit=limit)
    return InstanceCounts({state: count for state, count in sorted(counts.items()) if count}, exact)


async def _count_rows(
    connection: AsyncConnection, where: InstanceFilter, *, limit: int
) -> tuple[dict[str, int], bool]:
    query = _Query(connection, where, cursor=None, scanned_max=max(limit, 1))
    counts: dict[str, int] = {}
    exact, left = True, query.scanned_max
    for way in await query.ways():
        found, looked_at, is_all = await query.count(way, scanned_max=left)
        exact = exact and is_all
        left -= looked_at
        for state, count in found.items():
            counts[state] = counts.get(state, 0) + count
    return counts, exact


async def _count_by_indexes(
    connection: AsyncConnection, states: Sequence[State]
) -> tuple[dict[str, int], bool]:
    """From indexes alone, no row is read; the cost of live states does not grow with what has ended."""
    wanted = set(states or State)
    counts: dict[str, int] = {}
    exact = True
    for state in sorted(wanted):
        if state is State.PENDING and not has_index(connection, state):
            continue
        way = Way("instance_finished", (state.value,)) if state not in LIVE_STATES else way_of_state(state)
        counts[state.value] = await _count(connection, way, limit=COUNTED_ENTRIES_MAX)
        exact = exact and counts[state.value] < COUNTED_ENTRIES_MAX
    if State.PENDING in wanted and State.PENDING.value not in counts:
        counts[State.PENDING.value], is_all = await _count_pending(connection)
        exact = exact and is_all
    return counts, exact


async def _count_pending(connection: AsyncConnection) -> tuple[int, bool]:
    """No index holds what is pending alone: it is what is live less the other live states."""
    live = await _count(connection, Way("instance_live"), limit=COUNTED_ENTRIES_MAX)
    others = [
        await _count(connection, way_of_state(state), limit=COUNTED_ENTRIES_MAX)
        for state in sorted(LIVE_STATES - {State.PENDING})
    ]
    return max(live - sum(others), 0), live < COUNTED_ENTRIES_MAX
