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


class PressureShape(msgspec.Struct, kw_only=True):
    """How much waits to start, and what that means for submissions."""

    #: ``green``: they pass; ``yellow``: they wait a moment; ``red``: they are refused.
    level: str
    #: Due instances that have not started, counted up to what makes a difference; null: nobody counts.
    waiting: int | None
    #: From how many on; null: never.
    yellow: int | None
    red: int | None


class PartitionShape(msgspec.Struct, kw_only=True):
    """A partition and its owner."""

    partition: int
    #: Node id; null: nobody.
    owner: str | None
    epoch: int
