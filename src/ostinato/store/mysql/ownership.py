"""Session locks of nodes, and the taking of partitions from those that are dead.

A node's lock is a ``GET_LOCK`` on the renewal connection, under a name that everybody makes of the database's
and the node's. MySQL counts how often a session takes a lock and wants it released as often, so it is taken
once per session; a session that is lost loses it, and the next renewal takes it anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

from ostinato.store.batches import NodeRow, Proof
from ostinato.store.mysql.literals import Row, listed, literal
from ostinato.store.mysql.session import Driver, change, fetch, session_of, write_rows

#: A name may have 64 characters, and is known to the whole server, not to the database alone.
_LOCK_PREFIX = "ostinato:"
_LOCK_DIGEST_BYTES = 24


def lock_name(database: str, node_id: str) -> str:
    """Name of the session lock of a node; the same wherever it is asked for."""
    digest = blake2b(f"{database}\0{node_id}".encode(), digest_size=_LOCK_DIGEST_BYTES)
    return f"{_LOCK_PREFIX}{digest.hexdigest()}"


async def hold_lock(driver: Driver, name: str) -> bool:
    """Whether this session has the lock, which it takes if it has not; never twice, since locks stack.

    Where the server still keeps it for a former session of the same node, that one is ended: its connection
    broke without the server noticing. The lock is free for the next call then.
    """
    locks = session_of(driver).locks
    if name not in locks:
        ((is_taken, holder),) = await fetch(
            driver, f"SELECT GET_LOCK({literal(name)}, 0), IS_USED_LOCK({literal(name)})"
        )
        if is_taken == 1:
            locks.add(name)
        elif holder is not None:
            await change(driver, f"KILL {int(holder)}")
    return name in locks


async def release_lock(driver: Driver, name: str) -> None:
    """Give the lock back, if this session has it."""
    locks = session_of(driver).locks
    if name in locks:
        await fetch(driver, f"SELECT RELEASE_LOCK({literal(name)})")
        locks.discard(name)


async def freed_nodes(driver: Driver, nodes: Iterable[NodeRow], *, database: str) -> frozenset[str]:
    """Ids of those whose lock this session has seen held before, and finds free now."""
    names = {lock_name(database, node.id): node.id for node in nodes}
    if not names:
        return frozenset()
    asked = ", ".join(f"IS_USED_LOCK({literal(name)})" for name in names)
    (holders,) = await fetch(driver, f"SELECT {asked}")
    held = {name for name, holder in zip(names, holders, strict=True) if holder is not None}
    seen = session_of(driver).seen_held
    seen |= held
    # A node that has gone is not asked about any more.
    seen &= set(names)
    return frozenset(names[name] for name in seen - held)


async def take_partitions(
    driver: Driver, node_id: str, *, partitions: Sequence[int], dead_nodes: Mapping[str, int]
) -> list[Proof]:
    """As the protocol says. Partitions are locked first, in everybody's order, then nodes, by id.

    Waits for the share locks of the former owner's open transaction.
    """
    if not partitions:
        wanted: Sequence[tuple[int, str, int]] = ()
    else:
        wanted = await fetch(  # type: ignore[assignment] # rows of these columns
            driver,
            "SELECT `partition`, owner, epoch FROM partition_owner FORCE INDEX (PRIMARY)"
            f" WHERE `partition` IN {listed(sorted(set(partitions)))} ORDER BY `partition` FOR UPDATE",
        )
    named = sorted({node_id, *dead_nodes})
    rows = await fetch(
        driver,
        "SELECT id, renewals FROM node FORCE INDEX (PRIMARY)"
        f" WHERE id IN {listed(named)} ORDER BY id FOR UPDATE",
    )
    renewals = {identifier: count for identifier, count in rows}
    if node_id not in renewals:
        return []
    dead = [
        identifier
        for identifier, count in dead_nodes.items()
        if identifier != node_id and renewals.get(identifier) == count
    ]
    if dead:
        await change(driver, f"DELETE FROM node WHERE id IN {listed(sorted(dead))}")
    alive = {identifier for (identifier,) in await fetch(driver, "SELECT id FROM node")}
    taken = [
        Proof(partition, node_id, epoch + 1)
        for partition, owner, epoch in wanted
        if owner == node_id or owner not in alive
    ]
    values: list[Row] = [(proof.partition, proof.owner, proof.epoch) for proof in taken]
    await write_rows(driver, "take_partitions", rows=values)
    return taken
