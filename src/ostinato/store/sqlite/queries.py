"""What anyone reads and writes beside births and lists: history, output, requests; and retention."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

import msgspec

from ostinato.core.failure.failure import Failure
from ostinato.core.model import HistoryKind, HistoryRow, Instance, OutputChunk
from ostinato.core.states import State
from ostinato.store.batches import Request, RequestAnswer
from ostinato.store.sqlite.rows import read_whole, row_numbers
from ostinato.store.sqlite.statements import Row, run_rows

_decode_failure = msgspec.json.Decoder(Failure).decode


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


# ── history, output ───────────────────────────────────────────────────────────────────────────────────


def history(
    connection: sqlite3.Connection, instance_id: str, *, after: int, limit: int | None
) -> list[HistoryRow]:
    rows = connection.execute(
        "SELECT instance_id, partition, at_us, kind, sentence, generation, attempt, attempt_id, worker_name,"
        " code, category, started_us, due_us, by, unconditional, failure"
        # What is passed over is passed over in the index.
        " FROM history WHERE sequence IN (SELECT sequence FROM history INDEXED BY history_instance"
        " WHERE instance_id = ? ORDER BY sequence LIMIT ? OFFSET ?) ORDER BY sequence",
        (instance_id, -1 if limit is None else limit, after),
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


def count_history(connection: sqlite3.Connection, instance_id: str) -> int:
    (count,) = connection.execute(
        "SELECT count(*) FROM history INDEXED BY history_instance WHERE instance_id = ?", (instance_id,)
    ).fetchone()
    return int(count)


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
    keys_before_us: int,
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
        ("idempotency_key", "expires_us <= ?", keys_before_us),
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
