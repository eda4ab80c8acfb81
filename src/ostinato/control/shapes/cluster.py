"""Workers, nodes and partitions as they are shown."""

from __future__ import annotations

import msgspec


class WorkerShape(msgspec.Struct, kw_only=True):
    """A worker: one process, as its nodes know it."""

    id: str
    name: str
    #: ``connected``, ``draining`` or ``gone``; ``unknown`` where its node shows no sign of life.
    state: str
    labels: dict[str, str]
    #: Slots by pool.
    capacity: dict[str, int]
    #: Attempts that run there.
    running: int
    tasks: list[str]
    executors: list[str]
    #: Task modules that it could not import, each with the reason.
    problems: list[str]
    protocol: int
    connected: str | None
    seen: str | None
    #: Nodes that it is connected to.
    nodes: list[str]


class NodeShape(msgspec.Struct, kw_only=True):
    """A scheduler node that has registered."""

    id: str
    address: str
    started: str | None
    #: Rises with every renewal; a node whose count stands still is gone or frozen.
    renewals: int
    partitions: int
    #: Whether its renewals were seen to rise; null: nobody has watched.
    alive: bool | None = None


class PartitionShape(msgspec.Struct, kw_only=True):
    """A partition and its owner."""

    partition: int
    #: Node id; null: nobody.
    owner: str | None
    epoch: int
