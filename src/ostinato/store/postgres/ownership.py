"""Nodes and partitions on PostgreSQL: the session lock, the watch over others' locks, take-overs.

The session lock of a node is an advisory lock on the ``renewal`` connection, whose key is made of the node's
id, so that every watcher knows it. What is known of a session is kept with the connection itself (``info``):
when it is lost, so is the lock, and so is all that was seen through it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.store.batches import NodesSeen, Proof
from ostinato.store.postgres.statements import statement
from ostinato.store.server import nodes
from ostinato.store.server.database import DriverConnection, driver_connection

_HELD = "ostinato_locks_held"
_SEEN_HELD = "ostinato_locks_seen_held"


def lock_key(node_id: str) -> int:
    """Key of the node's session lock: 64 bits, signed as PostgreSQL has them."""
    digest = blake2b(node_id.encode(), digest_size=8, person=b"ostinato-node").digest()
    return int.from_bytes(digest, "big", signed=True)


async def hold_lock(connection: AsyncConnection, node_id: str) -> bool:
    """Hold the node's lock on this session, also after a rollback; False if another session has it."""
    held = await _noted(connection, _HELD)
    if node_id not in held:
        driver = await driver_connection(connection)
        if not await driver.fetchval(statement("lock_session"), lock_key(node_id)):
            return False
        held.add(node_id)
    return True


async def free_lock(connection: AsyncConnection, node_id: str) -> None:
    """Give the lock back, if this session holds it."""
    held = await _noted(connection, _HELD)
    if node_id in held:
        driver = await driver_connection(connection)
        await driver.execute("SELECT pg_advisory_unlock($1::bigint)", lock_key(node_id))
        held.discard(node_id)


async def watch_nodes(connection: AsyncConnection) -> NodesSeen:
    """The nodes, with those whose lock this session has seen held before and now finds free."""
    rows = await nodes.nodes(connection)
    held = await _noted(connection, _HELD)
    seen_held = await _noted(connection, _SEEN_HELD)
    keys = {lock_key(row.id): row.id for row in rows if row.id not in held}
    driver = await driver_connection(connection)
    free = {keys[row[0]] for row in await driver.fetch(statement("free_locks"), list(keys))}
    seen_held &= set(keys.values())
    freed = frozenset(seen_held & free)
    seen_held |= set(keys.values()) - free
    return NodesSeen(tuple(rows), freed)


async def _noted(connection: AsyncConnection, name: str) -> set[str]:
    """What is known of this very session; empty in a new one."""
    info: dict[Any, Any] = (await connection.get_raw_connection()).info
    noted: set[str] = info.setdefault(name, set())
    return noted


async def take_partitions(
    driver: DriverConnection,
    node_id: str,
    *,
    partitions: Sequence[int],
    dead_nodes: Mapping[str, int],
) -> list[Proof]:
    """As the protocol says; a node whose own row is gone takes nothing and kills nobody.

    Partitions are locked before nodes, by number: several takers queue at the first instead of locking each
    other out.
    """
    holders = [
        Proof(*row) for row in await driver.fetch(statement("lock_partitions"), sorted(set(partitions)))
    ]
    if await driver.fetchval(statement("keep_node"), node_id) is None:
        return []
    dead = {dead_id: renewals for dead_id, renewals in dead_nodes.items() if dead_id != node_id}
    if dead:
        await driver.execute(statement("delete_dead_nodes"), list(dead), list(dead.values()))
    alive = {row[0] for row in await driver.fetch("SELECT id FROM node")}
    taken = [
        Proof(holder.partition, node_id, holder.epoch + 1)
        for holder in holders
        if holder.owner == node_id or holder.owner not in alive
    ]
    await driver.execute(statement("take_partitions"), node_id, [proof.partition for proof in taken])
    return taken
