"""Lists and counts of instances, whose cost has a bound whatever the filter and the table.

A list is newest first, which is the order of ids. Each way through the table gives rows in that order, from
an index or from a set small enough to sort, and is walked for a bounded number of rows; what no index knows
is asked of those rows. Of several ways only what lies above the place that all of them have reached is shown,
and the cursor names that place.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from ostinato.core.states import LIVE_STATES, State
from ostinato.store.batches import InstanceCounts, InstanceFilter, InstancePage
from ostinato.store.paging import (
    COUNTED_ENTRIES_MAX,
    SCANNED_ROWS_MAX,
    created_bounds,
    read_cursor,
    write_cursor,
)
from ostinato.store.sqlite.rows import read_brief

#: States that the index instance_state holds.
_INDEXED_STATES = frozenset(State) - {State.PENDING, State.SUCCESS}
_TERMINAL_STATES = tuple(state for state in State if state not in LIVE_STATES)
#: A task without its namespace is looked for in so many; in more, all instances are gone through.
_NAMESPACES_MAX = 50
#: Rows that one call looks at for a code: each is read twice, first for what lies before its failure.
_SCANNED_FOR_CODE_MAX = 8_000
#: Bytes of payloads and results passed over, in one call, to read the failures that lie behind them.
_PASSED_BYTES_MAX = 16 * 1024 * 1024

_Values = Mapping[str, object]


class _Way(msgspec.Struct, frozen=True):
    """One walk over the table: the index that gives it, and the condition that the index answers."""

    index: str
    condition: str
    #: The rows are few and come in no order: all of them are looked at.
    is_whole: bool = False


class _Walk(msgspec.Struct, frozen=True):
    """What a way has shown: matching rows, newest first, and where it stopped; None at its end."""

    rows: list[tuple[str, int]]
    stopped_id: str | None


class _Query:
    """A filter as conditions, and the ways that lead to its rows."""

    def __init__(
        self, connection: sqlite3.Connection, where: InstanceFilter, *, cursor: str | None, scanned_max: int
    ) -> None:
        self.connection = connection
        self.where = where
        self.scanned_max = scanned_max
        #: Rows that one way may look at; None: the ways share what all may.
        self.share: int | None = None
        first, before = created_bounds(where)
        last_id = read_cursor(cursor)
        self.values: dict[str, object] = {
            "first": first,
            "before": before if last_id is None else min(before, last_id),
            "namespace": where.namespace,
            "task": where.task,
            "key": where.key,
            "code": where.code,
            "from_us": where.created_from_us,
            "before_us": where.created_before_us,
        }
        self.matching = self._matching()

    def _matching(self) -> str:
        """Condition that every row shown meets; a plus keeps SQLite from an index of its own choice."""
        where = self.where
        terms = ["1"]
        terms += [
            f"+{name} = :{name}" for name in ("namespace", "task", "key") if getattr(where, name) is not None
        ]
        if where.states:
            terms.append(f"+state IN ({', '.join(repr(state.value) for state in sorted(set(where.states)))})")
        if where.created_from_us is not None:
            terms.append("created_us >= :from_us")
        if where.created_before_us is not None:
            terms.append("created_us < :before_us")
        if where.code is not None:
            terms.append("failure IS NOT NULL AND json_extract(failure, '$.code') = :code")
        return " AND ".join(terms)

    # ── ways ─────────────────────────────────────────────────────────────────────────────────────────

    def ways(self) -> list[_Way]:
        """The ways that together lead to every row of the filter."""
        where = self.where
        if where.key:
            return [_Way("instance_key", "key = :key AND key <> ''")]
        few = self._few()
        if few is not None:
            self.share = self.scanned_max
            return few
        return self._many()

    def _many(self) -> list[_Way]:
        where = self.where
        if where.namespace is not None and where.task is not None:
            return [_Way("instance_task", "namespace = :namespace AND task = :task")]
        if where.states and _INDEXED_STATES.issuperset(where.states):
            return [_way_of_state(state) for state in sorted(set(where.states))]
        if where.task is not None:
            return self._by_task_alone()
        return [_Way("sqlite_autoindex_instance_1", "1")]

    def _few(self) -> list[_Way] | None:
        """Ways over so few rows that they are looked at all at once; None where there are none."""
        where = self.where
        states = set(where.states)
        names = "" if where.namespace is None else " AND namespace = :namespace"
        names += "" if where.namespace is None or where.task is None else " AND task = :task"
        candidates: list[list[_Way]] = []
        if states and LIVE_STATES.issuperset(states):
            candidates.append([_Way("instance_live", f"finished_us IS NULL{names}", is_whole=True)])
        if states and State.SUCCESS not in states:
            ways = [_way_of_state(state) for state in sorted(states - {State.PENDING})]
            if State.PENDING in states:
                pending = f"finished_us IS NULL AND +state = 'pending'{names}"
                ways.append(_Way("instance_live", pending, is_whole=True))
            candidates.append(ways)
        if where.namespace is not None and where.task is None:
            candidates.append([_Way("instance_task", "namespace = :namespace", is_whole=True)])
        if where.code is not None:
            # Of few rows too the failures may lie behind more bytes than can be read at once.
            candidates = [ways for ways in candidates if not any(way.is_whole for way in ways)]
        for ways in candidates:
            if self._entry_count(ways) < self.scanned_max:
                return ways
        return None

    def _entry_count(self, ways: Sequence[_Way]) -> int:
        """Entries of the ways' indexes, counted up to the number of rows that may be looked at."""
        return sum(
            _count(
                self.connection,
                f"SELECT 1 FROM instance INDEXED BY {way.index} WHERE {way.condition}",
                values=self.values,
                limit=self.scanned_max,
            )
            for way in ways
        )

    def _by_task_alone(self) -> list[_Way]:
        namespaces = [
            row[0]
            for row in self.connection.execute(
                "WITH RECURSIVE found(name) AS (SELECT min(namespace) FROM instance UNION ALL"
                " SELECT (SELECT min(namespace) FROM instance WHERE namespace > found.name) FROM found"
                " WHERE found.name IS NOT NULL) SELECT name FROM found WHERE name IS NOT NULL LIMIT ?",
                (_NAMESPACES_MAX + 1,),
            )
        ]
        if len(namespaces) > _NAMESPACES_MAX:
            return [_Way("sqlite_autoindex_instance_1", "1")]
        self.values |= {f"namespace{number}": name for number, name in enumerate(namespaces)}
        return [
            _Way("instance_task", f"namespace = :namespace{number} AND task = :task")
            for number in range(len(namespaces))
        ]

    # ── walks ────────────────────────────────────────────────────────────────────────────────────────

    def _affordable(self, way: _Way, scanned_max: int, *, passed_bytes_max: int) -> int:
        """How many of the first `scanned_max` rows may be looked at, as failures can be hard to reach."""
        if self.where.code is None:
            return scanned_max
        found, affordable = self.connection.execute(
            "SELECT count(*), coalesce(sum(passed <= :passed_bytes_max), 0) FROM"
            " (SELECT sum(bytes) OVER (ORDER BY id DESC ROWS UNBOUNDED PRECEDING) AS passed FROM"
            " (SELECT id, CASE WHEN failure IS NULL THEN 0"
            " ELSE length(payload) + coalesce(length(result), 0) END AS bytes"
            f" {_within(way)} ORDER BY id DESC LIMIT :scanned_max))",
            self.values | {"scanned_max": scanned_max, "passed_bytes_max": passed_bytes_max},
        ).fetchone()
        return scanned_max if affordable == found else max(int(affordable), 1)

    def walk(self, way: _Way, *, scanned_max: int, limit: int, passed_bytes_max: int) -> _Walk:
        """Up to `limit` matching rows among the first `scanned_max` of the way."""
        within = _within(way)
        scanned_max = self._affordable(way, scanned_max, passed_bytes_max=passed_bytes_max)
        values = self.values | {"scanned_max": scanned_max, "limit": limit}
        if way.is_whole:
            query = f"SELECT id, rowid {within} AND {self.matching} ORDER BY id DESC LIMIT :limit"
            rows = self.connection.execute(query, values).fetchall()
            return _Walk(rows, rows[-1][0] if len(rows) == limit else None)
        columns = "id, rowid AS number, namespace, task, key, state, created_us, failure"
        rows = self.connection.execute(
            f"SELECT id, number FROM (SELECT {columns} {within} ORDER BY id DESC LIMIT :scanned_max)"
            f" WHERE {self.matching} LIMIT :limit",
            values,
        ).fetchall()
        if len(rows) == limit:
            return _Walk(rows, rows[-1][0])
        stopped = self.connection.execute(
            f"SELECT id {within} ORDER BY id DESC LIMIT 1 OFFSET :scanned_max - 1", values
        ).fetchone()
        return _Walk(rows, None if stopped is None else stopped[0])

    def count(
        self, way: _Way, *, scanned_max: int, passed_bytes_max: int
    ) -> tuple[dict[str, int], int, bool]:
        """Matching rows by state among the newest of the way, rows looked at, and whether those were all."""
        scanned_max = self._affordable(way, scanned_max, passed_bytes_max=passed_bytes_max)
        values = self.values | {"scanned_max": scanned_max}
        order = "" if way.is_whole else "ORDER BY id DESC"
        rows = self.connection.execute(
            "SELECT state, count(*), coalesce(sum(matched), 0)"
            f" FROM (SELECT state, ({self.matching}) AS matched"
            f" {_within(way)} {order} LIMIT :scanned_max) GROUP BY state",
            values,
        ).fetchall()
        looked_at = sum(row[1] for row in rows)
        return {row[0]: row[2] for row in rows}, looked_at, looked_at < scanned_max


def _way_of_state(state: State) -> _Way:
    return _Way("instance_state", f"state = '{state.value}' AND state <> 'pending' AND state <> 'success'")


def _within(way: _Way) -> str:
    return f"FROM instance INDEXED BY {way.index} WHERE {way.condition} AND id >= :first AND id < :before"


def _count(connection: sqlite3.Connection, query: str, *, values: _Values, limit: int) -> int:
    """Rows of `query`, counted up to `limit`."""
    count: int = connection.execute(
        f"SELECT count(*) FROM ({query} LIMIT :counted_max)", {**values, "counted_max": limit}
    ).fetchone()[0]
    return count


def list_instances(
    connection: sqlite3.Connection, where: InstanceFilter, *, cursor: str | None, limit: int
) -> InstancePage:
    connection.execute("BEGIN")
    allowed = SCANNED_ROWS_MAX if where.code is None else _SCANNED_FOR_CODE_MAX
    query = _Query(connection, where, cursor=cursor, scanned_max=max(allowed, limit + 1))
    ways = query.ways()
    share = query.share or max(query.scanned_max // max(len(ways), 1), 1)
    passed_bytes_max = _PASSED_BYTES_MAX // max(len(ways), 1)
    walks = [
        query.walk(way, scanned_max=share, limit=limit + 1, passed_bytes_max=passed_bytes_max) for way in ways
    ]
    reached = max((walk.stopped_id for walk in walks if walk.stopped_id is not None), default="")
    found = sorted((row for walk in walks for row in walk.rows if row[0] >= reached), reverse=True)
    instances = read_brief(connection, [number for _, number in found[:limit]])
    connection.commit()
    if len(found) > limit:
        return InstancePage(instances, write_cursor(instances[-1].id))
    return InstancePage(instances, write_cursor(reached) if reached else None)


# ── counts ────────────────────────────────────────────────────────────────────────────────────────────


def count_instances(connection: sqlite3.Connection, where: InstanceFilter, *, limit: int) -> InstanceCounts:
    connection.execute("BEGIN")
    if where == InstanceFilter(states=where.states):
        counts, exact = _count_by_indexes(connection, where.states)
    else:
        counts, exact = _count_rows(connection, where, limit=limit)
    connection.commit()
    return InstanceCounts({state: count for state, count in sorted(counts.items()) if count}, exact)


def _count_rows(
    connection: sqlite3.Connection, where: InstanceFilter, *, limit: int
) -> tuple[dict[str, int], bool]:
    query = _Query(connection, where, cursor=None, scanned_max=max(limit, 1))
    counts: dict[str, int] = {}
    exact, left = True, query.scanned_max
    ways = query.ways()
    passed_bytes_max = _PASSED_BYTES_MAX // max(len(ways), 1)
    for way in ways:
        found, looked_at, is_all = query.count(way, scanned_max=left, passed_bytes_max=passed_bytes_max)
        exact = exact and is_all
        left -= looked_at
        for state, count in found.items():
            counts[state] = counts.get(state, 0) + count
    return counts, exact


def _count_by_indexes(connection: sqlite3.Connection, states: Sequence[State]) -> tuple[dict[str, int], bool]:
    """From indexes alone, no row is read; the cost of live states does not grow with what has ended."""
    wanted = set(states or State)
    counts: dict[str, int] = {}
    exact = True
    for state in _TERMINAL_STATES:
        if state in wanted:
            counts[state.value] = _count(
                connection,
                "SELECT 1 FROM instance INDEXED BY instance_finished"
                " WHERE finished_us IS NOT NULL AND state = :state",
                values={"state": state.value},
                limit=COUNTED_ENTRIES_MAX,
            )
            exact = exact and counts[state.value] < COUNTED_ENTRIES_MAX
    if not wanted.isdisjoint(LIVE_STATES):
        live, live_is_exact = _count_live(connection)
        counts |= {state: count for state, count in live.items() if state in wanted}
        exact = exact and live_is_exact
    return counts, exact


def _count_live(connection: sqlite3.Connection) -> tuple[dict[str, int], bool]:
    """No index holds what is pending alone: it is what is live less the other live states."""
    pending = live = _count(
        connection,
        "SELECT 1 FROM instance INDEXED BY instance_live WHERE finished_us IS NULL",
        values={},
        limit=COUNTED_ENTRIES_MAX,
    )
    counts: dict[str, int] = {}
    for state in sorted(LIVE_STATES - {State.PENDING}):
        way = _way_of_state(state)
        counts[state.value] = _count(
            connection,
            f"SELECT 1 FROM instance INDEXED BY {way.index} WHERE {way.condition}",
            values={},
            limit=COUNTED_ENTRIES_MAX,
        )
        pending -= counts[state.value]
    counts[State.PENDING.value] = max(pending, 0)
    return counts, live < COUNTED_ENTRIES_MAX
