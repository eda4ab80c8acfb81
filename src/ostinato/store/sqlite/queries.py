"""What anyone reads and writes beside instances' births: lists, history, output, requests; and retention."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

import msgspec

from ostinato.core.failure.failure import Failure
from ostinato.core.model import HistoryKind, HistoryRow, Instance, OutputChunk
from ostinato.core.states import LIVE_STATES, State
from ostinato.store.batches import InstanceFilter, InstancePage, Request, RequestAnswer
from ostinato.store.sqlite.rows import read_brief, read_whole, row_numbers
from ostinato.store.sqlite.statements import Row, run_rows

_decode_failure = msgspec.json.Decoder(Failure).decode

#: States that the index instance_state holds.
_INDEXED_STATES = frozenset(State) - {State.PENDING, State.SUCCESS}


def get_instances(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, Instance]:
    connection.execute("BEGIN")
    numbers = row_numbers(
        connection,
        "SELECT instance.rowid AS row_number FROM json_each(:ids) AS wanted"
        " CROSS JOIN instance ON instance.id = wanted.value",
        parameters={"ids": msgspec.json.encode(list(dict.fromkeys(ids))).decode()},
    )
    instances = read_whole(connection, numbers)
    connection.commit()
    return {instance.id: instance for instance in instances}


def list_instances(
    connection: sqlite3.Connection, where: InstanceFilter, *, cursor: str | None, limit: int
) -> InstancePage:
    """Newest first is by id, which starts with the time of creation and needs no index beside the key."""
    connection.execute("BEGIN")
    # One query per rare state: each walks its own part of the index in the order of ids.
    parts: tuple[tuple[State, ...], ...] = (where.states,)
    if where.states and _INDEXED_STATES.issuperset(where.states):
        parts = tuple((state,) for state in sorted(set(where.states)))
    queries: list[str] = []
    values: dict[str, object] = {"cursor": cursor, "limit": limit + 1}
    for states in parts:
        condition, bound = _condition(where, states)
        values.update(bound)
        before = "" if cursor is None else "AND id < :cursor"
        queries.append(
            f"SELECT * FROM (SELECT rowid AS row_number, id FROM instance WHERE {condition} {before}"
            " ORDER BY id DESC LIMIT :limit)"
        )
    query = f"SELECT row_number FROM ({' UNION ALL '.join(queries)}) ORDER BY id DESC LIMIT :limit"
    numbers = row_numbers(connection, query, parameters=values)
    instances = read_brief(connection, numbers[:limit])
    connection.commit()
    return InstancePage(instances, instances[-1].id if len(numbers) > limit else None)


def _condition(where: InstanceFilter, states: Sequence[State]) -> tuple[str, dict[str, object]]:
    """Condition on ``instance``. A leading plus keeps SQLite from an index that would not give the order."""
    terms = ["1"]
    values: dict[str, object] = {}
    by_task = where.namespace is not None and where.task is not None
    if where.namespace is not None:
        terms.append("namespace = :namespace" if by_task else "+namespace = :namespace")
        values["namespace"] = where.namespace
    if where.task is not None:
        terms.append("task = :task")
        values["task"] = where.task
    if where.key is not None:
        terms.append("key = :key AND key <> ''" if where.key else "key = :key")
        values["key"] = where.key
    if len(states) == 1 and states[0] in _INDEXED_STATES:
        terms.append(f"state = '{states[0].value}' AND state <> 'pending' AND state <> 'success'")
    elif states:
        terms.append(f"+state IN ({', '.join(repr(state.value) for state in states)})")
    return " AND ".join(terms), values


def count_instances(connection: sqlite3.Connection, where: InstanceFilter) -> dict[str, int]:
    connection.execute("BEGIN")
    if where == InstanceFilter(states=where.states):
        counts = _count_live(connection)
        if not where.states or not LIVE_STATES.issuperset(where.states):
            counts |= _count_finished(connection)
        if where.states:
            counts = {state: count for state, count in counts.items() if state in where.states}
    else:
        condition, values = _condition(where, where.states)
        counts = dict(
            connection.execute(
                f"SELECT state, count(*) FROM instance WHERE {condition} GROUP BY state", values
            )
        )
    connection.commit()
    return {state: count for state, count in sorted(counts.items()) if count}


def _count_finished(connection: sqlite3.Connection) -> dict[str, int]:
    """From an index alone: no row is read."""
    return dict(
        connection.execute(
            "SELECT state, count(*) FROM instance INDEXED BY instance_finished"
            " WHERE finished_us IS NOT NULL GROUP BY state"
        )
    )


def _count_live(connection: sqlite3.Connection) -> dict[str, int]:
    """As `_count_finished`; its cost does not grow with what has ended."""
    counts: dict[str, int] = {}
    (live,) = connection.execute(
        "SELECT count(*) FROM instance INDEXED BY instance_live WHERE finished_us IS NULL"
    ).fetchone()
    for state in (State.RUNNING, State.RETRY_WAITING, State.BLOCKED):
        (counts[state.value],) = connection.execute(
            "SELECT count(*) FROM instance INDEXED BY instance_state"
            " WHERE state = ? AND state <> 'pending' AND state <> 'success'",
            (state.value,),
        ).fetchone()
        live -= counts[state.value]
    counts[State.PENDING.value] = live
    return counts


# ── history, output ───────────────────────────────────────────────────────────────────────────────────


def history(connection: sqlite3.Connection, instance_id: str) -> list[HistoryRow]:
    rows = connection.execute(
        "SELECT instance_id, partition, at_us, kind, sentence, generation, attempt, attempt_id, worker_name,"
        " code, category, started_us, due_us, by, unconditional, failure"
        " FROM history WHERE instance_id = ? ORDER BY sequence",
        (instance_id,),
    )
    return [
        HistoryRow(
            instance_id=row[0],
            partition=row[1],
            at_us=row[2],
            kind=HistoryKind(row[3]),
            sentence=row[4],
            generation=row[5],
            attempt=row[6],
            attempt_id=row[7],
            worker_name=row[8],
            code=row[9],
            category=row[10],
            started_us=row[11],
            due_us=row[12],
            by=row[13],
            unconditional=bool(row[14]),
            failure=None if row[15] is None else _decode_failure(row[15]),
        )
        for row in rows
    ]


def append_output(connection: sqlite3.Connection, chunks: Sequence[OutputChunk]) -> None:
    rows: list[Row] = [
        (
            chunk.instance_id,
            chunk.attempt,
            chunk.sequence,
            chunk.attempt_id,
            chunk.at_us,
            chunk.stream,
            chunk.text,
        )
        for chunk in chunks
    ]
    connection.execute("BEGIN IMMEDIATE")
    run_rows(connection, "insert_output", rows=rows)
    connection.commit()


def output(
    connection: sqlite3.Connection, instance_id: str, *, after: tuple[int, int], limit: int
) -> list[OutputChunk]:
    rows = connection.execute(
        "SELECT instance_id, attempt, attempt_id, sequence, at_us, stream, text FROM output"
        " WHERE instance_id = ? AND (attempt, sequence) > (?, ?)"
        " ORDER BY attempt, sequence, attempt_id LIMIT ?",
        (instance_id, *after, limit),
    )
    return [
        OutputChunk(
            instance_id=row[0],
            attempt=row[1],
            attempt_id=row[2],
            sequence=row[3],
            at_us=row[4],
            stream=row[5],
            text=row[6],
        )
        for row in rows
    ]


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────


def add_requests(connection: sqlite3.Connection, requests: Sequence[Request]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(
        "INSERT INTO request (id, partition, kind, namespace, created_us, task, instance_id, body, by)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [
            (
                request.id,
                request.partition,
                request.kind,
                request.namespace,
                request.created_us,
                request.task,
                request.instance_id,
                request.body,
                request.by,
            )
            for request in requests
        ],
    )
    connection.commit()


def answers(connection: sqlite3.Connection, request_ids: Sequence[str]) -> dict[str, RequestAnswer]:
    rows = connection.execute(
        "SELECT request.id, partition, code, message, answer_instance_id, answered_us"
        " FROM json_each(?) AS wanted CROSS JOIN request ON request.id = wanted.value WHERE code IS NOT NULL",
        (msgspec.json.encode(list(dict.fromkeys(request_ids))).decode(),),
    )
    return {row[0]: RequestAnswer(*row) for row in rows}


# ── retention ─────────────────────────────────────────────────────────────────────────────────────────


def delete_finished(
    connection: sqlite3.Connection,
    *,
    success_before_us: int,
    other_before_us: int,
    now_us: int,
    limit: int,
) -> int:
    """One batch of retention. Answered requests and expired keys go in the same number per call."""
    connection.execute("BEGIN IMMEDIATE")
    old = list(_old(connection, success_before_us, other_before_us=other_before_us, limit=limit))
    ids = msgspec.json.encode(old).decode()
    for table, column in (("history", "instance_id"), ("output", "instance_id"), ("instance", "id")):
        connection.execute(f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))", (ids,))
    for table, condition, before_us in (
        ("request", "answered_us IS NOT NULL AND answered_us < ?", other_before_us),
        ("idempotency_key", "expires_us <= ?", now_us),
    ):
        connection.execute(
            f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE {condition} LIMIT ?)",
            (before_us, limit),
        )
    connection.commit()
    return len(old)


def _old(
    connection: sqlite3.Connection, success_before_us: int, *, other_before_us: int, limit: int
) -> Iterator[str]:
    left = limit
    for state in (State.SUCCESS, State.FAILED, State.SKIPPED, State.CANCELLED):
        before_us = success_before_us if state is State.SUCCESS else other_before_us
        for (identifier,) in connection.execute(
            "SELECT id FROM instance INDEXED BY instance_finished"
            " WHERE finished_us IS NOT NULL AND state = ? AND finished_us < ? ORDER BY finished_us LIMIT ?",
            (state.value, before_us, left),
        ).fetchall():
            left -= 1
            yield identifier
