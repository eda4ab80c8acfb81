"""Inserts new instances with their idempotency keys, all or none.

The first try takes it that everything is new. Where something was there before, it is rolled back, and a
second one first looks what is known. Keys and instances are each written in sorted order, so that two lists
of the same ones wait for each other instead of locking each other out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import asyncpg

from ostinato.core.model import Instance
from ostinato.store.batches import Submission, SubmitReceipt
from ostinato.store.postgres.commit import COPIED_MIN, columns, copy
from ostinato.store.postgres.faults import data_problem
from ostinato.store.postgres.statements import statement
from ostinato.store.server.commit import RefusedDataError
from ostinato.store.server.database import DriverConnection
from ostinato.store.server.rows import INSERTED, Value, instance_values

#: Rows and bytes of one statement: an array holds less than 1 GB, and both sides keep all of it in memory.
_ROWS_MAX = 10_000
_BYTES_MAX = 32 * 1024 * 1024

_Key = tuple[str, str, str]
_Fire = tuple[str, int, int]


class SomeKnownError(Exception):
    """Something of the list was there before, or appeared meanwhile."""


@contextmanager
def refused_data() -> Iterator[None]:
    """Raises ``RefusedDataError`` where the server refuses a row as data."""
    try:
        yield
    except Exception as error:
        if data_problem(error) is None:
            raise
        raise RefusedDataError from error


async def submit_new(
    driver: DriverConnection, submissions: Sequence[Submission], *, now_us: int
) -> list[SubmitReceipt]:
    """Insert all. Raises ``SomeKnownError`` where one of them, or its key, was there before.

    `now_us` is the database's time, by which keys expire.
    """
    keyed = [submission for submission in submissions if submission.key]
    if len({_key(submission) for submission in keyed}) != len(keyed):
        raise SomeKnownError
    if len(await _take_keys(driver, keyed, now_us=now_us)) != len(keyed):
        raise SomeKnownError
    instances = [submission.instance for submission in submissions]
    try:
        await _insert_new(driver, instances)
    except asyncpg.UniqueViolationError as error:
        raise SomeKnownError from error
    return [SubmitReceipt(instance.id, created=True) for instance in instances]


async def submit_if_newest(driver: DriverConnection, submission: Submission) -> SubmitReceipt | None:
    """Insert it, unless its task is another by now. Raises ``SomeKnownError`` where it was there before."""
    instance = submission.instance
    try:
        row = await driver.fetchrow(statement("insert_newest"), *instance_values(instance))
    except asyncpg.UniqueViolationError as error:
        raise SomeKnownError from error
    return None if row is None else SubmitReceipt(instance.id, created=True)


async def submit_some(
    driver: DriverConnection, submissions: Sequence[Submission], *, now_us: int
) -> list[SubmitReceipt]:
    """Insert what is new, as if one after the other.

    Raises ``SomeKnownError`` where somebody else has inserted one of them since they were looked for.
    """
    known = await _look(driver, submissions, now_us=now_us)
    receipts = [known.receive(submission) for submission in submissions]
    taken = [submission for submission in known.created if submission.key]
    if len(await _take_keys(driver, taken, now_us=now_us)) != len(taken):
        raise SomeKnownError
    instances = [submission.instance for submission in known.created]
    if len(await _insert(driver, instances)) != len(instances):
        raise SomeKnownError
    return receipts


class _Holder(NamedTuple):
    """Whose key it is."""

    instance_id: str
    request_hash: str


class _Known:
    """What is there, and what a list adds to it on the way."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.fires: dict[_Fire, str] = {}
        self.holders: dict[_Key, _Holder] = {}
        self.created: list[Submission] = []

    def receive(self, submission: Submission) -> SubmitReceipt:
        """The receipt of the next one of the list."""
        instance = submission.instance
        fire = _fire(instance)
        if instance.id in self.ids:
            return SubmitReceipt(instance.id, created=False)
        if fire is not None and fire in self.fires:
            return SubmitReceipt(self.fires[fire], created=False)
        if submission.key:
            holder = self.holders.get(_key(submission))
            if holder is not None:
                conflict = holder.request_hash != submission.request_hash
                return SubmitReceipt(holder.instance_id, created=False, conflict=conflict)
            self.holders[_key(submission)] = _Holder(instance.id, submission.request_hash)
        self.ids.add(instance.id)
        if fire is not None:
            self.fires[fire] = instance.id
        self.created.append(submission)
        return SubmitReceipt(instance.id, created=True)


async def _look(driver: DriverConnection, submissions: Sequence[Submission], *, now_us: int) -> _Known:
    known = _Known()
    ids = [submission.instance.id for submission in submissions]
    fires = {fire for submission in submissions if (fire := _fire(submission.instance)) is not None}
    rows = await driver.fetch(
        statement("known_instances"),
        ids,
        [fire[0] for fire in fires],
        [fire[1] for fire in fires],
        [fire[2] for fire in fires],
    )
    for instance_id, fire_trigger, fire_us, shard in rows:
        if fire_us is None:
            known.ids.add(instance_id)
        else:
            known.fires[fire_trigger, fire_us, shard] = instance_id
    keys = sorted({_key(submission) for submission in submissions if submission.key})
    if keys:
        rows = await driver.fetch(statement("key_holders"), *columns(keys), now_us)
        for namespace, task, key, instance_id, request_hash in rows:
            known.holders[namespace, task, key] = _Holder(instance_id, request_hash)
    return known


def _key(submission: Submission) -> _Key:
    return submission.instance.namespace, submission.instance.task, submission.key


def _fire(instance: Instance) -> _Fire | None:
    if instance.fire_us is None:
        return None
    return instance.fire_trigger, instance.fire_us, instance.shard


async def _take_keys(
    driver: DriverConnection, submissions: Sequence[Submission], *, now_us: int
) -> set[_Key]:
    rows = sorted(
        (*_key(submission), submission.instance.id, submission.request_hash, submission.key_expires_us)
        for submission in submissions
    )
    taken = set[_Key]()
    for start in range(0, len(rows), _ROWS_MAX):
        part = columns(rows[start : start + _ROWS_MAX])
        taken |= {tuple(row) for row in await driver.fetch(statement("insert_key"), *part, now_us)}
    return taken


async def _insert_new(driver: DriverConnection, instances: Sequence[Instance]) -> None:
    """Raises the driver's ``UniqueViolationError`` where one of them is there."""
    if len(instances) >= COPIED_MIN:
        rows = sorted(instances, key=lambda row: row.id)
        await copy(driver, "instance", names=INSERTED, rows=map(instance_values, rows))
        return
    for part in _parts(instances):
        await driver.execute(statement("insert_new"), *columns(part))


async def _insert(driver: DriverConnection, instances: Sequence[Instance]) -> set[str]:
    created = set[str]()
    for rows in _parts(instances):
        created |= {row[0] for row in await driver.fetch(statement("insert_instance"), *columns(rows))}
    return created


def _parts(instances: Sequence[Instance]) -> Iterator[list[tuple[Value, ...]]]:
    """Rows by id, in lists that one statement takes."""
    rows: list[tuple[Value, ...]] = []
    size_bytes = 0
    for instance in sorted(instances, key=lambda row: row.id):
        if rows and (len(rows) == _ROWS_MAX or size_bytes + len(instance.payload) > _BYTES_MAX):
            yield rows
            rows, size_bytes = [], 0
        rows.append(instance_values(instance))
        size_bytes += len(instance.payload)
    if rows:
        yield rows
