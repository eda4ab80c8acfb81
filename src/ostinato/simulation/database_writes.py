"""What the transactions that write rows do on the simulated server: what they lock, decide by and change.

Locks are taken in one order, as by the real adapters: partitions, nodes, keys, triggers, instances, requests,
tasks, each sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ostinato.core.definition import Origin, TaskDefinition, TaskRef
from ostinato.simulation.database_calls import Calls, Result, Transaction, run_at_once
from ostinato.simulation.database_locks import Resource, Want, exclusive, shared
from ostinato.store.batches import (
    ApplyReceipt,
    CommitBatch,
    CommitReport,
    DeleteTask,
    Proof,
    Request,
    SetTaskFlags,
    Submission,
    SubmitReceipt,
    SwitchVersion,
)
from ostinato.store.memory.commit import commit as commit_rows
from ostinato.store.memory.commit import proven_partitions
from ostinato.store.memory.tables import fire_key
from ostinato.store.rules import moves_of
from ostinato.store.server.database import DEADLINE_US, Role

#: What a row of a long list of submissions may take beyond the deadline of every call.
_ROW_US = 100

_LISTS = tuple(name for name in CommitBatch.__struct_fields__ if name != "proofs")


async def write(
    calls: Calls,
    operation: str,
    *,
    role: Role,
    effect: Callable[[], Result],
    locks: Sequence[Want] = (),
    deadline_us: int = DEADLINE_US,
) -> Result:
    """One statement that takes `locks`, and a COMMIT that has `effect`."""

    async def run(transaction: Transaction) -> Result:
        await transaction.lock(locks, lambda _: calls.server.require_room())
        result: Result = await transaction.commit(effect)
        return result

    return await calls.run(operation, run, role=role, deadline_us=deadline_us)


async def commit(calls: Calls, batch: CommitBatch) -> CommitReport:
    """Share-lock and prove the partitions that are written, lock the rows, write, COMMIT (I5)."""
    server, tables = calls.server, calls.server.tables
    # What is sent is sent: the caller's lists may change before it arrives.
    batch = CommitBatch(**{name: list(getattr(batch, name)) for name in CommitBatch.__struct_fields__})
    touched = {row.partition for name in _LISTS for row in getattr(batch, name)}
    if not touched and not batch.proofs:
        return CommitReport()
    written = sorted(touched.intersection(proof.partition for proof in batch.proofs))
    rows = exclusive(_rows_of(batch))

    async def run(transaction: Transaction) -> CommitReport:
        proven: frozenset[int] = await transaction.lock(
            proof_locks(written), lambda _: proven_partitions(tables, batch)
        )
        await transaction.lock(rows, lambda _: server.require_room())
        proofs: list[Proof] = [proof for proof in batch.proofs if proof.partition in proven]
        report: CommitReport = await transaction.commit(
            lambda: commit_rows(tables, batch, proven=proven), proofs=proofs
        )
        return report

    return await calls.run("committing a batch", run, role="owner")


def proof_locks(partitions: Sequence[int]) -> list[Want]:
    """What keeps a taker from the partitions until the COMMIT."""
    return shared(("partition", number) for number in partitions)


def _rows_of(batch: CommitBatch) -> Iterator[Resource]:
    """Rows that a batch writes, in the order in which they are locked."""
    for trigger_id in sorted(advance.trigger_id for advance in batch.advances):
        yield "trigger", trigger_id
    for instance_id in sorted(move.instance_id for move in moves_of(batch)):
        yield "instance", instance_id
    for instance_id in sorted(instance.id for instance in batch.inserts):
        yield "new", instance_id
    for fire in sorted(fire_key(row) for row in batch.inserts if row.fire_us is not None):
        yield "fire", *fire
    for request_id in sorted(answer.request_id for answer in batch.answers):
        yield "request", request_id
    told: list[SwitchVersion | SetTaskFlags | DeleteTask]
    told = [*batch.switches, *batch.flags, *batch.deletions]
    for named in sorted({(row.namespace, row.task) for row in told}):
        yield "task", *named


async def submit(calls: Calls, submissions: Sequence[Submission]) -> list[SubmitReceipt]:
    """Insert all or none; who inserts the same key, instance or fire waits."""
    if not submissions:
        return []
    submissions = list(submissions)
    return await write(
        calls,
        "submitting",
        role="people",
        locks=exclusive(_names_of(submissions)),
        effect=lambda: run_at_once(calls.server.memory.submit(submissions)),
        deadline_us=DEADLINE_US + len(submissions) * _ROW_US,
    )


def _names_of(submissions: Sequence[Submission]) -> Iterator[Resource]:
    """What is unique about new instances, in the order in which it is locked."""
    instances = [submission.instance for submission in submissions]
    keyed = [submission for submission in submissions if submission.key]
    for key in sorted({(row.instance.namespace, row.instance.task, row.key) for row in keyed}):
        yield "key", *key
    for instance_id in sorted({instance.id for instance in instances}):
        yield "new", instance_id
    for fire in sorted({fire_key(row) for row in instances if row.fire_us is not None}):
        yield "fire", *fire


async def apply(
    calls: Calls,
    definitions: Sequence[TaskDefinition],
    *,
    now_us: int,
    origin: Origin,
    expected: Mapping[TaskRef, int],
) -> list[ApplyReceipt]:
    """Store definitions with every task that is named locked."""
    definitions = list(definitions)
    named = sorted({(ref.namespace, ref.name) for ref in (*(row.ref for row in definitions), *expected)})
    memory = calls.server.memory
    return await write(
        calls,
        "applying definitions",
        role="people",
        locks=exclusive(("task", *name) for name in named),
        effect=lambda: run_at_once(
            memory.apply(definitions, now_us=now_us, origin=origin, expected=expected)
        ),
    )


async def add_requests(calls: Calls, requests: Sequence[Request]) -> None:
    """Insert requests; who inserts the same one waits."""
    requests = list(requests)
    await write(
        calls,
        "adding requests",
        role="people",
        locks=exclusive(("request", name) for name in sorted({request.id for request in requests})),
        effect=lambda: run_at_once(calls.server.memory.add_requests(requests)),
    )
