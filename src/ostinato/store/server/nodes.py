"""Rows of nodes and owners of partitions; session locks and take-overs belong to the adapters."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.store.batches import NodeRow, Proof
from ostinato.store.schema import node, partition_owner
from ostinato.store.server.dialect_sql import forced, upsert

_NODES = select(
    node.c.id, node.c.renewals, node.c.address, node.c.started_us, node.c.session, node.c.standing
).order_by(node.c.id)
_OWNERS = select(partition_owner.c.partition, partition_owner.c.owner, partition_owner.c.epoch).order_by(
    partition_owner.c.partition
)


async def register_node(connection: AsyncConnection, row: NodeRow) -> None:
    """Insert the row of a node, whose id nobody else has."""
    await connection.execute(
        insert(node),
        {
            "id": row.id,
            "renewals": row.renewals,
            "address": row.address,
            "started_us": row.started_us,
            "session": row.session,
            "standing": row.standing,
        },
    )


async def renew_node(connection: AsyncConnection, node_id: str) -> bool:
    """Raise the node's counter; False when its row is gone."""
    renewed = await connection.execute(
        update(node).where(node.c.id == node_id).values(renewals=node.c.renewals + 1)
    )
    return renewed.rowcount == 1


async def note_standing(connection: AsyncConnection, node_id: str, *, standing: str) -> None:
    """Write down whether workers reach the node."""
    await connection.execute(update(node).where(node.c.id == node_id).values(standing=standing))


async def remove_node(connection: AsyncConnection, node_id: str) -> None:
    """Delete the row and release its partitions. Nothing where both have gone already."""
    # In the order of every owner's locks, partitions by number: two that go at once do not block each other.
    await _release(connection, node_id, partitions=None)
    await connection.execute(delete(node).where(node.c.id == node_id))


async def nodes(connection: AsyncConnection) -> list[NodeRow]:
    """Every node that has a row, by id."""
    return [NodeRow(*row) for row in await connection.execute(_NODES)]


async def partition_owners(connection: AsyncConnection) -> list[Proof]:
    """Every partition with its owner and epoch, by partition."""
    return [Proof(*row) for row in await connection.execute(_OWNERS)]


async def release_partitions(connection: AsyncConnection, node_id: str, *, partitions: Sequence[int]) -> None:
    """Free those of `partitions` that belong to the node, epochs as they are."""
    await _release(connection, node_id, partitions=partitions)


async def _release(connection: AsyncConnection, node_id: str, *, partitions: Sequence[int] | None) -> None:
    owned = select(partition_owner).where(partition_owner.c.owner == node_id)
    if partitions is not None:
        owned = owned.where(partition_owner.c.partition.in_(partitions))
    # Seen before they are locked: MySQL would wait for others' partitions too, whose owners it passes by.
    seen = [row.partition for row in await connection.execute(owned)]
    if not seen:
        return
    locking = forced(owned, partition_owner, index="PRIMARY").where(partition_owner.c.partition.in_(seen))
    locked = await connection.execute(locking.order_by(partition_owner.c.partition).with_for_update())
    released = [dict(row) | {"owner": ""} for row in locked.mappings()]
    if released:
        await connection.execute(upsert(connection, partition_owner, only=("owner",)), released)
