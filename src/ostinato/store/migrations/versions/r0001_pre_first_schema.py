"""The first schema: pre, since nothing ran before it. Frozen: later changes are revisions of their own.

What it makes of SQLite is what every file began with. No server had it before the forms for servers came.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ostinato.store.migrations import forms

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_STATE_CHECK = """(CASE state
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

_WAITING = "(state = 'pending' OR state = 'retry_waiting')"
#: What MySQL and MariaDB have instead of partial indexes.
_INSTANCE_GENERATED: tuple[forms.Generated, ...] = (
    ("queue_priority", sa.SmallInteger(), f"CASE WHEN {_WAITING} AND hold IS NULL THEN priority END"),
    ("live_created_us", sa.BigInteger(), "CASE WHEN finished_us IS NULL THEN created_us END"),
    ("wait_expires_us", sa.BigInteger(), f"CASE WHEN {_WAITING} THEN expires_us END"),
    ("listed_key", forms.word(255), "NULLIF(`key`, '')"),
)
# Storage parameters of PostgreSQL, as server.schema explains them.
_REWRITTEN: dict[str, float] = {
    "fillfactor": 50,
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 200,
    "autovacuum_vacuum_cost_delay": 0,
}
_CHURNING: dict[str, float] = {
    "fillfactor": 80,
    "autovacuum_vacuum_scale_factor": 0.01,
    "autovacuum_vacuum_threshold": 2000,
    "autovacuum_vacuum_cost_delay": 0,
    "autovacuum_analyze_scale_factor": 0.02,
    "autovacuum_analyze_threshold": 2000,
}
_APPENDED: dict[str, float] = {
    "autovacuum_vacuum_scale_factor": 0.05,
    "autovacuum_vacuum_insert_scale_factor": 0.1,
}
_TABLES = (
    "node",
    "partition_owner",
    "task",
    "task_definition",
    "task_trigger",
    "instance",
    "history",
    "output",
    "request",
    "idempotency_key",
)


def upgrade() -> None:
    _create_node()
    _create_partition_owner()
    _create_task()
    _create_task_definition()
    _create_task_trigger()
    _create_instance()
    _create_instance_indexes()
    _create_history()
    _create_output()
    _create_request()
    _create_idempotency_key()
    _insert_partitions()


def downgrade() -> None:
    """Nothing is left of what the database knew."""
    for table in reversed(_TABLES):
        forms.drop_table(table)


def _insert_partitions() -> None:
    """Nobody owns them yet; their number is fixed for the life of the database."""
    config = op.get_context().config
    assert config is not None, "migrations run from a configuration"
    count = config.attributes["partition_count"]
    if op.get_bind().execute(sa.text("SELECT 1 FROM partition_owner")).first() is not None:
        # An upgrade that broke off had come this far.
        return
    rows = [{"partition": number, "owner": "", "epoch": 0} for number in range(count)]
    table = sa.table("partition_owner", sa.column("partition"), sa.column("owner"), sa.column("epoch"))
    op.bulk_insert(table, rows)


def _create_node() -> None:
    forms.create_table(
        "node",
        sa.Column("id", forms.word(64), nullable=False),
        sa.Column("renewals", sa.BigInteger(), nullable=False),
        sa.Column("address", forms.word(255), nullable=False),
        sa.Column("started_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        storage=_REWRITTEN,
    )


def _create_partition_owner() -> None:
    forms.create_table(
        "partition_owner",
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("owner", forms.word(64), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("epoch >= 0", name="partition_owner_epoch"),
        sa.PrimaryKeyConstraint("partition"),
        storage=_REWRITTEN,
    )


def _create_task() -> None:
    forms.create_table(
        "task",
        sa.Column("namespace", forms.word(255), nullable=False),
        sa.Column("name", forms.word(255), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("scheduled_version", sa.BigInteger(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "name"),
        generated=(
            ("changed_us", sa.BigInteger(), "CASE WHEN scheduled_version <> version THEN updated_us END"),
        ),
    )
    forms.create_index(
        "task_changed",
        "task",
        "updated_us",
        where="scheduled_version <> version",
        postgresql=("updated_us", "namespace", "name"),
        mysql=("changed_us",),
    )


def _create_task_definition() -> None:
    forms.create_table(
        "task_definition",
        sa.Column("namespace", forms.word(255), nullable=False),
        sa.Column("name", forms.word(255), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("definition", forms.long_bytes(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "name", "version"),
    )


def _create_task_trigger() -> None:
    forms.create_table(
        "task_trigger",
        sa.Column("id", forms.word(64), nullable=False),
        sa.Column("namespace", forms.word(255), nullable=False),
        sa.Column("task", forms.word(255), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("task_version", sa.BigInteger(), nullable=False),
        sa.Column("spec", forms.long_bytes(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("next_us", sa.BigInteger(), nullable=True),
        sa.Column("last_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        storage={**_REWRITTEN, "fillfactor": 70},
    )
    forms.create_index("task_trigger_next", "task_trigger", "next_us", "id", where="next_us IS NOT NULL")
    forms.create_index("task_trigger_task", "task_trigger", "namespace", "task")


def _create_instance() -> None:
    forms.create_table(
        "instance",
        sa.Column("id", forms.word(64), nullable=False),
        sa.Column("namespace", forms.word(255), nullable=False),
        sa.Column("task", forms.word(255), nullable=False),
        sa.Column("task_version", sa.BigInteger(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("state", forms.word(16), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("due_us", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("attempt_id", forms.word(64), server_default=sa.text("''"), nullable=False),
        sa.Column("worker_id", forms.word(64), server_default=sa.text("''"), nullable=False),
        sa.Column("worker_name", forms.word(255), server_default=sa.text("''"), nullable=False),
        sa.Column("counters", forms.long_text(), nullable=True),
        sa.Column("hold", forms.word(16), nullable=True),
        sa.Column("reason", forms.long_text(), server_default=forms.empty_long_text(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=True),
        sa.Column("fire_trigger", forms.word(64), server_default=sa.text("''"), nullable=False),
        sa.Column("fire_us", sa.BigInteger(), nullable=True),
        sa.Column("shard", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("shard_total", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("key", forms.word(255), server_default=sa.text("''"), nullable=False),
        sa.Column("assigned_us", sa.BigInteger(), nullable=True),
        sa.Column("started_us", sa.BigInteger(), nullable=True),
        sa.Column("finished_us", sa.BigInteger(), nullable=True),
        sa.Column("cancel_requested_us", sa.BigInteger(), nullable=True),
        sa.Column("cancel_reason", forms.long_text(), server_default=forms.empty_long_text(), nullable=False),
        sa.Column("payload", forms.long_bytes(), nullable=False),
        sa.Column("result", forms.long_bytes(), nullable=True),
        sa.Column("failure", forms.long_text(), nullable=True),
        sa.CheckConstraint(_STATE_CHECK, name="instance_state"),
        sa.CheckConstraint("hold IN ('no_worker', 'busy', 'paused', 'overlap')", name="instance_hold"),
        sa.CheckConstraint("generation >= 1 AND attempt >= 0", name="instance_counts"),
        sa.CheckConstraint("priority BETWEEN 0 AND 9", name="instance_priority"),
        sa.CheckConstraint("shard >= 0 AND shard < shard_total", name="instance_shard"),
        sa.PrimaryKeyConstraint("id"),
        storage=_CHURNING,
        generated=_INSTANCE_GENERATED,
    )


def _create_instance_indexes() -> None:
    forms.create_index(
        "instance_due",
        "instance",
        "priority",
        "due_us",
        "id",
        where=f"{_WAITING} AND hold IS NULL",
        postgresql=("partition", "priority", "due_us", "id"),
        mysql=("partition", "queue_priority", "due_us", "id"),
    )
    forms.create_index(
        "instance_expiry",
        "instance",
        "expires_us",
        where=f"expires_us IS NOT NULL AND {_WAITING}",
        mysql=("wait_expires_us",),
    )
    forms.create_index(
        "instance_finished", "instance", "state", "finished_us", where="finished_us IS NOT NULL"
    )
    forms.create_index(
        "instance_fire",
        "instance",
        "fire_trigger",
        "fire_us",
        "shard",
        where="fire_us IS NOT NULL",
        unique=True,
    )
    forms.create_index(
        "instance_held",
        "instance",
        "namespace",
        "task",
        "hold",
        "priority",
        "due_us",
        "id",
        where="hold IS NOT NULL",
        mysql=("hold", "namespace", "task", "priority", "due_us", "id"),
    )
    forms.create_index("instance_key", "instance", "key", "id", where="key <> ''", mysql=("listed_key", "id"))
    forms.create_index(
        "instance_live",
        "instance",
        "namespace",
        "task",
        "created_us",
        where="finished_us IS NULL",
        mysql=("namespace", "task", "live_created_us"),
    )
    forms.create_index(
        "instance_state", "instance", "state", "id", where="state <> 'pending' AND state <> 'success'"
    )
    forms.create_index("instance_task", "instance", "namespace", "task", "id")


def _create_history() -> None:
    forms.create_table(
        "history",
        sa.Column(
            "sequence",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            sa.Identity(always=False),
            nullable=False,
        ),
        sa.Column("instance_id", forms.word(64), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("kind", forms.word(32), nullable=False),
        sa.Column("sentence", forms.long_text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("attempt_id", forms.word(64), nullable=False),
        sa.Column("worker_name", forms.word(255), nullable=False),
        sa.Column("code", forms.word(255), nullable=False),
        sa.Column("category", forms.word(255), nullable=False),
        sa.Column("started_us", sa.BigInteger(), nullable=True),
        sa.Column("due_us", sa.BigInteger(), nullable=True),
        sa.Column("by", forms.word(255), nullable=False),
        sa.Column("unconditional", sa.Boolean(), nullable=False),
        sa.Column("failure", forms.long_text(), nullable=True),
        sa.PrimaryKeyConstraint("sequence"),
        storage=_APPENDED,
    )
    forms.create_index("history_instance", "history", "instance_id", postgresql=("instance_id", "sequence"))


def _create_output() -> None:
    forms.create_table(
        "output",
        sa.Column("instance_id", forms.word(64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("attempt_id", forms.word(64), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("stream", forms.word(16), nullable=False),
        sa.Column("text", forms.long_text(), nullable=False),
        sa.PrimaryKeyConstraint("instance_id", "attempt", "sequence", "attempt_id"),
        storage=_APPENDED,
    )


def _create_request() -> None:
    forms.create_table(
        "request",
        sa.Column("id", forms.word(64), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("kind", forms.word(16), nullable=False),
        sa.Column("namespace", forms.word(255), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("task", forms.word(255), nullable=False),
        sa.Column("instance_id", forms.word(64), nullable=False),
        sa.Column("body", forms.long_bytes(), nullable=False),
        sa.Column("by", forms.word(255), nullable=False),
        sa.Column("code", forms.word(255), nullable=True),
        sa.Column("message", forms.long_text(), nullable=True),
        sa.Column("answer_instance_id", forms.word(64), nullable=True),
        sa.Column("answered_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        storage=_CHURNING,
        generated=(("open_created_us", sa.BigInteger(), "CASE WHEN code IS NULL THEN created_us END"),),
    )
    forms.create_index("request_answered", "request", "answered_us", where="answered_us IS NOT NULL")
    forms.create_index(
        "request_open", "request", "created_us", "id", where="code IS NULL", mysql=("open_created_us", "id")
    )


def _create_idempotency_key() -> None:
    forms.create_table(
        "idempotency_key",
        sa.Column("namespace", forms.word(255), nullable=False),
        sa.Column("task", forms.word(255), nullable=False),
        sa.Column("key", forms.word(255), nullable=False),
        sa.Column("instance_id", forms.word(64), nullable=False),
        sa.Column("request_hash", forms.word(64), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "task", "key"),
        storage=_APPENDED,
    )
    forms.create_index("idempotency_key_expiry", "idempotency_key", "expires_us")
