"""The messages between a worker and a scheduler node, in both directions.

One stream carries lists of them. Everything is at-least-once and idempotent: an assignment is named by its
attempt id, an outcome by instance, attempt number and attempt id (I6), output by attempt id and sequence.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ostinato.core.definition import ExecutorSpec, Isolation, TaskRef
from ostinato.core.model import Outcome, OutputChunk

#: Raised when a change cannot be understood by the older side.
PROTOCOL_VERSION = 1


# ── worker → node ─────────────────────────────────────────────────────────────────────────────────────


class RunningReport(msgspec.Struct, frozen=True):
    """An attempt that the worker has and whose outcome the node has not acknowledged."""

    instance_id: str
    attempt: int
    attempt_id: str


class Hello(msgspec.Struct, kw_only=True):
    """First message of a stream."""

    protocol: int
    #: New at every start of a worker process.
    worker_id: str
    #: Stable name, chosen by the operator; need not be unique.
    worker_name: str
    token: str = ""
    labels: dict[str, str] = {}
    #: Slots by pool (``process``, ``async``).
    capacity: dict[str, int] = {}
    #: Python tasks that the worker can run; the others run anywhere that says so in `executors`.
    tasks: list[TaskRef] = []
    #: Kinds of executor that the worker has.
    executors: list[str] = []
    running: list[RunningReport] = []
    #: Task modules that could not be imported, each with the reason.
    problems: list[str] = []
    #: Definitions that the worker's app declares, as canonical JSON; sent on the first stream of a process.
    declarations: list[bytes] = []
    #: Cumulative grants per pool, see ``Heartbeat``.
    granted: dict[str, int] = {}
    #: Earlier workers of the same machine that are gone with all of their processes, as their spools show.
    ended_workers: list[str] = []
    #: Number of this stream among all of the worker's, rising from 1; 0: the worker does not count.
    stream: int = 0
    #: Other streams of the worker, to whatever node, that are not over: assignments may still come there.
    open_streams: list[int] = []


class Heartbeat(msgspec.Struct):
    """The worker lives. `sent_boot_us` is its own monotonic clock, returned untouched.

    `granted` counts, per pool, every slot that this node has ever been given on this stream: the node may
    have sent at most that many assignments. A slot that becomes free is granted again by raising the count.

    `wanted` is how many credits of this stream the worker would like to have back, all together: the node
    gives back as many as it has not used, and says so in ``HeartbeatAcknowledged.returned``.

    `ahead` is how many of the worker's credits, over all streams, are places ahead of its slots: what uses
    one waits there for a slot.
    """

    sequence: int
    sent_boot_us: int
    granted: dict[str, int]
    wanted: dict[str, int] = {}
    ahead: dict[str, int] = {}


class Report(msgspec.Struct):
    """What the worker has, between two greetings: the node has asked for it (`asks_report`).

    `sequence` is the heartbeat whose acknowledgement asked. From then on the worker refuses what earlier
    owners of the partitions listed there assign, so what is not reported never starts any more.
    """

    sequence: int
    running: list[RunningReport]


class Accepted(msgspec.Struct):
    """Assignments that have arrived and will be run or refused."""

    attempt_ids: list[str]


class Outcomes(msgspec.Struct):
    """Attempts that have ended; repeated until acknowledged. `granted` and `ahead` as in ``Heartbeat``."""

    items: list[Outcome]
    granted: dict[str, int]
    ahead: dict[str, int] = {}


class Output(msgspec.Struct):
    """What attempts wrote."""

    chunks: list[OutputChunk]


class Progress(msgspec.Struct):
    """An attempt says how far it is (0 to 1, or below 0 for unknown) and in what."""

    instance_id: str
    attempt_id: str
    fraction: float
    text: str


class Draining(msgspec.Struct):
    """The worker takes no new work; its stream ends once its attempts have."""

    reason: str


class GuardianHello(msgspec.Struct):
    """First message of the stream of a worker's guardian, which speaks where the supervisor cannot."""

    protocol: int
    #: Of the worker whose tree it guards.
    worker_id: str
    worker_name: str
    token: str = ""


class TreeEnded(msgspec.Struct):
    """A guardian has ended processes of tasks; what it brought of outcomes came before.

    `heartbeat_sequence` is the newest heartbeat whose lease it enforced: every process of a strict Python or
    shell attempt that was assigned under that one or an older one has ended. None: the supervisor is gone,
    and with it everything that the worker had.
    """

    heartbeat_sequence: int | None
    #: For people.
    reason: str


# ── node → worker ─────────────────────────────────────────────────────────────────────────────────────


class Welcome(msgspec.Struct, kw_only=True):
    """Answer to ``Hello``."""

    protocol: int
    node_id: str
    worker_lease_us: int
    heartbeat_us: int
    #: Addresses of all nodes, this one's among them; empty: it does not say.
    nodes: list[str] = []


class Rejected(msgspec.Struct):
    """The stream is refused; `code` is one of ``ostinato.errors.CODES``."""

    code: str
    message: str
    #: Of the node that refuses, with the code ``ALREADY_CONNECTED``.
    node_id: str = ""


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker must know to run one version of a task; sent on a stream before its first use there."""

    ref: TaskRef
    version: int
    executor: ExecutorSpec
    timeout_us: int | None
    grace_us: int
    heartbeat_timeout_us: int | None
    exclusive: str
    isolation: Isolation = "shared"
    memory_limit_bytes: int | None = None
    cpu_limit: float | None = None


class Specs(msgspec.Struct):
    """Task versions used by later assignments of this stream."""

    items: list[TaskSpec]


class Assignment(msgspec.Struct, kw_only=True, array_like=True):
    """Run this attempt. Written to the database before it was sent.

    A list where a worker hands it to a process, which is of the same version.
    """

    instance_id: str
    ref: TaskRef
    version: int
    generation: int
    attempt: int
    attempt_id: str
    #: Failures of the task itself so far in this generation.
    retry_count: int
    payload: bytes
    due_us: int
    fire_us: int | None = None
    shard: int = 0
    shard_total: int = 1
    #: The lease of this partition is the attempt's.
    partition: int = 0
    #: Of the partition when it was assigned; 0: the node does not say.
    epoch: int = 0


class Assignments(msgspec.Struct):
    """`heartbeat_sequence` is the newest heartbeat of this worker that the sender had processed."""

    heartbeat_sequence: int
    items: list[Assignment]


class Cancel(msgspec.Struct, frozen=True):
    """End an attempt: cooperatively, then hard after its grace.

    `is_timeout`: because it is far beyond its time-out, which the worker should have enforced itself.
    """

    instance_id: str
    attempt_id: str
    reason: str
    is_timeout: bool = False


class HeartbeatAcknowledged(msgspec.Struct):
    """The node still believes that it owns `partitions`, and has processed the heartbeat.

    It may come again for the same heartbeat, when something else that it says has changed.
    """

    sequence: int
    sent_boot_us: int
    partitions: list[int]
    #: Addresses of all nodes, when they have changed; empty: no news.
    nodes: list[str] = []
    #: Credits given back on this stream so far, by pool.
    returned: dict[str, int] = {}
    #: Due work by pool that this worker could be given now, if the node had credits; absent: none.
    demand: dict[str, int] = {}
    #: The node has attempts of this worker from an earlier owner: it wants a ``Report``.
    asks_report: bool = False
    #: Epoch of each of `partitions`, in the same order; empty: the node does not say.
    epochs: list[int] = []


class OutcomesAcknowledged(msgspec.Struct):
    """Committed or refused for good: the worker may forget `attempt_ids`.

    `unowned` are of partitions that the node does not own: another node must be told.
    """

    attempt_ids: list[str]
    unowned: list[str] = []


class Drain(msgspec.Struct):
    """Take no more work and end."""

    reason: str


class TreeEndedRecorded(msgspec.Struct):
    """What a ``TreeEnded`` frees is committed: the guardian has nothing left to say."""


WorkerMessage: TypeAlias = (
    Hello
    | Heartbeat
    | Accepted
    | Outcomes
    | Output
    | Progress
    | Draining
    | GuardianHello
    | TreeEnded
    | Report
)
NodeMessage: TypeAlias = (
    Welcome
    | Rejected
    | Specs
    | Assignments
    | Cancel
    | HeartbeatAcknowledged
    | OutcomesAcknowledged
    | Drain
    | TreeEndedRecorded
)
