"""Submit: turn requests to run a task into instances, all or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from random import Random
from typing import NamedTuple

import msgspec

from ostinato.control.apply import validate_priority
from ostinato.control.names import did_you_mean, validate_key, validate_name
from ostinato.control.parameters import check_parameters, check_types
from ostinato.control.seen_tasks import SeenTasks
from ostinato.core.definition import TaskDefinition, TaskRef, TaskRow
from ostinato.core.failure.text import cut_text
from ostinato.core.ids import is_id, new_id
from ostinato.core.instants import DAY, DURATION_MAX_US, INSTANT_MAX_US, INSTANT_MIN_US
from ostinato.core.model import Instance
from ostinato.core.payload import (
    PAYLOAD_BYTES_MAX,
    canonical_json,
    check_json_object,
    merge_objects,
    require_size,
)
from ostinato.core.states import State
from ostinato.errors import ConflictError, OstinatoError, UnavailableError, UserError, restated
from ostinato.store.batches import Submission, SubmitReceipt
from ostinato.store.protocol import Store

#: Design section 11: an idempotency key is live so long from the creation of its instance.
KEY_LIFETIME_US = DAY
#: Names that a "did you mean" chooses from.
CLOSE_NAMES_MAX = 1_000
_REASON_BYTES_MAX = 1_000


class SubmitRequest(msgspec.Struct, kw_only=True, frozen=True):
    """What somebody wants run. `delay_us` and `due_us` exclude each other; neither means now."""

    task: str
    namespace: str = "default"
    #: A JSON object; for a Python task its arguments by name. Merged over the task's own payload.
    payload: bytes = b"{}"
    #: Empty: none. While the key lives, an equal request is answered with the instance that exists.
    key: str = ""
    delay_us: int | None = None
    due_us: int | None = None
    #: None: the task's.
    priority: int | None = None
    #: Said of the instance while it waits, such as who started it by hand.
    reason: str = ""
    #: Id of the instance, chosen by a caller that may have to repeat itself (C141); empty: a new one.
    id: str = ""


class _Resolved(NamedTuple):
    """What all submissions of one task share."""

    row: TaskRow
    defaults: bytes
    default_names: frozenset[str]


async def submit(
    store: Store,
    submissions: Sequence[SubmitRequest],
    *,
    now_us: int,
    rng: Random,
    seen: SeenTasks | None = None,
) -> list[SubmitReceipt]:
    """Insert an instance for each request; receipts in the same order, empty for none.

    `now_us` is the store's time. An instant in the past means now. The instance pins the newest version of
    its task. Each check is made before anything is written: ``TASK_NOT_FOUND``, ``TASK_DISABLED``,
    ``INVALID_NAME``, ``INVALID_VALUE``, ``INVALID_DURATION``, ``INVALID_INSTANT``, ``INVALID_PAYLOAD``,
    ``PAYLOAD_TOO_LARGE``; with several requests the error's subject is ``submissions[n]``.
    ``KEY_CONFLICT`` says that a key is live with another payload, or that a chosen id is another
    submission's: with several requests the others have been accepted, as the message says. A chosen id that
    is repeated with the same task and payload is the same submission, and answered as it was.
    `seen` keeps what was read of tasks from one call to the next: a single plain submission then is one
    question to the database instead of two.
    Source: design sections 5 and 11; I5, I8, C141.
    """
    if seen is not None and (receipt := await _submit_seen(store, submissions, seen, now_us=now_us, rng=rng)):
        return [receipt]
    tasks = await _find_tasks(store, submissions)
    if seen is not None:
        seen.note(tasks)
    rows = prepare(submissions, tasks, now_us=now_us, rng=rng)
    if not rows:
        return []
    _refuse_repeated_ids(submissions)
    receipts = await _insert(store, rows)
    await _refuse_foreign_ids(store, submissions, rows=rows, receipts=receipts)
    answered = [
        SubmitReceipt(
            instance_id=receipt.instance_id,
            # A repeat after a lost answer finds our own row, which this call has created all the same.
            created=receipt.instance_id == row.instance.id,
            conflict=receipt.conflict,
        )
        for row, receipt in zip(rows, receipts, strict=True)
    ]
    refuse_conflicts(rows, answered)
    return answered


async def _submit_seen(
    store: Store, submissions: Sequence[SubmitRequest], seen: SeenTasks, *, now_us: int, rng: Random
) -> SubmitReceipt | None:
    """The receipt of a single plain submission whose task is as it was seen; None: nothing was inserted."""
    if len(submissions) != 1:
        return None
    request = submissions[0]
    ref = TaskRef(request.namespace, request.task)
    task = seen.get(ref)
    if task is None or request.key != "" or request.id != "":
        return None
    try:
        rows = prepare(submissions, {ref: task}, now_us=now_us, rng=rng)
    except OstinatoError:
        # It may be what was seen that is wrong.
        return None
    try:
        receipt = await store.submit_if_newest(rows[0])
    except UnavailableError as error:
        receipt = (await _insert_again(store, rows, error))[0]
    if receipt is None:
        seen.forget(ref)
        return None
    return SubmitReceipt(receipt.instance_id, created=True)


def prepare(
    submissions: Sequence[SubmitRequest], tasks: Mapping[TaskRef, TaskRow], *, now_us: int, rng: Random
) -> list[Submission]:
    """What is to be inserted for each request, all checked; `tasks` has every one that they name.

    Pure, for those who insert in a transaction of their own. Raises as `submit` does before it writes.
    """
    resolved: dict[TaskRef, _Resolved] = {}
    for ref, row in tasks.items():
        refuse_disabled(row)
        resolved[ref] = _resolved(row)
    return [
        _prepare(request, resolved, now_us=now_us, rng=rng, position=index if len(submissions) > 1 else None)
        for index, request in enumerate(submissions)
    ]


async def _find_tasks(store: Store, submissions: Sequence[SubmitRequest]) -> dict[TaskRef, TaskRow]:
    refs: dict[TaskRef, None] = {}
    for index, request in enumerate(submissions):
        ref = TaskRef(request.namespace, request.task)
        if ref not in refs:
            prefix = f"submissions[{index}]." if len(submissions) > 1 else ""
            validate_name(request.namespace, field=f"{prefix}namespace")
            validate_name(request.task, field=f"{prefix}task")
            refs[ref] = None
    rows = await store.get_tasks([*refs])
    for ref in refs:
        if ref not in rows:
            raise await task_not_found(store, ref)
    return rows


def refuse_disabled(row: TaskRow) -> None:
    """Raise ``TASK_DISABLED`` for a task that takes no new work, neither submissions nor replays."""
    if row.disabled:
        raise ConflictError(
            "TASK_DISABLED",
            f"task {row.ref} is disabled and accepts no submissions",
            subject=str(row.ref),
            hint="enable it first",
        )


def _resolved(row: TaskRow) -> _Resolved:
    defaults = bytes(row.definition.payload)
    return _Resolved(row, defaults, frozenset(check_json_object(defaults)))


async def task_not_found(store: Store, ref: TaskRef) -> UserError:
    """The error for a task that does not exist, with the closest name that does."""
    rows = await store.list_tasks(ref.namespace, after=None, limit=CLOSE_NAMES_MAX)
    return task_missing(ref, [row.ref.name for row in rows])


def task_missing(ref: TaskRef, names: Iterable[str]) -> UserError:
    """The error for a task that is none of `names`, which its namespace has."""
    known = [*names]
    hint = did_you_mean(ref.name, known)
    if not known:
        hint = f"namespace {ref.namespace} has no tasks; apply or start a worker with the app that has it"
    return UserError("TASK_NOT_FOUND", f"task {ref} does not exist", subject=str(ref), hint=hint)


def _prepare(
    request: SubmitRequest,
    tasks: dict[TaskRef, _Resolved],
    *,
    now_us: int,
    rng: Random,
    position: int | None,
) -> Submission:
    task = tasks[TaskRef(request.namespace, request.task)]
    try:
        return _submission(request, task, now_us=now_us, rng=rng)
    except UserError as error:
        if position is None:
            raise
        place = f"submissions[{position}]"
        field = f"{place}.{error.field}" if error.field else place
        raise restated(error, subject=place, field=field) from None


def _submission(request: SubmitRequest, task: _Resolved, *, now_us: int, rng: Random) -> Submission:
    definition = task.row.definition
    payload = _checked_payload(request.payload, task)
    due_us = _due_us(request, now_us)
    if request.priority is not None:
        validate_priority(request.priority)
    if request.id and not is_id(request.id):
        raise UserError(
            "INVALID_VALUE", f"{request.id!a} is not an id", field="id", hint="leave it out for a new one"
        )
    request_hash = ""
    # Compared with "no key", as 0 or b"" must be refused rather than taken for none.
    if request.key != "":
        validate_key(request.key)
        request_hash = blake2b(canonical_json(request.payload), digest_size=16).hexdigest()
    return Submission(
        instance=Instance(
            id=request.id or new_id(now_us, rng),
            namespace=request.namespace,
            task=request.task,
            task_version=task.row.version,
            partition=task.row.partition,
            state=State.PENDING,
            priority=definition.priority if request.priority is None else request.priority,
            due_us=due_us,
            created_us=now_us,
            payload=payload,
            reason=cut_text(request.reason, _REASON_BYTES_MAX) if request.reason else "",
            expires_us=_expires_us(definition, due_us),
            key=request.key,
        ),
        key=request.key,
        request_hash=request_hash,
        key_expires_us=now_us + KEY_LIFETIME_US if request.key else 0,
    )


def _checked_payload(payload: bytes, task: _Resolved) -> bytes:
    definition = task.row.definition
    if type(payload) is not bytes:
        raise UserError("INVALID_PAYLOAD", f"JSON as bytes, not {type(payload).__name__}", field="payload")
    given = check_json_object(payload)
    check_parameters(definition.executor, task.default_names | given.keys(), subject=str(definition.ref))
    check_types(definition.executor, given, subject=str(definition.ref))
    merged = merge_objects(task.defaults, payload)
    require_size(merged, field="payload", limit_bytes=PAYLOAD_BYTES_MAX)
    return merged


def _due_us(request: SubmitRequest, now_us: int) -> int:
    if request.delay_us is not None:
        if request.due_us is not None:
            raise UserError("INVALID_VALUE", "give a delay or an instant, not both", field="at")
        if type(request.delay_us) is not int:
            raise UserError(
                "INVALID_DURATION", "the delay is not a whole number of microseconds", field="delay"
            )
        if not 0 <= request.delay_us <= DURATION_MAX_US:
            raise UserError("INVALID_DURATION", "the delay is not within 0s to 100 years", field="delay")
        return min(now_us + request.delay_us, INSTANT_MAX_US)
    if request.due_us is None:
        return now_us
    if type(request.due_us) is not int:
        raise UserError("INVALID_INSTANT", "the instant is not a whole number of microseconds", field="at")
    if not INSTANT_MIN_US <= request.due_us <= INSTANT_MAX_US:
        raise UserError("INVALID_INSTANT", "the instant is outside the years 1 to 9999", field="at")
    # An instant long past would otherwise overtake work that has waited for its turn.
    return max(request.due_us, now_us)


def _expires_us(definition: TaskDefinition, due_us: int) -> int | None:
    return None if definition.queue_timeout_us is None else due_us + definition.queue_timeout_us


async def _insert(store: Store, rows: Sequence[Submission]) -> list[SubmitReceipt]:
    try:
        return await store.submit(rows)
    except UnavailableError as error:
        return await _insert_again(store, rows, error)


async def _insert_again(
    store: Store, rows: Sequence[Submission], error: UnavailableError
) -> list[SubmitReceipt]:
    """Nobody knows whether the rows were committed: repeating the same ids is safe (C141), and settles it."""
    if error.code != "DATABASE_UNAVAILABLE":
        raise error
    return await store.submit(rows)


def _refuse_repeated_ids(requests: Sequence[SubmitRequest]) -> None:
    chosen: set[str] = set()
    for index, request in enumerate(requests):
        if request.id and request.id in chosen:
            raise ConflictError(
                "KEY_CONFLICT",
                f"id {request.id} is given twice",
                subject=request.id,
                field=f"submissions[{index}].id",
            )
        chosen.add(request.id)


async def _refuse_foreign_ids(
    store: Store,
    requests: Sequence[SubmitRequest],
    *,
    rows: Sequence[Submission],
    receipts: Sequence[SubmitReceipt],
) -> None:
    """An id that existed before must be of this very submission: else the caller would follow another's."""
    known = {
        row.instance.id: row.instance
        for request, row, receipt in zip(requests, rows, receipts, strict=True)
        if request.id and not receipt.created and receipt.instance_id == request.id
    }
    if not known:
        return
    found = await store.get_instances([*known])
    for identifier, wanted in known.items():
        existing = found.get(identifier)
        if existing is not None and not _is_same_work(existing, wanted):
            raise ConflictError(
                "KEY_CONFLICT",
                f"id {identifier} belongs to another submission, of {existing.ref}",
                subject=identifier,
                field="id",
            )


def _is_same_work(one: Instance, other: Instance) -> bool:
    return one.ref == other.ref and canonical_json(one.payload) == canonical_json(other.payload)


def refuse_conflicts(
    rows: Sequence[Submission], receipts: Sequence[SubmitReceipt], *, others_accepted: bool = True
) -> None:
    """Raise ``KEY_CONFLICT`` if a receipt tells one; `others_accepted`: what the message says of the rest."""
    conflicts = [index for index, receipt in enumerate(receipts) if receipt.conflict]
    if not conflicts:
        return
    first = conflicts[0]
    message = (
        f"key {rows[first].key!r} is live with another payload, of instance {receipts[first].instance_id}"
    )
    if len(rows) > 1:
        accepted = len(rows) - len(conflicts) if others_accepted else 0
        message = f"submissions[{first}]: {message}; {accepted} of the {len(rows)} submissions are accepted"
    raise ConflictError(
        "KEY_CONFLICT",
        message,
        subject=receipts[first].instance_id,
        field="key",
        hint="repeat the same payload, or use another key",
    )
