"""Plan an apply of documents, and carry it out: what is created, changed, left alone or deleted.

A plan is made for the versions that it has seen. Carrying it out names them, so that a task which somebody
else has changed meanwhile is a conflict and nothing is written, instead of one of two edits being lost. What
a plan creates and changes is one transaction; the deletions of a prune are requests to the owners, made
afterwards.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from ostinato.control.apply import validate_definition
from ostinato.control.delete import delete_task
from ostinato.control.document.read import Document, refuse_repeats
from ostinato.control.document.write import task_document
from ostinato.control.queries import list_tasks
from ostinato.control.requests import Asker
from ostinato.core.definition import (
    TaskDefinition,
    TaskRef,
    TaskRow,
    decode_definition,
    encode_definition,
)
from ostinato.errors import ConflictError, OstinatoError, UnavailableError
from ostinato.store.batches import ApplyReceipt
from ostinato.store.protocol import Store

Action: TypeAlias = Literal["create", "change", "unchanged", "delete"]

#: What an outcome was, once carried out; a conflict is raised, never shown.
_ACTIONS: dict[str, Action] = {"created": "create", "changed": "change", "unchanged": "unchanged"}

_READ_AT_ONCE = 1_000
_DELETE_AT_ONCE = 50
_NAMED_MAX = 5
#: Somebody who applies the same again and again at the same time is no reason to go on for ever.
_TRIES_MAX = 5


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan does to one task."""

    ref: TaskRef
    action: Action
    #: Newest version that the plan has seen, 0 for a task that does not exist.
    version: int
    #: What is there; None for a task that does not exist.
    stored: TaskDefinition | None = None
    #: What is stored instead; None for a deletion.
    definition: TaskDefinition | None = None

    @property
    def before(self) -> dict[str, Any] | None:
        """The task as an entry of ``tasks.yaml``; None if it does not exist."""
        return None if self.stored is None else _entry(self.stored)

    @property
    def after(self) -> dict[str, Any] | None:
        """As `before`, once the plan is carried out; None for a deletion."""
        return None if self.definition is None else _entry(self.definition)


class Plan(msgspec.Struct, frozen=True):
    """Changes in the order of the documents, then deletions by namespace and name."""

    changes: list[Change]

    @property
    def is_empty(self) -> bool:
        """Whether carrying it out would change nothing."""
        return all(change.action == "unchanged" for change in self.changes)

    @property
    def writes(self) -> list[Change]:
        """What is stored in one transaction, unchanged tasks included."""
        return [change for change in self.changes if change.definition is not None]

    @property
    def deletions(self) -> list[Change]:
        return [change for change in self.changes if change.action == "delete"]

    def counts(self) -> dict[Action, int]:
        """Number of changes by action, none left out."""
        found = Counter(change.action for change in self.changes)
        actions: tuple[Action, ...] = ("create", "change", "unchanged", "delete")
        return {action: found[action] for action in actions}


class ChangeShape(msgspec.Struct, kw_only=True):
    """A change as it is shown by REST and ``--json``."""

    namespace: str
    name: str
    action: Action
    #: In a plan the version that it was made for (0: none yet); once carried out the one that holds.
    version: int
    before: dict[str, Any] | None
    after: dict[str, Any] | None


async def plan(store: Store, documents: Sequence[Document], *, prune: bool) -> Plan:
    """Compare `documents` with what is stored; writes nothing.

    `prune` also deletes, in the namespaces of the documents, the tasks that an apply of a document has made
    and that no document names now; never those of an app. Raises as ``validate_definition``, and
    ``InvalidDocument`` if a task is given twice.
    """
    definitions = _definitions(documents)
    stored = await _stored(store, [definition.ref for definition in definitions])
    changes = [_change(definition, stored.get(definition.ref)) for definition in definitions]
    if prune:
        named = {definition.ref for definition in definitions}
        for namespace in sorted({document.namespace for document in documents}):
            rows = await list_tasks(store, namespace)
            changes += [_deletion(row) for row in rows if row.origin == "document" and row.ref not in named]
    return Plan(changes)


async def carry_out(store: Store, plan: Plan, *, now_us: int, asker: Asker) -> list[ApplyReceipt]:
    """Do what `plan` shows; the receipts are those of `Plan.writes`, in their order.

    Raises what `write` and `delete` raise: after an error of `write` nothing has changed, after one of
    `delete` everything but the deletions is done. Repeating it is harmless.
    """
    receipts = await write(store, plan, now_us=now_us)
    await delete(store, plan, asker=asker)
    return receipts


async def write(store: Store, plan: Plan, *, now_us: int) -> list[ApplyReceipt]:
    """Create and change tasks, all or none, if each still has the version that the plan was made for.

    A task that somebody else has meanwhile made just as wanted is no conflict, nor is one to be deleted that
    is gone. Raises ``VERSION_CONFLICT`` naming the tasks that have changed.
    """
    await _require_deletable(store, plan.deletions)
    wanted = {change.ref: change.definition for change in plan.changes if change.definition is not None}
    expected = {change.ref: change.version for change in plan.writes}
    if not wanted:
        return []
    for _ in range(_TRIES_MAX):
        receipts = await store.apply(
            list(wanted.values()), now_us=now_us, origin="document", expected=expected
        )
        conflicts = [receipt.ref for receipt in receipts if receipt.outcome == "conflict"]
        if not conflicts:
            return receipts
        rows = await _stored(store, conflicts)
        if not all(ref in rows and _is_same(wanted[ref], rows[ref].definition) for ref in conflicts):
            break
        expected |= {ref: rows[ref].version for ref in conflicts}
    raise _conflict(conflicts, rows, expected=expected)


async def delete(store: Store, plan: Plan, *, asker: Asker) -> None:
    """Ask the owners for the plan's deletions and return once they have answered.

    A task that is gone already is fine. Raises ``SCHEDULER_UNREACHABLE`` when no scheduler answers; all
    deletions are recorded then, and carried out when one runs.
    """
    errors: list[OstinatoError] = []
    refs = [change.ref for change in plan.deletions]
    for start in range(0, len(refs), _DELETE_AT_ONCE):
        some = refs[start : start + _DELETE_AT_ONCE]
        # Once nobody has answered, the rest is only recorded: it is not waited for each piece anew.
        waiting = msgspec.structs.replace(asker, wait_us=0) if errors else asker
        answers = await asyncio.gather(*(_delete_one(store, ref, asker=waiting) for ref in some))
        errors += [error for error in answers if error is not None]
    if not errors:
        return
    other = [error for error in errors if error.code != "SCHEDULER_UNREACHABLE"]
    if other:
        raise other[0]
    raise UnavailableError(
        "SCHEDULER_UNREACHABLE",
        f"{_tasks(len(errors))} not deleted yet: the deletions are recorded, no scheduler has answered",
        subject=", ".join(map(str, refs[:_NAMED_MAX])),
        hint="a scheduler carries them out when it can; repeating is not needed",
    )


def change_shapes(plan: Plan, receipts: Iterable[ApplyReceipt] = ()) -> list[ChangeShape]:
    """What is shown of a plan, or with `receipts` of what has become of it."""
    done = {receipt.ref: receipt for receipt in receipts}
    return [
        ChangeShape(
            namespace=change.ref.namespace,
            name=change.ref.name,
            action=_ACTIONS[done[change.ref].outcome] if change.ref in done else change.action,
            version=done[change.ref].version if change.ref in done else change.version,
            before=change.before,
            after=change.after,
        )
        for change in plan.changes
    ]


def _definitions(documents: Sequence[Document]) -> list[TaskDefinition]:
    """All of them, each checked and given once."""
    refuse_repeats(documents)
    found = [definition for document in documents for definition in document.definitions]
    for definition in found:
        validate_definition(definition)
    return found


async def _stored(store: Store, refs: Sequence[TaskRef]) -> dict[TaskRef, TaskRow]:
    rows: dict[TaskRef, TaskRow] = {}
    for start in range(0, len(refs), _READ_AT_ONCE):
        rows |= await store.get_tasks(refs[start : start + _READ_AT_ONCE])
    return rows


def _change(definition: TaskDefinition, row: TaskRow | None) -> Change:
    if row is None:
        return Change(ref=definition.ref, action="create", version=0, definition=definition)
    return Change(
        ref=definition.ref,
        action="unchanged" if _is_same(definition, row.definition) else "change",
        version=row.version,
        stored=row.definition,
        definition=definition,
    )


def _deletion(row: TaskRow) -> Change:
    return Change(ref=row.ref, action="delete", version=row.version, stored=row.definition)


def _entry(definition: TaskDefinition) -> dict[str, Any]:
    """As a store gives it back: maps such as labels are then in one order, and a diff shows none of it."""
    return task_document(decode_definition(encode_definition(definition)))


def _is_same(one: TaskDefinition, other: TaskDefinition) -> bool:
    """As a store judges it."""
    return encode_definition(one) == encode_definition(other)


async def _require_deletable(store: Store, deletions: Sequence[Change]) -> None:
    rows = await _stored(store, [change.ref for change in deletions])
    expected = {change.ref: change.version for change in deletions if change.ref in rows}
    changed = [ref for ref, version in expected.items() if rows[ref].version != version]
    if changed:
        raise _conflict(changed, rows, expected=expected)


async def _delete_one(store: Store, ref: TaskRef, *, asker: Asker) -> OstinatoError | None:
    try:
        await delete_task(store, ref, asker=asker)
    except OstinatoError as error:
        # Returned, not raised: the others' deletions are asked for all the same.
        return None if error.code == "TASK_NOT_FOUND" else error
    return None


def _conflict(
    refs: Sequence[TaskRef], rows: dict[TaskRef, TaskRow], *, expected: dict[TaskRef, int]
) -> ConflictError:
    named = [
        f"{ref} has {_version(rows[ref].version if ref in rows else 0)} instead of {_version(expected[ref])}"
        for ref in refs[:_NAMED_MAX]
    ]
    more = f", and {len(refs) - _NAMED_MAX} more" if len(refs) > _NAMED_MAX else ""
    return ConflictError(
        "VERSION_CONFLICT",
        f"somebody else has changed what is applied, so nothing was written: {', '.join(named)}{more}",
        subject=str(refs[0]),
        hint="look at the difference and apply again",
    )


def _version(version: int) -> str:
    return f"version {version}" if version else "no version"


def _tasks(count: int) -> str:
    return "1 task is" if count == 1 else f"{count} tasks are"
