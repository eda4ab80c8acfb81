"""What each transaction that writes does on the simulated server: locks, what it decides by, what it changes.

Locks are taken in one order, as by the real adapters: partitions, nodes, keys, triggers, instances, requests,
tasks, each sorted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from ostinato.core.definition import Origin, TaskDefinition, TaskRef
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.simulation.database_calls import Calls, Result, Transaction, run_at_once
from ostinato.simulation.database_locks import Resource, Want
from ostinato.simulation.database_sessions import Session
from ostinato.store.batches import (
    ApplyReceipt,
    CommitBatch,
    CommitReport,
    DeleteTask,
    NodeRow,
    NodesSeen,
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
#: How long one session may keep a taker waiting, and how often is looked who does.
_PATIENCE_US = SECOND
_LOOK_US = 250 * MILLISECOND

_LISTS = tuple(name for name in CommitBatch.__struct_fields__ if name != "proofs")


def exclusive(resources: Iterable[Resource]) -> list[Want]:
    return [Want(resource, is_exclusive=True) for resource in resources]


def shared(resources: Iterable[Resource]) -> list[Want]:
    return [Want(resource, is_exclusive=False) for resource in resources]


async def write(
    calls: Calls,
    operation: str,
    role: Role,
    *,
    effect: Callable[[], Result],
    locks: Sequence[Want] = (),
    is_small: bool = False,
    deadline_us: int = DEADLINE_US,
) -> Result:
    """One statement that takes `locks`, and a COMMIT that has `effect`."""

    async def run(transaction: Transaction) -> Result:
        await transaction.lock(locks, partial(calls.server.require_room, is_small=is_small))
        result: Result = await transaction.commit(effect)
        return result

    return await calls.run(operation, role, run, deadline_us=deadline_us)


# ── nodes and partitions ──────────────────────────────────────────────────────────────────────────────


async def register_node(calls: Calls, node: NodeRow) -> None:
    """Insert the row, and hold its lock on this session."""
    server = calls.server

    async def run(transaction: Transaction) -> None:
        def insert(session: Session) -> None:
            server.require_room(is_small=True)
            server.hold_node_lock(session, node.id)

        await transaction.act(
            lambda session: server.lock(session, exclusive([("node", node.id)]), lambda: insert(session))
        )
        await transaction.commit(lambda: run_at_once(server.memory.register_node(node)))

    await calls.run("registering the node", "renewal", run)


async def renew_node(calls: Calls, node_id: str) -> bool:
    """Raise the counter; takes the session lock again where the session that held it was lost."""
    server = calls.server
    locks = [*shared([("node", node_id)]), *exclusive([("counter", node_id)])]

    async def run(transaction: Transaction) -> bool:
        def update(session: Session) -> None:
            if node_id in server.tables.nodes:
                server.require_room(is_small=True)
                server.hold_node_lock(session, node_id)

        await transaction.act(lambda session: server.lock(session, locks, lambda: update(session)))
        is_there: bool = await transaction.commit(lambda: run_at_once(server.memory.renew_node(node_id)))
        return is_there

    return await calls.run("renewing the node", "renewal", run)


async def remove_node(calls: Calls, node_id: str) -> None:
    """Delete the row and free its partitions; then its lock."""
    server = calls.server

    async def run(transaction: Transaction) -> None:
        owners: list[Proof] = await transaction.act(lambda _: list(server.tables.owners))
        owned = [("partition", proof.partition) for proof in owners if proof.owner == node_id]
        locks = exclusive([*owned, ("node", node_id), ("counter", node_id)])
        await transaction.lock(locks, lambda: None)
        await transaction.commit(lambda: run_at_once(server.memory.remove_node(node_id)))

    await calls.run("removing the node", "owner", run)
    if server.has_session_locks:
        await calls.read(
            "removing the node", "renewal", lambda session: server.free_node_lock(session, node_id)
        )


async def watch_nodes(calls: Calls) -> NodesSeen:
    """The nodes, with those whose lock this session has seen held before and now finds free."""
    server = calls.server

    def look(session: Session) -> NodesSeen:
        nodes = server.tables.nodes
        rows = tuple(nodes[node_id] for node_id in sorted(nodes))
        if not server.has_session_locks:
            return NodesSeen(rows)
        others = [row.id for row in rows if row.id not in session.held_locks]
        free = {node_id for node_id in others if server.is_node_lock_free(node_id)}
        freed = frozenset(session.seen_held & free)
        session.seen_held = {
            node_id for node_id in others if node_id not in free or node_id in session.seen_held
        }
        return NodesSeen(rows, freed)

    seen: NodesSeen = await calls.read("watching the nodes", "renewal", look)
    return seen


async def take_partitions(
    calls: Calls, node_id: str, partitions: Sequence[int], *, dead_nodes: Mapping[str, int]
) -> list[Proof]:
    """Lock the partitions, then the own row and the dead ones', and take what is free then.

    Who keeps this waiting for a second loses its session, as long as this process runs to see to it.
    """
    server = calls.server
    numbers = sorted(set(partitions))
    dead = {name: dead_nodes[name] for name in sorted(dead_nodes) if name != node_id}
    rows: list[Resource] = [(kind, name) for name in dead for kind in ("node", "counter")]
    locks = [
        *exclusive(("partition", number) for number in numbers),
        *shared([("node", node_id)]),
        *exclusive(rows),
    ]

    async def run(transaction: Transaction) -> list[Proof]:
        watch = asyncio.create_task(_end_blockers(calls, transaction))
        try:
            await transaction.lock(locks, lambda: server.require_room(is_small=True))
        finally:
            watch.cancel()
        taken: list[Proof] = await transaction.commit(
            lambda: run_at_once(server.memory.take_partitions(node_id, numbers, dead_nodes=dead))
        )
        return taken

    return await calls.run("taking partitions", "owner", run)


async def _end_blockers(calls: Calls, transaction: Transaction) -> None:
    """While the taker waits, whoever keeps it waiting for a second loses its session."""
    clock = calls.clock
    since_us: dict[Session, int] = {}
    while True:
        now_us = clock.boot_us()
        await clock.sleep_until_us(now_us + _LOOK_US)
        if not calls.can_reach_server:
            continue
        now_us = clock.boot_us()
        blockers = transaction.blockers()
        since_us = {session: since_us.get(session, now_us) for session in blockers}
        for session, first_us in since_us.items():
            if now_us - first_us >= _PATIENCE_US - _LOOK_US:
                calls.server.end_session(session, "an administrator has ended the connection")


async def release_partitions(calls: Calls, node_id: str, partitions: Sequence[int]) -> None:
    server = calls.server
    numbers = sorted(set(partitions))

    async def run(transaction: Transaction) -> None:
        owners: list[Proof] = await transaction.act(lambda _: list(server.tables.owners))
        owned = [number for number in numbers if owners[number].owner == node_id]
        await transaction.lock(exclusive(("partition", number) for number in owned), lambda: None)
        await transaction.commit(lambda: run_at_once(server.memory.release_partitions(node_id, owned)))

    await calls.run("releasing partitions", "owner", run)


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────────


async def commit(calls: Calls, batch: CommitBatch) -> CommitReport:
    """Share-lock and prove the partitions that are written, lock the rows, write, COMMIT (I5)."""
    tables = calls.server.tables
    # What is sent is sent: the caller's lists may change before it arrives.
    batch = CommitBatch(**{name: list(getattr(batch, name)) for name in CommitBatch.__struct_fields__})
    touched = {row.partition for name in _LISTS for row in getattr(batch, name)}
    if not touched and not batch.proofs:
        return CommitReport()
    written = sorted(touched.intersection(proof.partition for proof in batch.proofs))
    locks = exclusive(_rows_of(batch))

    async def run(transaction: Transaction) -> CommitReport:
        proven: frozenset[int] = await transaction.lock(
            shared(("partition", number) for number in written), lambda: proven_partitions(tables, batch)
        )
        await transaction.lock(locks, calls.server.require_room)
        proofs = [proof for proof in batch.proofs if proof.partition in proven]
        report: CommitReport = await transaction.commit(
            lambda: commit_rows(tables, batch, proven), proofs=proofs
        )
        return report

    return await calls.run("committing a batch", "owner", run)


def _rows_of(batch: CommitBatch) -> Iterator[Resource]:
    """Rows that a batch writes, in the order in which they are locked."""
    for trigger_id in sorted(advance.trigger_id for advance in batch.advances):
        yield "trigger", trigger_id
    for instance_id in sorted(move.instance_id for move in moves_of(batch)):
        yield "instance", instance_id
    for instance in sorted(batch.inserts, key=lambda row: row.id):
        yield "new", instance.id
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
    instances = [submission.instance for submission in submissions]
    locks: list[Resource] = [
        ("key", *key)
        for key in sorted(
            {(row.instance.namespace, row.instance.task, row.key) for row in submissions if row.key}
        )
    ]
    locks += [("new", instance_id) for instance_id in sorted({row.id for row in instances})]
    locks += [
        ("fire", *fire) for fire in sorted({fire_key(row) for row in instances if row.fire_us is not None})
    ]
    return await write(
        calls,
        "submitting",
        "people",
        locks=exclusive(locks),
        effect=lambda: run_at_once(calls.server.memory.submit(submissions)),
        deadline_us=DEADLINE_US + len(submissions) * _ROW_US,
    )


async def apply(
    calls: Calls,
    definitions: Sequence[TaskDefinition],
    *,
    now_us: int,
    origin: Origin,
    expected: Mapping[TaskRef, int],
) -> list[ApplyReceipt]:
    definitions = list(definitions)
    named = sorted({(ref.namespace, ref.name) for ref in (*(row.ref for row in definitions), *expected)})
    return await write(
        calls,
        "applying definitions",
        "people",
        locks=exclusive(("task", *name) for name in named),
        effect=lambda: run_at_once(
            calls.server.memory.apply(definitions, now_us=now_us, origin=origin, expected=expected)
        ),
    )


async def add_requests(calls: Calls, requests: Sequence[Request]) -> None:
    requests = list(requests)
    await write(
        calls,
        "adding requests",
        "people",
        locks=exclusive(("request", name) for name in sorted({request.id for request in requests})),
        effect=lambda: run_at_once(calls.server.memory.add_requests(requests)),
    )
