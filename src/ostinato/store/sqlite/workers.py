"""Rows of workers as the nodes know them, for people."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from ostinato.store.batches import WorkerRow

_COLUMNS = "worker_id, node_id, worker_name, state, running_count, protocol, connected_us, seen_us, facts"


class _Facts(msgspec.Struct):
    """What of a row is only shown."""

    labels: dict[str, str] = {}
    capacity: dict[str, int] = {}
    tasks: list[str] = []
    executors: list[str] = []
    problems: list[str] = []


_decode_facts = msgspec.json.Decoder(_Facts).decode


def record_workers(connection: sqlite3.Connection, rows: Sequence[WorkerRow], *, gone_before_us: int) -> None:
    """Upsert `rows`; those of nodes that are not there are ``gone``, and old ones of these are deleted."""
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(
        f"INSERT OR REPLACE INTO worker ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                row.worker_id,
                row.node_id,
                row.worker_name,
                row.state,
                row.running_count,
                row.protocol,
                row.connected_us,
                row.seen_us,
                msgspec.json.encode(_Facts(row.labels, row.capacity, row.tasks, row.executors, row.problems)),
            )
            for row in rows
        ],
    )
    connection.execute(
        "UPDATE worker SET state = 'gone' WHERE state <> 'gone' AND node_id NOT IN (SELECT id FROM node)"
    )
    connection.execute("DELETE FROM worker WHERE state = 'gone' AND seen_us < ?", (gone_before_us,))
    connection.commit()


def workers(connection: sqlite3.Connection) -> list[WorkerRow]:
    rows = connection.execute(f"SELECT {_COLUMNS} FROM worker ORDER BY worker_name, worker_id, node_id")
    return [_worker_row(row) for row in rows]


def _worker_row(row: sqlite3.Row) -> WorkerRow:
    facts = _decode_facts(row[8])
    return WorkerRow(
        worker_id=row[0],
        node_id=row[1],
        worker_name=row[2],
        state=row[3],
        running_count=row[4],
        protocol=row[5],
        connected_us=row[6],
        seen_us=row[7],
        labels=facts.labels,
        capacity=facts.capacity,
        tasks=facts.tasks,
        executors=facts.executors,
        problems=facts.problems,
    )
