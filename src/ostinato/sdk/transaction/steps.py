"""What a submission reads, checks and writes in a user's transaction, in which order.

A generator that yields statements and is sent their rows: the same for drivers that block and that await.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import TypeAlias

import msgspec

from ostinato.control.submit import (
    CLOSE_NAMES_MAX,
    SubmitRequest,
    prepare,
    refuse_conflicts,
    task_missing,
)
from ostinato.core.definition import TaskRef, TaskRow, decode_definition
from ostinato.errors import UnavailableError, UserError, restated
from ostinato.sdk.transaction import statements
from ostinato.sdk.transaction.statements import Dialect, Row, Statement
from ostinato.store.batches import Submission, SubmitReceipt
from ostinato.store.migrations import HEAD_REVISION

Rows: TypeAlias = list[Row]
Steps: TypeAlias = Generator[Statement, Rows, list[SubmitReceipt]]
Check: TypeAlias = Generator[Statement, Rows, None]

#: A key that is there and gone again belongs to others who clash over it; so often it is looked for.
_KEY_TRIES = 5


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps take from outside."""

    dialect: Dialect
    #: Raises unless a transaction is open or begins with the next statement.
    require_transaction: Callable[[], None]
    #: The machine's time, which is SQLite's.
    wall_us: Callable[[], int]
    rng: Random


def submit_steps(requests: Sequence[SubmitRequest], situation: Situation) -> Steps:
    """Write all, or raise with nothing written; receipts in the same order. All are of one task.

    Raises as ``control.submit``. A repeated key is answered with the instance that its holder has made.
    """
    dialect = situation.dialect
    ref = TaskRef(requests[0].namespace, requests[0].task)
    found = yield statements.find_task(dialect, ref)
    if not found:
        names = yield statements.task_names(ref, limit=CLOSE_NAMES_MAX)
        raise _not_registered(ref, [_text(name) for (name,) in names])
    row, now_us = _task_row(found[0], wall_us=situation.wall_us)
    prepared = prepare(requests, {ref: row}, now_us=now_us, rng=situation.rng)
    situation.require_transaction()
    receipts = yield from _take_keys(prepared, ref, dialect=dialect, now_us=now_us)
    new = [submission for submission, receipt in zip(prepared, receipts, strict=True) if receipt.created]
    yield from statements.insert_instances(dialect, new)
    if new and dialect is Dialect.POSTGRESQL:
        yield statements.NOTIFY
    return receipts


def check_steps(dialect: Dialect) -> Check:
    """Whether the database is one of ours, with this version's schema.

    Raises ``DATABASE_UNUSABLE`` and ``SCHEMA_VERSION``, without a statement that fails.
    """
    found = yield statements.needed_tables(dialect)
    missing = statements.needed(dialect).keys() - {_text(name) for name, _ in found}
    if missing:
        version_table = statements.VERSION_TABLES[dialect]
        what = "no Ostinato tables" if version_table in missing else f"no table {min(missing)}"
        raise UserError(
            "DATABASE_UNUSABLE",
            f"this connection's database has {what}; the scheduler's database is needed",
            field="connection",
            hint="connect to the database that the scheduler uses, with its schema on the search path",
        )
    for name, privilege in found:
        if privilege is not None:
            raise UserError(
                "DATABASE_UNUSABLE",
                f"this connection's user may not {privilege} in table {_text(name)}",
                field="connection",
                hint=f"GRANT {privilege} ON {_text(name)} to that user",
            )
    versions = yield statements.schema_version(dialect)
    stored = _text(versions[0][0]) if versions else "none"
    if stored != HEAD_REVISION:
        raise UserError(
            "SCHEMA_VERSION",
            f"this connection's database has schema {stored}, and Ostinato here needs {HEAD_REVISION}",
            field="connection",
            hint="use the same version of Ostinato here and in the scheduler",
        )


def _take_keys(prepared: Sequence[Submission], ref: TaskRef, *, dialect: Dialect, now_us: int) -> Steps:
    """Receipts of all; keys that were free are taken, or given back again where one is another's."""
    # Of those with the same key the first makes the instance. Sorted, so that two calls cannot deadlock.
    firsts: dict[str, Submission] = {}
    for submission in prepared:
        if submission.key:
            firsts.setdefault(submission.key, submission)
    if not firsts:
        return [SubmitReceipt(submission.instance.id, created=True) for submission in prepared]
    keys = sorted(firsts)
    holders: dict[str, Row] = {}
    for _ in range(_KEY_TRIES):
        unsettled = [key for key in keys if key not in holders]
        yield from statements.insert_keys(dialect, [firsts[key] for key in unsettled])
        for statement in statements.find_keys(dialect, ref, keys=unsettled):
            for row in (yield statement):
                holders[_text(row[0])] = row
        expired = [key for key in unsettled if key in holders and holders[key][3] <= now_us]
        for key in expired:
            del holders[key]
        yield from statements.delete_keys(ref, expired, until_us=now_us)
        if len(holders) == len(keys):
            break
    else:
        lost = next(key for key in keys if key not in holders)
        raise UnavailableError(
            "DATABASE_UNAVAILABLE",
            f"key {lost!r} is taken and given up by others again and again",
            field="key",
            hint="submit it again",
        )
    receipts = [_receipt(submission, holders) for submission in prepared]
    if any(receipt.conflict for receipt in receipts):
        taken = [key for key in keys if _text(holders[key][1]) == firsts[key].instance.id]
        yield from statements.delete_keys(ref, taken, until_us=firsts[keys[0]].key_expires_us)
        refuse_conflicts(prepared, receipts, others_accepted=False)
    return receipts


def _receipt(submission: Submission, holders: dict[str, Row]) -> SubmitReceipt:
    if not submission.key:
        return SubmitReceipt(submission.instance.id, created=True)
    _, instance_id, request_hash, _ = holders[submission.key]
    return SubmitReceipt(
        _text(instance_id),
        created=_text(instance_id) == submission.instance.id,
        conflict=_text(request_hash) != submission.request_hash,
    )


def _task_row(row: Row, *, wall_us: Callable[[], int]) -> tuple[TaskRow, int]:
    now_us, definition, version, partition, paused, disabled, scheduled, created_us, updated_us, origin = row
    task = TaskRow(
        decode_definition(bytes(definition)),
        version=version,
        partition=partition,
        paused=bool(paused),
        disabled=bool(disabled),
        scheduled_version=scheduled,
        created_us=created_us,
        updated_us=updated_us,
        origin="document" if _text(origin) == "document" else "app",
    )
    return task, wall_us() if now_us is None else int(now_us)


def _not_registered(ref: TaskRef, names: Sequence[str]) -> UserError:
    error = task_missing(ref, names)
    told = "a submission inside a transaction registers nothing: call app.apply() first"
    return restated(error, hint=f"{error.hint}; {told}" if error.hint else told)


def _text(value: object) -> str:
    """A text, also of a connection that is told to give bytes (``text_factory``, a binary character set)."""
    return value.decode() if isinstance(value, bytes | bytearray) else str(value)
