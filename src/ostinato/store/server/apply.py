"""Storing definitions, all or none, while others may store the same ones.

Usually nothing has changed: an app says at every start what it declares. Then one read is all, and nothing is
locked. Otherwise every task named is locked, in the order of names, and only then is it decided what changes.
A task that is not there yet cannot be locked, so it is inserted first, as version 0, which nobody else sees:
who else inserts it waits for this transaction, and finds it or its absence afterwards. Nothing fails because
two were there at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
from sqlalchemy import and_, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.core.definition import Origin, TaskDefinition, TaskRef
from ostinato.core.ids import partition_of
from ostinato.store.batches import ApplyReceipt
from ostinato.store.rules import conflict_receipts, require_encodable
from ostinato.store.schema import task, task_definition
from ostinato.store.server.dialect_sql import chunks, delete_rows, insert_absent, looked_up, rows_of, upsert

_NAMES = (task.c.namespace, task.c.name)


def _names(ref: TaskRef) -> tuple[str, str]:
    return ref.namespace, ref.name


class _Known(msgspec.Struct):
    """A task as it is, and as this apply leaves it."""

    #: 0: it is not there, whether or not its row is.
    version: int = 0
    encoded: bytes = b""
    origin: str = ""


class _Decided(msgspec.Struct):
    """What an apply writes, and the receipts for it."""

    receipts: list[ApplyReceipt] = []
    #: Contents of new versions.
    definitions: list[tuple[TaskRef, int, bytes]] = []
    #: Tasks as they become, of which the version changes.
    changed: dict[TaskRef, _Known] = {}
    #: Tasks that become the app's with the content that they have.
    taken: set[TaskRef] = set()


async def apply(
    connection: AsyncConnection,
    definitions: Sequence[TaskDefinition],
    *,
    now_us: int,
    origin: Origin,
    expected: Mapping[TaskRef, int],
    partition_count: int,
) -> list[ApplyReceipt]:
    """Store definitions, all or none; equal content makes no new version."""
    contents = [(definition.ref, require_encodable(definition)) for definition in definitions]
    refs = sorted({ref for ref, _ in contents} | set(expected))
    known = await _read(connection, refs)
    decided = _decide(contents, known, origin=origin, expected=expected, newest={})
    if not decided.definitions and not decided.taken:
        return decided.receipts
    await _lock(connection, refs, known=known, now_us=now_us, partition_count=partition_count)
    known = await _read(connection, refs)
    newest = await _newest_versions(connection, [ref for ref in refs if not known[ref].version])
    decided = _decide(contents, known, origin=origin, expected=expected, newest=newest)
    await _write(connection, decided, now_us=now_us, origin=origin, partition_count=partition_count)
    # Inserted to be locked, and not made after all.
    unborn = [_names(ref) for ref in refs if not known[ref].version and ref not in decided.changed]
    await delete_rows(connection, _NAMES, values=unborn)
    return decided.receipts


# ── deciding ──────────────────────────────────────────────────────────────────────────────────────────


def _decide(
    contents: Sequence[tuple[TaskRef, bytes]],
    known: Mapping[TaskRef, _Known],
    *,
    origin: Origin,
    expected: Mapping[TaskRef, int],
    newest: Mapping[TaskRef, int],
) -> _Decided:
    """`newest`: versions of tasks that have been deleted, which go on, since instances may pin them."""
    versions = {ref: entry.version for ref, entry in known.items() if entry.version}
    conflicts = conflict_receipts([ref for ref, _ in contents], versions, expected=expected)
    if conflicts:
        return _Decided(conflicts)
    decided = _Decided()
    became = dict(known)
    for ref, encoded in contents:
        before = became[ref]
        if before.version and before.encoded == encoded:
            if origin == "app" and before.origin != origin:
                decided.taken.add(ref)
            decided.receipts.append(ApplyReceipt(ref, before.version, "unchanged"))
            continue
        version = (before.version or newest.get(ref, 0)) + 1
        became[ref] = decided.changed[ref] = _Known(version, encoded, origin)
        decided.definitions.append((ref, version, encoded))
        decided.receipts.append(ApplyReceipt(ref, version, "changed" if before.version else "created"))
    return decided


# ── reading, locking ──────────────────────────────────────────────────────────────────────────────────


async def _read(connection: AsyncConnection, refs: Sequence[TaskRef]) -> dict[TaskRef, _Known]:
    known = {ref: _Known() for ref in refs}
    is_newest = and_(
        task_definition.c.namespace == task.c.namespace,
        task_definition.c.name == task.c.name,
        task_definition.c.version == task.c.version,
    )
    for chunk in chunks(refs):
        wanted = rows_of(connection, _NAMES, rows=[_names(ref) for ref in chunk])
        is_wanted = and_(*(column == wanted.c[column.name] for column in _NAMES))
        rows = await connection.execute(
            select(*_NAMES, task.c.version, task_definition.c.definition, task.c.origin).select_from(
                wanted.join(task, is_wanted).join(task_definition, is_newest)
            )
        )
        known |= {TaskRef(row[0], row[1]): _Known(*row[2:]) for row in rows}
    return known


async def _lock(
    connection: AsyncConnection,
    refs: Sequence[TaskRef],
    *,
    known: Mapping[TaskRef, _Known],
    now_us: int,
    partition_count: int,
) -> None:
    """Lock the rows of all `refs`, those that are not there inserted as version 0."""
    absent = [ref for ref in refs if not known[ref].version]
    while absent or refs:
        if absent:
            rows = [_row(ref, now_us=now_us, partition_count=partition_count) for ref in absent]
            await connection.execute(insert_absent(connection, task), rows)
        locked = await _locked(connection, refs)
        # One that was there has been deleted before it could be locked. What is locked stays.
        refs = absent = [ref for ref in refs if ref not in locked]


def _row(ref: TaskRef, *, now_us: int, partition_count: int) -> dict[str, object]:
    """Of version 0."""
    return {
        "namespace": ref.namespace,
        "name": ref.name,
        "partition": partition_of(ref.namespace, ref.name, partition_count=partition_count),
        "version": 0,
        "scheduled_version": 0,
        "paused": False,
        "disabled": False,
        "created_us": now_us,
        "updated_us": now_us,
        "origin": "",
    }


async def _locked(connection: AsyncConnection, refs: Sequence[TaskRef]) -> Collection[TaskRef]:
    """Lock those of `refs` that are there, in the order of names."""
    locked: set[TaskRef] = set()
    for chunk in chunks(refs):
        wanted = rows_of(connection, _NAMES, rows=[_names(ref) for ref in chunk])
        is_wanted = and_(*(column == wanted.c[column.name] for column in _NAMES))
        statement = looked_up(select(*_NAMES).select_from(wanted.join(task, is_wanted)), task)
        rows = await connection.execute(statement.order_by(*_NAMES).with_for_update(of=task))
        locked |= {TaskRef(*row) for row in rows}
    return locked


async def _newest_versions(connection: AsyncConnection, refs: Sequence[TaskRef]) -> dict[TaskRef, int]:
    """The last version of each task that has had any."""
    key = (task_definition.c.namespace, task_definition.c.name)
    found: dict[TaskRef, int] = {}
    for chunk in chunks(refs):
        wanted = rows_of(connection, key, rows=[_names(ref) for ref in chunk])
        is_wanted = and_(*(column == wanted.c[column.name] for column in key))
        rows = await connection.execute(
            select(*key, func.max(task_definition.c.version))
            .select_from(wanted.join(task_definition, is_wanted))
            .group_by(*key)
        )
        found |= {TaskRef(row[0], row[1]): row[2] for row in rows}
    return found


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────


async def _write(
    connection: AsyncConnection, decided: _Decided, *, now_us: int, origin: Origin, partition_count: int
) -> None:
    """Write what is decided about tasks whose rows are there and locked."""
    if decided.definitions:
        rows = [
            {"namespace": ref.namespace, "name": ref.name, "version": version, "definition": encoded}
            for ref, version, encoded in decided.definitions
        ]
        await connection.execute(insert(task_definition), rows)
    rows = [
        _row(ref, now_us=now_us, partition_count=partition_count)
        | {"version": decided.changed[ref].version, "origin": origin}
        for ref in sorted(decided.changed)
    ]
    if rows:
        changing = upsert(connection, task, only=("version", "updated_us", "origin"))
        await connection.execute(changing, rows)
    rows = [
        _row(ref, now_us=now_us, partition_count=partition_count) | {"origin": origin}
        for ref in sorted(decided.taken - decided.changed.keys())
    ]
    if rows:
        await connection.execute(upsert(connection, task, only=("origin",)), rows)
