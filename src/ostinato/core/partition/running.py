"""An attempt that a worker has, as its partition remembers it."""

from __future__ import annotations

import msgspec

from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.retry.counters import Counters


class Loss(msgspec.Struct, frozen=True):
    """Why nobody will report an attempt: a code of the catalogue, and the cause in words."""

    code: str
    message: str


class RunningAttempt(msgspec.Struct, kw_only=True):
    """An attempt that a worker has, with all that a decision about its end needs."""

    instance_id: str
    partition: int
    definition: TaskDefinition
    task_version: int
    generation: int
    attempt: int
    attempt_id: str
    worker_id: str
    worker_name: str
    #: UTC.
    assigned_us: int
    due_us: int
    counters: Counters
    cancel_requested: bool = False
    cancel_reason: str = ""
    #: The worker has said that it has it.
    acknowledged: bool = False
    #: This very node has sent it to its worker; otherwise it was taken over with its partition.
    is_from_here: bool = False
    #: A worker has reported it to this node.
    is_reported: bool = False
    #: The heartbeat of its worker that its assignment named, or one that was sent after it arrived. None
    #: until one is known: assigned on the greeting of a stream alone, or adopted.
    heartbeat_sequence: int | None = None
    #: Why its worker certainly has it no more, once that is known; the health loop records it.
    lost: Loss | None = None
    #: Node's monotonic clock when the worker was last told that it is far beyond its time-out.
    timeout_told_boot_us: int | None = None
    #: Node's monotonic clock at the assignment, or at the take-over of the partition.
    known_since_boot_us: int = 0

    @property
    def ref(self) -> TaskRef:
        return self.definition.ref
