"""What happened, as frozen records: the one language in which scheduler and worker speak to logs and metrics.

Whoever notices something makes a record and hands it to ``hooks.Hooks.emit``; hooks turn it into a log line,
a metric or a span. A record never carries a payload, a result or an environment, so no hook can leak one.
Instants ``*_us`` are UTC, durations plain microseconds. The event names of the log are the record's
``EVENT``; they are documented in ``docs/observation.md`` and stable.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import ClassVar

import msgspec


def trace_id_of(instance_id: str) -> str:
    """32 hexadecimal characters derived from the instance's id: one trace covers all of its attempts."""
    return blake2b(instance_id.encode("utf-8", "surrogatepass"), digest_size=16, person=b"trace").hexdigest()


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every record."""

    #: Stable name of the log event.
    EVENT: ClassVar[str] = ""


class InstanceRecord(Record, frozen=True, kw_only=True):
    """A record about one instance."""

    namespace: str
    task: str
    instance_id: str
    #: Number of the attempt concerned, 0 before the first.
    attempt: int = 0
    #: Failures of the task itself so far in this generation.
    retry_count: int = 0


# ── nodes, workers, loops ─────────────────────────────────────────────────────────────────────────────


class NodeStarted(Record, frozen=True, kw_only=True):
    """A scheduler node accepts workers."""

    EVENT: ClassVar[str] = "node_started"
    node_id: str
    address: str


class NodeStopped(Record, frozen=True, kw_only=True):
    """A scheduler node has handed over and ended."""

    EVENT: ClassVar[str] = "node_stopped"
    node_id: str
    reason: str = ""


class PartitionsTaken(Record, frozen=True, kw_only=True):
    """A node has become the owner of partitions and has warmed up."""

    EVENT: ClassVar[str] = "partitions_taken"
    node_id: str
    count: int
    #: Attempts found running, whose workers are waited for.
    running_count: int = 0
    #: Partitions that it decides about from now on, these included.
    owned_count: int = 0


class PartitionsReleased(Record, frozen=True, kw_only=True):
    """A node has handed partitions over, since it had more than its share."""

    EVENT: ClassVar[str] = "partitions_released"
    node_id: str
    count: int
    #: Partitions that it still decides about.
    owned_count: int = 0


class PartitionsLost(Record, frozen=True, kw_only=True):
    """A node owns partitions no longer: a proof failed, or it could not renew itself."""

    EVENT: ClassVar[str] = "partitions_lost"
    node_id: str
    count: int
    reason: str
    #: Partitions that it still decides about.
    owned_count: int = 0


class WritesRefused(Record, frozen=True, kw_only=True):
    """A transaction of a former owner: the proof failed, and what it wanted to write was not written."""

    EVENT: ClassVar[str] = "writes_refused"
    node_id: str
    #: Rows that were not written, and the partitions that they belong to.
    count: int
    partition_count: int


class NodeDeclaredDead(Record, frozen=True, kw_only=True):
    """A node counts another one as dead, whose partitions whoever comes first takes.

    `reason` is what it has seen of it. The other may live on: its renewal connection may have been dropped.
    """

    EVENT: ClassVar[str] = "node_declared_dead"
    node_id: str
    dead_id: str
    address: str
    #: Partitions that it owned.
    count: int
    reason: str


class NodeRejoined(Record, frozen=True, kw_only=True):
    """A node that others have declared dead, or whose database was replaced, goes on under a new identity."""

    EVENT: ClassVar[str] = "node_rejoined"
    node_id: str
    former_id: str


class NodeIdle(Record, frozen=True, kw_only=True):
    """No worker reaches a node, while others are reached: it hands its partitions over to those."""

    EVENT: ClassVar[str] = "node_idle"
    node_id: str
    #: Partitions that it owned.
    count: int


class NodeServing(Record, frozen=True, kw_only=True):
    """A worker reaches a node again that was idle: it takes its share."""

    EVENT: ClassVar[str] = "node_serving"
    node_id: str


class WorkerConnected(Record, frozen=True, kw_only=True):
    """A worker's stream was welcomed."""

    EVENT: ClassVar[str] = "worker_connected"
    worker_id: str
    worker_name: str
    peer: str = ""
    task_count: int = 0
    #: Attempts that it reported as running.
    running_count: int = 0


class WorkerDraining(Record, frozen=True, kw_only=True):
    """A worker says that it takes no new work and ends once its attempts have."""

    EVENT: ClassVar[str] = "worker_draining"
    worker_id: str
    worker_name: str
    reason: str


class OrphanFound(Record, frozen=True, kw_only=True):
    """An instance runs by the database, and the node did not know; it is adopted as after a restart."""

    EVENT: ClassVar[str] = "orphan_found"
    instance_id: str
    namespace: str
    task: str
    worker_name: str


class WorkerDisconnected(Record, frozen=True, kw_only=True):
    """A worker's stream has ended."""

    EVENT: ClassVar[str] = "worker_disconnected"
    worker_id: str
    worker_name: str
    reason: str = ""


class WorkerRefused(Record, frozen=True, kw_only=True):
    """A stream was ended: another protocol version, an unknown token, a bad declaration or message."""

    EVENT: ClassVar[str] = "worker_refused"
    worker_id: str
    worker_name: str
    peer: str
    error_code: str
    reason: str


class WorkerNameShared(Record, frozen=True, kw_only=True):
    """Two connected workers have one name; both get work. Said once for each name."""

    EVENT: ClassVar[str] = "worker_name_shared"
    worker_id: str
    worker_name: str
    peer: str


class TreeEndReported(Record, frozen=True, kw_only=True):
    """The guardian of a worker reports that processes have ended, and their attempts have been dealt with.

    `heartbeat_sequence` is the newest heartbeat whose lease it enforced, None when the supervisor is gone.
    """

    EVENT: ClassVar[str] = "tree_end_reported"
    worker_id: str
    worker_name: str
    heartbeat_sequence: int | None
    reason: str
    #: Attempts that are lost by it.
    lost_count: int


class TaskModuleFailed(Record, frozen=True, kw_only=True):
    """A worker could not import something that its tasks need."""

    EVENT: ClassVar[str] = "task_module_failed"
    worker_name: str
    problem: str


class ResourceLimits(Record, frozen=True, kw_only=True):
    """How a worker enforces limits of memory and CPU: ``cgroup`` or ``rlimits``, and why it is this way."""

    EVENT: ClassVar[str] = "resource_limits"
    worker_name: str
    how: str
    why: str


class LoopTurned(Record, frozen=True, kw_only=True):
    """A background loop has finished a round; `lag_us` is how much later than due the round began."""

    EVENT: ClassVar[str] = "loop_turned"
    loop: str
    lag_us: int
    duration_us: int = 0


class LoopFailed(Record, frozen=True, kw_only=True):
    """A round of a background loop ended with an error; it is tried again.

    `traceback` is there for an error that is a bug of ours. `is_repeated`: the same has been said within the
    last minute, for an error of the database by any loop, or by ``database_full``. `count`: how many times it
    has happened since it was last said, this time included.
    """

    EVENT: ClassVar[str] = "loop_failed"
    loop: str
    error_code: str
    error_message: str
    traceback: str = ""
    is_repeated: bool = False
    count: int = 1


class DatabaseRecovered(Record, frozen=True, kw_only=True):
    """Every loop that the database had failed has had a good round."""

    EVENT: ClassVar[str] = "database_recovered"
    #: How long it had failed some loop or other.
    failing_us: int


class DatabaseFull(Record, frozen=True, kw_only=True):
    """The database's disk takes no writes; every loop tries again by itself until it does."""

    EVENT: ClassVar[str] = "database_full"
    #: The first to notice.
    loop: str
    error_code: str
    error_message: str


class DatabaseWritable(Record, frozen=True, kw_only=True):
    """Everything that had waited for room on the database's disk has been written."""

    EVENT: ClassVar[str] = "database_writable"
    #: How long it was full.
    full_us: int


class ClockJumped(Record, frozen=True, kw_only=True):
    """The database's time is not what it was expected to be; until it is trusted again no trigger fires."""

    EVENT: ClassVar[str] = "clock_jumped"
    #: How far it is ahead.
    off_us: int


class ClockTrusted(Record, frozen=True, kw_only=True):
    """Triggers fire again: the database's time has come back, or has stayed where it jumped to."""

    EVENT: ClassVar[str] = "clock_trusted"
    has_changed: bool
    #: How long triggers were held.
    held_us: int


class BacklogMeasured(Record, frozen=True, kw_only=True):
    """Instances that have not ended, by state."""

    EVENT: ClassVar[str] = "backlog_measured"
    by_state: dict[str, int]


class PressureMeasured(Record, frozen=True, kw_only=True):
    """How many due instances have not started, and the level (0 green, 1 yellow, 2 red)."""

    EVENT: ClassVar[str] = "pressure_measured"
    level: int
    waiting_count: int


class PressureChanged(Record, frozen=True, kw_only=True):
    """Submissions pass, are slowed down or are refused from now on: another level than `before`."""

    EVENT: ClassVar[str] = "pressure_changed"
    level: str
    before: str
    waiting_count: int
    yellow: int | None
    red: int | None


class SubmissionsHeldBack(Record, frozen=True, kw_only=True):
    """Submissions of `count` instances were ``delayed`` or ``refused`` since too much waits."""

    EVENT: ClassVar[str] = "submissions_held_back"
    how: str
    count: int


# ── instances ─────────────────────────────────────────────────────────────────────────────────────────


class Fired(InstanceRecord, frozen=True, kw_only=True):
    """A trigger has made an instance. `fire_us` is the scheduled instant, `lateness_us` how long after it."""

    EVENT: ClassVar[str] = "fired"
    trigger_id: str
    fire_us: int
    lateness_us: int


class FireSkipped(Record, frozen=True, kw_only=True):
    """Fires that made no instance that runs: missed for too long, or refused by the overlap rule."""

    EVENT: ClassVar[str] = "fire_skipped"
    namespace: str
    task: str
    trigger_id: str
    count: int
    reason: str


class AttemptAssigned(InstanceRecord, frozen=True, kw_only=True):
    """The assignment is committed. `queue_wait_us` counts from the due time of this attempt."""

    EVENT: ClassVar[str] = "attempt_assigned"
    worker_name: str
    queue_wait_us: int


class AttemptEnded(InstanceRecord, frozen=True, kw_only=True):
    """The end of an attempt is committed.

    `outcome` is ``success``, ``failed``, ``lost``, ``cancelled`` or ``unstarted``; code and category are
    those of its failure. `run_us` is None where no user code ran or nobody knows how long.
    """

    EVENT: ClassVar[str] = "attempt_ended"
    outcome: str
    worker_name: str = ""
    run_us: int | None = None
    error_code: str = ""
    error_message: str = ""
    category: str = ""


class RetryDecided(InstanceRecord, frozen=True, kw_only=True):
    """The policy's verdict on a failed attempt, committed with its result.

    `rule` is the short stable name of what decided (``backoff``, ``retry_on``, ``max_retry``, …), `sentence`
    the same in words. `due_us` is the time of the next attempt, None when there is none.
    """

    EVENT: ClassVar[str] = "retry_decided"
    rule: str
    sentence: str
    due_us: int | None
    error_code: str = ""


class InstanceEnded(InstanceRecord, frozen=True, kw_only=True):
    """An instance has reached a terminal state."""

    EVENT: ClassVar[str] = "instance_ended"
    state: str
    reason: str = ""
    error_code: str = ""


class ResultRefused(InstanceRecord, frozen=True, kw_only=True):
    """A worker's result did not count (I6): stale, repeated, or of an attempt that is not running."""

    EVENT: ClassVar[str] = "result_refused"
    attempt_id: str
    reason: str
    worker_name: str = ""


class GroupCommitted(Record, frozen=True, kw_only=True):
    """One transaction of the owner: how many moves it wrote and how long it took."""

    EVENT: ClassVar[str] = "group_committed"
    count: int
    duration_us: int
    #: Rows that no longer matched, or that the database refused.
    unmatched_count: int = 0


class InvariantBroken(Record, frozen=True, kw_only=True):
    """A rule that must always hold was broken: the partition was stopped. Please report it."""

    EVENT: ClassVar[str] = "invariant_broken"
    name: str
    error_message: str
    subject: str = ""
