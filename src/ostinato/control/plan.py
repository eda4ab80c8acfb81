"""Plan an apply of documents, and carry it out: what is created, changed, left alone or deleted.

A plan is made for the versions that it has seen. Carrying it out names them, so that a task which somebody
else has changed meanwhile is a conflict and nothing is written, instead of one of two edits being lost. What
a plan creates and changes is one transaction; the deletions of a prune are requests to the owners, made
afterwards.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from ostinato.control.apply import validate_definition
from ostinato.control.delete import delete_task
from ostinato.control.document.read import Document, refuse_repeats
from ostinato.control.document.write import task_document
from ostinato.control.queries import list_tasks
from ostinato.control.requests import Asker
from ostinato.core.definition import (
    Origin,
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
_Value = TypeVar("_Value")
_ACTIONS: dict[str, Action] = {"created": "create", "changed": "change", "unchanged": "unchanged"}

_READ_AT_ONCE = 1_000
_DELETE_AT_ONCE = 50
#: Of more tasks the comparison is no matter of milliseconds.
_AT_ONCE_MAX = 1_000
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
    #: Who has declared what is there.
    stored_origin: Origin | None = None
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


async def plan(store: Store, documents: Sequence[Document], *, prune: bool, takes_over: bool = False) -> Plan:
    """Compare `documents` with what is stored; writes nothing.

    `prune` also deletes, in the namespaces of the documents, the tasks that an apply of a document has made
    and that no document names now; never those of an app. Raises as ``validate_definition``,
    ``InvalidDocument`` if a task is given twice, and ``TASK_OF_APP`` if a document would change a task that
    an app has declared, unless it `takes_over`.
    """
    definitions = await _aside(lambda: _definitions(documents), documents)
    stored = await _stored(store, [definition.ref for definition in definitions])
    changes = await _aside(
        lambda: [_change(definition, stored.get(definition.ref)) for definition in definitions], documents
    )
    if not takes_over:
        _refuse_of_apps(
            [change.ref for change in changes if change.action == "change" and change.stored_origin == "app"],
            documents,
        )
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
    is gone. Raises ``VERSION_CONFLICT`` naming the tasks that have changed, ``TASK_OF_APP`` if an app has
    taken one over since.
    """
    await _require_deletable(store, plan.deletions)
    await _require_still_free(store, [change for change in plan.changes if change.action == "change"])
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


async def _aside(work: Callable[[], _Value], documents: Sequence[Document]) -> _Value:
    """What `work` gives; of many tasks in a thread, as whoever else is on the loop would wait for seconds."""
    if sum(len(document.definitions) for document in documents) <= _AT_ONCE_MAX:
        return work()
    return await asyncio.to_thread(work)


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
        stored_origin=row.origin,
        definition=definition,
    )


def _deletion(row: TaskRow) -> Change:
    return Change(
        ref=row.ref, action="delete", version=row.version, stored=row.definition, stored_origin=row.origin
    )


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


async def _require_still_free(store: Store, changes: Sequence[Change]) -> None:
    """An app may have declared the very same since, which makes no new version."""
    free = [change.ref for change in changes if change.stored_origin != "app"]
    rows = await _stored(store, free)
    _refuse_of_apps([ref for ref in free if ref in rows and rows[ref].origin == "app"], ())


def _refuse_of_apps(refs: Sequence[TaskRef], documents: Sequence[Document]) -> None:
    """Raise ``TASK_OF_APP`` unless `refs` is empty: the app's next start would undo what is applied."""
    if not refs:
        return
    others = f", and so are {_named(refs[1:])}" if len(refs) > 1 else ""
    field, place = _where(refs[0], documents)
    raise ConflictError(
        "TASK_OF_APP",
        f"task {refs[0]} is declared by an app{others}; a document does not change it, nothing was written",
        subject=str(refs[0]),
        field=field,
        hint="declare it in the app, or delete the task first, or give this one another name",
        place=place,
    )


def _where(ref: TaskRef, documents: Sequence[Document]) -> tuple[str, str]:
    """Field and place of a task in its document; empty where it stands in none."""
    for document in documents:
        for index, definition in enumerate(document.definitions):
            if definition.ref == ref and document.places:
                return f"tasks[{index}]", document.places[index]
    return "", ""


def _named(refs: Sequence[TaskRef]) -> str:
    more = f" and {len(refs) - _NAMED_MAX} more" if len(refs) > _NAMED_MAX else ""
    return ", ".join(map(str, refs[:_NAMED_MAX])) + more


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
