"""Tables of every SQL database, their constraints and their indexes, as SQLAlchemy Core metadata.

Migrations are compared with this metadata, and later adapters build on it; an adapter's hot statements are
written by hand beside it. Columns have the names of the structs' fields, times are UTC instants in
microseconds, and ``counters``, ``failure``, ``spec``, ``definition`` and ``facts`` hold JSON.

The CHECK constraint of ``instance`` is the table of states (``core.states``) as far as one row can show it.
Every index has its statement named beside it. All of the hot ones are partial, so that finished rows, which
are nearly all rows, are in none of them.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    Text,
    text,
)

metadata = MetaData()

_Id = String(64)
_Name = String(255)

#: What each state says of its row, in the order in which rows are met.
STATE_CHECK = """CASE state
WHEN 'pending' THEN finished_us IS NULL AND result IS NULL
WHEN 'running' THEN finished_us IS NULL AND result IS NULL AND hold IS NULL AND attempt >= 1
  AND attempt_id <> '' AND assigned_us IS NOT NULL
WHEN 'success' THEN finished_us IS NOT NULL AND hold IS NULL AND attempt >= 1
WHEN 'retry_waiting' THEN finished_us IS NULL AND result IS NULL AND attempt >= 1
WHEN 'failed' THEN finished_us IS NOT NULL AND result IS NULL AND hold IS NULL
WHEN 'skipped' THEN finished_us IS NOT NULL AND result IS NULL AND hold IS NULL
WHEN 'cancelled' THEN finished_us IS NOT NULL AND result IS NULL AND hold IS NULL
WHEN 'blocked' THEN finished_us IS NULL AND result IS NULL AND hold IS NULL AND attempt = 0
ELSE 1 = 0 END"""

#: A row that a worker could be given; written with OR, since SQLite builds a table for every IN.
WAITING = "(state = 'pending' OR state = 'retry_waiting')"


def _index(name: str, *columns: str, where: str | None = None, unique: bool = False) -> Index:
    condition = None if where is None else text(where)
    return Index(
        name,
        *(text(column) if " " in column else column for column in columns),
        unique=unique,
        sqlite_where=condition,
        postgresql_where=condition,
    )


node = Table(
    "node",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("renewals", BigInteger, nullable=False),
    Column("address", _Name, nullable=False),
    Column("started_us", BigInteger, nullable=False),
    #: Name of the session lock that the node holds; empty where it has none.
    Column("session", _Id, nullable=False, server_default=text("''")),
)

#: Workers as the nodes know them, for people: nothing is decided by these rows.
worker = Table(
    "worker",
    metadata,
    Column("worker_id", _Id, nullable=False),
    Column("node_id", _Id, nullable=False),
    Column("worker_name", _Name, nullable=False),
    Column("state", String(16), nullable=False),
    Column("running_count", Integer, nullable=False),
    Column("protocol", Integer, nullable=False),
    Column("connected_us", BigInteger, nullable=False),
    Column("seen_us", BigInteger, nullable=False),
    #: Labels, capacity, tasks, executors and problems.
    Column("facts", LargeBinary, nullable=False),
    PrimaryKeyConstraint("worker_id", "node_id"),
)

#: No times: who lives is decided by each watcher's own clock (design section 3).
partition_owner = Table(
    "partition_owner",
    metadata,
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("owner", _Id, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    CheckConstraint("epoch >= 0", name="partition_owner_epoch"),
)

task = Table(
    "task",
    metadata,
    Column("namespace", _Name, nullable=False),
    Column("name", _Name, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("version", BigInteger, nullable=False),
    #: Version whose triggers are in force.
    Column("scheduled_version", BigInteger, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("disabled", Boolean, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    #: Who made the newest version: ``app`` or ``document``.
    Column("origin", String(16), nullable=False, server_default=text("'app'")),
    PrimaryKeyConstraint("namespace", "name"),
    # find_changed_tasks
    _index("task_changed", "updated_us", where="scheduled_version <> version"),
)

#: Every version ever applied: an instance pins the one that it was created with.
task_definition = Table(
    "task_definition",
    metadata,
    Column("namespace", _Name, nullable=False),
    Column("name", _Name, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("definition", LargeBinary, nullable=False),
    PrimaryKeyConstraint("namespace", "name", "version"),
)

#: Triggers in force.
task_trigger = Table(
    "task_trigger",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("namespace", _Name, nullable=False),
    Column("task", _Name, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("task_version", BigInteger, nullable=False),
    Column("spec", LargeBinary, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("next_us", BigInteger),
    Column("last_us", BigInteger),
    # find_due_triggers
    _index("task_trigger_next", "next_us", "id", where="next_us IS NOT NULL"),
    # triggers_of, deletions, switches
    _index("task_trigger_task", "namespace", "task"),
)

instance = Table(
    "instance",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("namespace", _Name, nullable=False),
    Column("task", _Name, nullable=False),
    Column("task_version", BigInteger, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("due_us", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("generation", Integer, nullable=False, server_default=text("1")),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("attempt_id", _Id, nullable=False, server_default=text("''")),
    Column("worker_id", _Id, nullable=False, server_default=text("''")),
    Column("worker_name", _Name, nullable=False, server_default=text("''")),
    #: NULL: nothing used up yet, as on the uneventful path.
    Column("counters", Text),
    Column("hold", String(16)),
    Column("reason", Text, nullable=False, server_default=text("''")),
    Column("expires_us", BigInteger),
    Column("fire_trigger", _Id, nullable=False, server_default=text("''")),
    Column("fire_us", BigInteger),
    Column("shard", Integer, nullable=False, server_default=text("0")),
    Column("shard_total", Integer, nullable=False, server_default=text("1")),
    Column("key", _Name, nullable=False, server_default=text("''")),
    Column("assigned_us", BigInteger),
    Column("started_us", BigInteger),
    Column("finished_us", BigInteger),
    Column("cancel_requested_us", BigInteger),
    Column("cancel_reason", Text, nullable=False, server_default=text("''")),
    # Long values last: reading the columns before them does not touch their pages.
    Column("payload", LargeBinary, nullable=False),
    Column("result", LargeBinary),
    Column("failure", Text),
    CheckConstraint(STATE_CHECK, name="instance_state"),
    CheckConstraint("hold IN ('no_worker', 'busy', 'paused', 'overlap')", name="instance_hold"),
    CheckConstraint("priority BETWEEN 0 AND 9", name="instance_priority"),
    CheckConstraint("shard >= 0 AND shard < shard_total", name="instance_shard"),
    CheckConstraint("generation >= 1 AND attempt >= 0", name="instance_counts"),
    # find_work; the partition is a residual filter where one node owns them all
    _index("instance_due", "priority", "due_us", "id", where=f"{WAITING} AND hold IS NULL"),
    # find_work with held queries, held_tasks, find_overlap_ready
    _index(
        "instance_held", "namespace", "task", "hold", "priority", "due_us", "id", where="hold IS NOT NULL"
    ),
    # live_instances, find_overlap_ready
    _index("instance_live", "namespace", "task", "created_us", where="finished_us IS NULL"),
    # running_instances; lists and counts by any state that is neither where all begin nor where most end
    _index("instance_state", "state", "id", where="state <> 'pending' AND state <> 'success'"),
    # find_expired, next_expiry_us
    _index("instance_expiry", "expires_us", where=f"expires_us IS NOT NULL AND {WAITING}"),
    # delete_finished, counts
    _index("instance_finished", "state", "finished_us", where="finished_us IS NOT NULL"),
    # one instance per fire (I8)
    _index("instance_fire", "fire_trigger", "fire_us", "shard", where="fire_us IS NOT NULL", unique=True),
    # list_instances of a task
    _index("instance_task", "namespace", "task", "id"),
    # list_instances of a key
    _index("instance_key", "key", "id", where="key <> ''"),
)

history = Table(
    "history",
    metadata,
    #: The order in which rows were written.
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("instance_id", _Id, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("sentence", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("attempt_id", _Id, nullable=False),
    Column("worker_name", _Name, nullable=False),
    Column("code", _Name, nullable=False),
    Column("category", _Name, nullable=False),
    Column("started_us", BigInteger),
    Column("due_us", BigInteger),
    Column("by", _Name, nullable=False),
    Column("unconditional", Boolean, nullable=False),
    Column("failure", Text),
    # history, delete_finished
    _index("history_instance", "instance_id"),
)

output = Table(
    "output",
    metadata,
    Column("instance_id", _Id, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("attempt_id", _Id, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("stream", String(16), nullable=False),
    Column("text", Text, nullable=False),
    PrimaryKeyConstraint("instance_id", "attempt", "sequence", "attempt_id"),
)

#: What people and programs ask of the owners, and the answers.
request = Table(
    "request",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("partition", Integer, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("namespace", _Name, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("task", _Name, nullable=False),
    Column("instance_id", _Id, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("by", _Name, nullable=False),
    #: NULL until answered.
    Column("code", _Name),
    Column("message", Text),
    Column("answer_instance_id", _Id),
    Column("answered_us", BigInteger),
    # find_requests
    _index("request_open", "created_us", "id", where="code IS NULL"),
    # delete_finished
    _index("request_answered", "answered_us", where="answered_us IS NOT NULL"),
)

idempotency_key = Table(
    "idempotency_key",
    metadata,
    Column("namespace", _Name, nullable=False),
    Column("task", _Name, nullable=False),
    Column("key", _Name, nullable=False),
    Column("instance_id", _Id, nullable=False),
    Column("request_hash", _Id, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
    PrimaryKeyConstraint("namespace", "task", "key"),
    # delete_finished
    _index("idempotency_key_expiry", "expires_us"),
)
