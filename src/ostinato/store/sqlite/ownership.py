"""Rows of nodes and owners of partitions."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from ostinato.store.batches import NodeRow, Proof


def register_node(connection: sqlite3.Connection, node: NodeRow) -> None:
    """Insert the row of the only live node: its holder of the lock file has proved the others dead."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM node")
    connection.execute(
        "INSERT INTO node (id, renewals, address, started_us, session, standing) VALUES (?, ?, ?, ?, ?, ?)",
        (node.id, node.renewals, node.address, node.started_us, node.session, node.standing),
    )
    connection.commit()


def renew_node(connection: sqlite3.Connection, node_id: str) -> bool:
    connection.execute("BEGIN IMMEDIATE")
    renewed = connection.execute("UPDATE node SET renewals = renewals + 1 WHERE id = ?", (node_id,)).rowcount
    connection.commit()
    return renewed == 1


def note_standing(connection: sqlite3.Connection, node_id: str, *, standing: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE node SET standing = ? WHERE id = ?", (standing, node_id))
    connection.commit()


def remove_node(connection: sqlite3.Connection, node_id: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM node WHERE id = ?", (node_id,))
    connection.execute("UPDATE partition_owner SET owner = '' WHERE owner = ?", (node_id,))
    connection.commit()


def nodes(connection: sqlite3.Connection) -> list[NodeRow]:
    columns = "id, renewals, address, started_us, session, standing"
    rows = connection.execute(f"SELECT {columns} FROM node ORDER BY id")
    return [NodeRow(*row) for row in rows]


def take_partitions(
    connection: sqlite3.Connection, node_id: str, *, partitions: Sequence[int], dead_nodes: Mapping[str, int]
) -> list[Proof]:
    """As the protocol says; a node whose own row is gone takes nothing and kills nobody."""
    connection.execute("BEGIN IMMEDIATE")
    taken: list[Proof] = []
    if connection.execute("SELECT 1 FROM node WHERE id = ?", (node_id,)).fetchone() is not None:
        for dead, renewals in dead_nodes.items():
            if dead != node_id:
                connection.execute("DELETE FROM node WHERE id = ? AND renewals = ?", (dead, renewals))
        alive = {row[0] for row in connection.execute("SELECT id FROM node")}
        wanted = set(partitions)
        for holder in partition_owners(connection):
            if holder.partition in wanted and (holder.owner == node_id or holder.owner not in alive):
                taken.append(Proof(holder.partition, node_id, holder.epoch + 1))
        connection.executemany(
            "UPDATE partition_owner SET owner = ?, epoch = ? WHERE partition = ?",
            [(proof.owner, proof.epoch, proof.partition) for proof in taken],
        )
    connection.commit()
    return taken


def partition_owners(connection: sqlite3.Connection) -> list[Proof]:
    rows = connection.execute("SELECT partition, owner, epoch FROM partition_owner ORDER BY partition")
    return [Proof(*row) for row in rows]


def release_partitions(connection: sqlite3.Connection, node_id: str, *, partitions: Sequence[int]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(
        "UPDATE partition_owner SET owner = '' WHERE partition = ? AND owner = ?",
        [(partition, node_id) for partition in partitions],
    )
    connection.commit()
