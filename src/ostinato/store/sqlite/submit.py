"""Inserts new instances with their idempotency keys, all or none."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ostinato.errors import UserError
from ostinato.store.batches import Submission, SubmitReceipt
from ostinato.store.rules import key_time_us, require_bounded, require_partition, submission_problem
from ostinato.store.sqlite.failures import DATA_ERRORS, safe_message
from ostinato.store.sqlite.rows import instance_values
from ostinato.store.sqlite.statements import Row, run_rows

_KEY = "namespace = ? AND task = ? AND key = ?"


def submit(
    connection: sqlite3.Connection, submissions: Sequence[Submission], *, now_us: int, partition_count: int
) -> list[SubmitReceipt]:
    """Insert all, or raise ``INVALID_VALUE`` naming one that cannot be stored."""
    for submission in submissions:
        instance = submission.instance
        require_partition(instance.partition, partition_count, subject=instance.id)
        if submission_problem(submission) is not None:
            require_bounded((submission,), partition_count)
    connection.execute("BEGIN IMMEDIATE")
    try:
        receipts = _insert(connection, submissions, now_us=key_time_us(submissions, now_us))
    except DATA_ERRORS as error:
        connection.rollback()
        # Looks for the offender only now: the check costs more than the insertion.
        require_bounded(submissions, partition_count)
        raise UserError("INVALID_VALUE", f"instances cannot be stored: {safe_message(error)}") from error
    connection.commit()
    return receipts


def _insert(
    connection: sqlite3.Connection, submissions: Sequence[Submission], *, now_us: int
) -> list[SubmitReceipt]:
    keys = [_key_values(submission) for submission in submissions if submission.key]
    rows = [instance_values(submission.instance) for submission in submissions]
    if run_rows(connection, "insert_key", rows=keys, last=(now_us,)) == len(keys) and run_rows(
        connection, "insert_instance", rows=rows
    ) == len(rows):
        return [SubmitReceipt(submission.instance.id, created=True) for submission in submissions]
    # Some were there before: which ones is found one by one, in a transaction of its own.
    connection.rollback()
    connection.execute("BEGIN IMMEDIATE")
    return [_insert_one(connection, submission, now_us=now_us) for submission in submissions]


def _key_values(submission: Submission) -> Row:
    instance = submission.instance
    return (
        instance.namespace,
        instance.task,
        submission.key,
        instance.id,
        submission.request_hash,
        submission.key_expires_us,
    )


def _insert_one(connection: sqlite3.Connection, submission: Submission, *, now_us: int) -> SubmitReceipt:
    instance = submission.instance
    known = _known_id(connection, submission)
    if known is not None:
        return SubmitReceipt(known, created=False)
    if submission.key:
        row = _key_values(submission)
        if run_rows(connection, "insert_key", rows=(row,), last=(now_us,)) == 0:
            holder, request_hash = connection.execute(
                f"SELECT instance_id, request_hash FROM idempotency_key WHERE {_KEY}", row[:3]
            ).fetchone()
            return SubmitReceipt(holder, created=False, conflict=request_hash != submission.request_hash)
    run_rows(connection, "insert_instance", rows=(instance_values(instance),))
    return SubmitReceipt(instance.id, created=True)


def _known_id(connection: sqlite3.Connection, submission: Submission) -> str | None:
    """The instance that has this id already, or that the same fire has made (I8)."""
    instance = submission.instance
    row = connection.execute("SELECT id FROM instance WHERE id = ?", (instance.id,)).fetchone()
    if row is None and instance.fire_us is not None:
        row = connection.execute(
            "SELECT id FROM instance"
            " WHERE fire_us IS NOT NULL AND fire_trigger = ? AND fire_us = ? AND shard = ?",
            (instance.fire_trigger, instance.fire_us, instance.shard),
        ).fetchone()
    return None if row is None else str(row[0])
