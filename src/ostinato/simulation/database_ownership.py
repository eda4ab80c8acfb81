"""What the transactions of nodes do on the simulated server: rows of nodes, session locks, take-overs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.simulation.database_calls import Calls, Transaction, run_at_once
from ostinato.simulation.database_locks import Resource, exclusive, shared
from ostinato.simulation.database_sessions import Session
from ostinato.store.batches import NodeRow, NodesSeen, Proof

#: How long one session may keep a taker waiting, and how often is looked who does.
_PATIENCE_US = SECOND
_LOOK_US = 250 * MILLISECOND


async def register_node(calls: Calls, node: NodeRow) -> None:
    """Insert the row, and hold its lock on this session."""
    server = calls.server

    def insert(session: Session) -> None:
        server.require_room(is_small=True)
        server.transactions.hold_node_lock(session, node.id)

    async def run(transaction: Transaction) -> None:
        await transaction.lock(exclusive([("node", node.id)]), insert)
        await transaction.commit(lambda: run_at_once(server.memory.register_node(node)))

    await calls.run("registering the node", run, role="renewal")


async def renew_node(calls: Calls, node_id: str) -> bool:
    """Raise the counter; takes the session lock again where the session that held it was lost."""
    server = calls.server
    locks = [*shared([("node", node_id)]), *exclusive([("counter", node_id)])]

    def update(session: Session) -> None:
        if node_id in server.tables.nodes:
            server.require_room(is_small=True)
            server.transactions.hold_node_lock(session, node_id)

    async def run(transaction: Transaction) -> bool:
        await transaction.lock(locks, update)
        is_there: bool = await transaction.commit(lambda: run_at_once(server.memory.renew_node(node_id)))
        return is_there

    return await calls.run("renewing the node", run, role="renewal")


async def remove_node(calls: Calls, node_id: str) -> None:
    """Delete the row and free its partitions; then its lock."""
    server = calls.server

    async def run(transaction: Transaction) -> None:
        owners: list[Proof] = await transaction.act(lambda _: list(server.tables.owners))
        owned = [("partition", proof.partition) for proof in owners if proof.owner == node_id]
        await transaction.lock(exclusive([*owned, ("node", node_id), ("counter", node_id)]))
        await transaction.commit(lambda: run_at_once(server.memory.remove_node(node_id)))

    def free(session: Session) -> None:
        server.transactions.free_node_lock(session, node_id)

    await calls.run("removing the node", run, role="owner")
    if server.has_session_locks:
        await calls.read("removing the node", free, role="renewal")


async def watch_nodes(calls: Calls) -> NodesSeen:
    """The nodes, with those whose lock this session has seen held before and now finds free."""
    server = calls.server

    def look(session: Session) -> NodesSeen:
        nodes = server.tables.nodes
        rows = tuple(nodes[node_id] for node_id in sorted(nodes))
        if not server.has_session_locks:
            return NodesSeen(rows)
        others = [row.id for row in rows if row.id not in session.held_locks]
        free = {node_id for node_id in others if server.transactions.is_node_lock_free(node_id)}
        freed = frozenset(session.seen_held & free)
        session.seen_held = {
            node_id for node_id in others if node_id not in free or node_id in session.seen_held
        }
        return NodesSeen(rows, freed)

    seen: NodesSeen = await calls.read("watching the nodes", look, role="renewal")
    return seen


async def take_partitions(
    calls: Calls, node_id: str, *, partitions: Sequence[int], dead_nodes: Mapping[str, int]
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
            await transaction.lock(locks, lambda _: server.require_room(is_small=True))
        finally:
            watch.cancel()
        taken: list[Proof] = await transaction.commit(
            lambda: run_at_once(server.memory.take_partitions(node_id, numbers, dead_nodes=dead))
        )
        return taken

    return await calls.run("taking partitions", run, role="owner")


async def _end_blockers(calls: Calls, transaction: Transaction) -> None:
    """While the taker waits, whoever keeps it waiting for a second loses its session."""
    clock = calls.clock
    since_us: dict[Session, int] = {}
    while True:
        await clock.sleep_until_us(clock.boot_us() + _LOOK_US)
        if not calls.can_reach_server:
            continue
        now_us = clock.boot_us()
        since_us = {session: since_us.get(session, now_us) for session in transaction.blockers()}
        for session, first_us in since_us.items():
            if now_us - first_us >= _PATIENCE_US - _LOOK_US:
                calls.server.transactions.end_session(session, "an administrator has ended the connection")


async def release_partitions(calls: Calls, node_id: str, *, partitions: Sequence[int]) -> None:
    """Free those that belong to the node."""
    server = calls.server
    numbers = sorted(set(partitions))

    async def run(transaction: Transaction) -> None:
        owners: list[Proof] = await transaction.act(lambda _: list(server.tables.owners))
        owned = [number for number in numbers if owners[number].owner == node_id]
        await transaction.lock(exclusive(("partition", number) for number in owned))
        await transaction.commit(lambda: run_at_once(server.memory.release_partitions(node_id, owned)))

    await calls.run("releasing partitions", run, role="owner")
