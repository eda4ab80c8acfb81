"""Tables of every SQL database, their constraints and their indexes, as SQLAlchemy Core metadata.

Migrations are compared with this metadata, and later adapters build on it; an adapter's hot statements are
written by hand beside it. Columns have the names of the structs' fields, times are UTC instants in
microseconds, and ``counters``, ``failure``, ``spec``, ``definition`` and ``facts`` hold JSON.

The CHECK constraint of ``instance`` is the table of states (``core.states``) as far as one row can show it.
Every index has its statement named beside it. All of the hot ones are partial, so that finished rows, which
are nearly all rows, are in none of them. The tables here are the ones that statements are built of on every
dialect; ``server.schema`` makes of them what a server creates.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Identity,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    text,
)

from ostinato.store.column_types import Bytes, Id, LongerWord, LongText, Name, Word

metadata = MetaData()

#: What each state says of its row, in the order in which rows are met.
STATE_CHECK = """(CASE state
WHEN 'pending' THEN finished_us IS NULL AND result IS NULL
WHEN 'running' THEN finished_us IS NULL AND result IS NULL AND hold IS NULL AND attempt >= 1
  AND attempt_id <> '' AND assigned_us IS NOT NULL
WHEN 'success' THEN finished_us IS NOT NULL AND hold IS NULL AND attempt >= 1
WHEN 'retry_waiting' THEN finished_us IS NULL AND result IS NULL AND attempt >= 1
WHEN 'failed' THEN finished_us IS NOT NULL AND result IS NULL AND hold IS NULL
WHEN 'skipped' THEN finished_us IS NOT NULL AND result IS NULL AND hold IS NULL
WHEN 'cancelled' THEN finished_us IS NOT NULL AND result IS NULL AND hold IS NULL
WHEN 'blocked' THEN finished_us IS NULL AND result IS NULL AND hold IS NULL AND attempt = 0
ELSE 1 = 0 END) IS TRUE"""

#: A row that a worker could be given; written with OR, since SQLite builds a table for every IN.
WAITING = "(state = 'pending' OR state = 'retry_waiting')"


def _index(
    name: str,
    *columns: str,
    where: str | None = None,
    unique: bool = False,
    postgresql: tuple[str, ...] | None = None,
    mysql: tuple[str, ...] | None = None,
) -> Index:
    """Index of `columns`; `postgresql` and `mysql` are the columns there, where they are others.

    MySQL and MariaDB have no partial indexes: what `where` leaves out is NULL in a generated column.
    """
    condition = None if where is None else text(where)
    return Index(
        name,
        *columns,
        unique=unique,
        sqlite_where=condition,
        postgresql_where=condition,
        info={"postgresql": postgresql or columns, "mysql": mysql or columns},
    )


node = Table(
    "node",
    metadata,
    Column("id", Id, primary_key=True),
    Column("renewals", BigInteger, nullable=False),
    Column("address", Name, nullable=False),
    Column("started_us", BigInteger, nullable=False),
    #: Name of the session lock that the node holds; empty where it has none.
    Column("session", Id, nullable=False, server_default=text("''")),
    #: ``serving``, ``idle`` or empty (``core.partition.standing``).
    Column("standing", Word, nullable=False, server_default=text("''")),
)

#: Workers as the nodes know them, for people: nothing is decided by these rows.
worker = Table(
    "worker",
    metadata,
    Column("worker_id", Id, nullable=False),
    Column("node_id", Id, nullable=False),
    Column("worker_name", Name, nullable=False),
    Column("state", Word, nullable=False),
    Column("running_count", Integer, nullable=False),
    Column("protocol", Integer, nullable=False),
    Column("connected_us", BigInteger, nullable=False),
    Column("seen_us", BigInteger, nullable=False),
    #: Labels, capacity, tasks, executors and problems.
    Column("facts", Bytes, nullable=False),
    PrimaryKeyConstraint("worker_id", "node_id"),
)

#: No times: who lives is decided by each watcher's own clock (design section 3).
partition_owner = Table(
    "partition_owner",
    metadata,
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("owner", Id, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    CheckConstraint("epoch >= 0", name="partition_owner_epoch"),
)

task = Table(
    "task",
    metadata,
    Column("namespace", Name, nullable=False),
    Column("name", Name, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("version", BigInteger, nullable=False),
    #: Version whose triggers are in force.
    Column("scheduled_version", BigInteger, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("disabled", Boolean, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    #: Who made the newest version: ``app`` or ``document``.
    Column("origin", Word, nullable=False, server_default=text("'app'")),
    PrimaryKeyConstraint("namespace", "name"),
    # find_changed_tasks, in its order: what was applied at once has one time
    _index(
        "task_changed",
        "updated_us",
        where="scheduled_version <> version",
        postgresql=("updated_us", "namespace", "name"),
        mysql=("changed_us",),
    ),
)

#: Every version ever applied: an instance pins the one that it was created with.
task_definition = Table(
    "task_definition",
    metadata,
    Column("namespace", Name, nullable=False),
    Column("name", Name, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("definition", Bytes, nullable=False),
    PrimaryKeyConstraint("namespace", "name", "version"),
)

#: Triggers in force.
task_trigger = Table(
    "task_trigger",
    metadata,
    Column("id", Id, primary_key=True),
    Column("namespace", Name, nullable=False),
    Column("task", Name, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("task_version", BigInteger, nullable=False),
    Column("spec", Bytes, nullable=False),
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
    Column("id", Id, primary_key=True),
    Column("namespace", Name, nullable=False),
    Column("task", Name, nullable=False),
    Column("task_version", BigInteger, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("state", Word, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("due_us", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("generation", Integer, nullable=False, server_default=text("1")),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("attempt_id", Id, nullable=False, server_default=text("''")),
    Column("worker_id", Id, nullable=False, server_default=text("''")),
    Column("worker_name", Name, nullable=False, server_default=text("''")),
    #: NULL: nothing used up yet, as on the uneventful path.
    Column("counters", LongText),
    Column("hold", Word),
    Column("reason", LongText, nullable=False, server_default=text("''")),
    Column("expires_us", BigInteger),
    Column("fire_trigger", Id, nullable=False, server_default=text("''")),
    Column("fire_us", BigInteger),
    Column("shard", Integer, nullable=False, server_default=text("0")),
    Column("shard_total", Integer, nullable=False, server_default=text("1")),
    Column("key", Name, nullable=False, server_default=text("''")),
    Column("assigned_us", BigInteger),
    Column("started_us", BigInteger),
    Column("finished_us", BigInteger),
    Column("cancel_requested_us", BigInteger),
    Column("cancel_reason", LongText, nullable=False, server_default=text("''")),
    # Long values last: reading the columns before them does not touch their pages.
    Column("payload", Bytes, nullable=False),
    Column("result", Bytes),
    Column("failure", LongText),
    CheckConstraint(STATE_CHECK, name="instance_state"),
    CheckConstraint("hold IN ('no_worker', 'busy', 'paused', 'overlap', 'budget')", name="instance_hold"),
    CheckConstraint("priority BETWEEN 0 AND 9", name="instance_priority"),
    CheckConstraint("shard >= 0 AND shard < shard_total", name="instance_shard"),
    CheckConstraint("generation >= 1 AND attempt >= 0", name="instance_counts"),
    # find_work; SQLite's one node owns every partition, whereas a server's node must not pay for the backlog
    # of another
    _index(
        "instance_due",
        "priority",
        "due_us",
        "id",
        where=f"{WAITING} AND hold IS NULL",
        postgresql=("partition", "priority", "due_us", "id"),
        mysql=("partition", "queue_priority", "due_us", "id"),
    ),
    # find_work with held queries, held_tasks, find_overlap_ready
    _index(
        "instance_held",
        "namespace",
        "task",
        "hold",
        "priority",
        "due_us",
        "id",
        where="hold IS NOT NULL",
        mysql=("hold", "namespace", "task", "priority", "due_us", "id"),
    ),
    # live_instances, find_overlap_ready
    _index(
        "instance_live",
        "namespace",
        "task",
        "created_us",
        where="finished_us IS NULL",
        mysql=("namespace", "task", "live_created_us"),
    ),
    # running_instances; lists and counts by any state that is neither where all begin nor where most end
    _index("instance_state", "state", "id", where="state <> 'pending' AND state <> 'success'"),
    # find_expired, next_expiry_us
    _index(
        "instance_expiry",
        "expires_us",
        where=f"expires_us IS NOT NULL AND {WAITING}",
        mysql=("wait_expires_us",),
    ),
    # delete_finished, counts
    _index("instance_finished", "state", "finished_us", where="finished_us IS NOT NULL"),
    # one instance per fire (I8)
    _index("instance_fire", "fire_trigger", "fire_us", "shard", where="fire_us IS NOT NULL", unique=True),
    # list_instances of a task
    _index("instance_task", "namespace", "task", "id"),
    # list_instances of a key
    _index("instance_key", "key", "id", where="key <> ''", mysql=("listed_key", "id")),
)

history = Table(
    "history",
    metadata,
    #: The order in which rows were written. An identity takes its next value also in INSERT … SELECT.
    Column(
        "sequence", BigInteger().with_variant(Integer, "sqlite"), Identity(always=False), primary_key=True
    ),
    Column("instance_id", Id, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("kind", LongerWord, nullable=False),
    Column("sentence", LongText, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("attempt_id", Id, nullable=False),
    Column("worker_name", Name, nullable=False),
    Column("code", Name, nullable=False),
    Column("category", Name, nullable=False),
    Column("started_us", BigInteger),
    Column("due_us", BigInteger),
    Column("by", Name, nullable=False),
    Column("unconditional", Boolean, nullable=False),
    Column("failure", LongText),
    # history in its order, delete_finished; the others have the primary key in every index
    _index("history_instance", "instance_id", postgresql=("instance_id", "sequence")),
)

output = Table(
    "output",
    metadata,
    Column("instance_id", Id, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("attempt_id", Id, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("stream", Word, nullable=False),
    Column("text", LongText, nullable=False),
    PrimaryKeyConstraint("instance_id", "attempt", "sequence", "attempt_id"),
)

#: What people and programs ask of the owners, and the answers.
request = Table(
    "request",
    metadata,
    Column("id", Id, primary_key=True),
    Column("partition", Integer, nullable=False),
    Column("kind", Word, nullable=False),
    Column("namespace", Name, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("task", Name, nullable=False),
    Column("instance_id", Id, nullable=False),
    Column("body", Bytes, nullable=False),
    Column("by", Name, nullable=False),
    #: NULL until answered.
    Column("code", Name),
    Column("message", LongText),
    Column("answer_instance_id", Id),
    Column("answered_us", BigInteger),
    # find_requests
    _index("request_open", "created_us", "id", where="code IS NULL", mysql=("open_created_us", "id")),
    # delete_finished
    _index("request_answered", "answered_us", where="answered_us IS NOT NULL"),
)

idempotency_key = Table(
    "idempotency_key",
    metadata,
    Column("namespace", Name, nullable=False),
    Column("task", Name, nullable=False),
    Column("key", Name, nullable=False),
    Column("instance_id", Id, nullable=False),
    Column("request_hash", Id, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
    PrimaryKeyConstraint("namespace", "task", "key"),
    # delete_finished
    _index("idempotency_key_expiry", "expires_us"),
)
