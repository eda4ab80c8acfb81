"""What is done to the in-memory tables outside of commits: submit, apply, workers; and retention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import islice

import msgspec

from ostinato.core.definition import Origin, TaskDefinition, TaskRef, TaskRow, encode_definition
from ostinato.core.ids import partition_of
from ostinato.store.batches import ApplyReceipt, Submission, SubmitReceipt, WorkerRow
from ostinato.store.memory.tables import KeyRow, Tables, fire_key
from ostinato.store.rules import conflict_receipts, key_time_us, require_encodable


def submit_one(tables: Tables, submission: Submission, *, now_us: int) -> SubmitReceipt:
    """Insert one instance, or answer with the one that is there already."""
    instance = submission.instance
    if instance.id in tables.instances:
        return SubmitReceipt(instance.id, created=False)
    if instance.fire_us is not None and fire_key(instance) in tables.fires:
        return SubmitReceipt(tables.fires[fire_key(instance)], created=False)
    if submission.key:
        name = (instance.namespace, instance.task, submission.key)
        live = tables.keys.get(name)
        if live is not None and live.expires_us > key_time_us((submission,), now_us):
            return SubmitReceipt(
                live.instance_id, created=False, conflict=live.request_hash != submission.request_hash
            )
        tables.keys[name] = KeyRow(instance.id, submission.request_hash, submission.key_expires_us)
    tables.put(copy(instance))
    return SubmitReceipt(instance.id, created=True)


def apply(
    tables: Tables,
    definitions: Sequence[TaskDefinition],
    *,
    now_us: int,
    origin: Origin,
    expected: Mapping[TaskRef, int],
) -> list[ApplyReceipt]:
    for definition in definitions:
        require_encodable(definition)
    refs = [definition.ref for definition in definitions]
    versions = {ref: tables.tasks[ref].version for ref in (*refs, *expected) if ref in tables.tasks}
    conflicts = conflict_receipts(refs, versions, expected=expected)
    if conflicts:
        return conflicts
    return [_apply_one(tables, definition, now_us=now_us, origin=origin) for definition in definitions]


def _apply_one(tables: Tables, definition: TaskDefinition, *, now_us: int, origin: Origin) -> ApplyReceipt:
    ref = definition.ref
    task = tables.tasks.get(ref)
    if task is not None and encode_definition(task.definition) == encode_definition(definition):
        if origin == "app":
            tables.put_task(msgspec.structs.replace(task, origin=origin))
        return ApplyReceipt(ref, task.version, "unchanged")
    # Versions of a deleted task go on: instances may pin them.
    version = tables.newest_versions.get(ref, 0) + 1
    tables.newest_versions[ref] = version
    tables.definitions[ref, version] = definition
    if task is not None:
        tables.put_task(
            msgspec.structs.replace(
                task, definition=definition, version=version, updated_us=now_us, origin=origin
            )
        )
        return ApplyReceipt(ref, version, "changed")
    task = TaskRow(
        definition=definition,
        version=version,
        partition=partition_of(ref.namespace, ref.name, partition_count=len(tables.owners)),
        paused=False,
        disabled=False,
        scheduled_version=0,
        created_us=now_us,
        updated_us=now_us,
        origin=origin,
    )
    tables.put_task(task)
    return ApplyReceipt(ref, version, "created")


def record_workers(tables: Tables, rows: Sequence[WorkerRow], *, gone_before_us: int) -> None:
    for row in rows:
        tables.workers[row.worker_id, row.node_id] = row
    for key, row in list(tables.workers.items()):
        if row.node_id not in tables.nodes:
            tables.workers[key] = row = msgspec.structs.replace(row, state="gone")
        if row.state == "gone" and row.seen_us < gone_before_us:
            del tables.workers[key]


def delete_finished(tables: Tables, *, success_before_us: int, other_before_us: int, limit: int) -> int:
    old: list[str] = []
    for is_success, before_us in ((True, success_before_us), (False, other_before_us)):
        for finished_us, identifier in islice(tables.finished[is_success], limit - len(old)):
            if finished_us >= before_us:
                break
            old.append(identifier)
    for identifier in old:
        tables.drop(tables.instances[identifier])
    return len(old)


def delete_old_requests(tables: Tables, *, before_us: int, keys_before_us: int) -> None:
    """Answered requests and expired keys have no other retention than that of what they asked for."""
    for identifier, answer in list(tables.answers.items()):
        if answer.answered_us < before_us:
            del tables.answers[identifier]
            del tables.requests[identifier]
    for name, row in list(tables.keys.items()):
        if row.expires_us <= keys_before_us:
            del tables.keys[name]
