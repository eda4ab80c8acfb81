"""The first schema: pre, since nothing ran before it. Frozen: later changes are revisions of their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_STATE_CHECK = """CASE state
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


def _insert_partitions() -> None:
    """Nobody owns them yet; their number is fixed for the life of the database."""
    config = op.get_context().config
    assert config is not None, "migrations run from a configuration"
    count = config.attributes["partition_count"]
    rows = [{"partition": number, "owner": "", "epoch": 0} for number in range(count)]
    table = sa.table("partition_owner", sa.column("partition"), sa.column("owner"), sa.column("epoch"))
    op.bulk_insert(table, rows)


def _create_node() -> None:
    op.create_table(
        "node",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("renewals", sa.BigInteger(), nullable=False),
        sa.Column("address", sa.String(length=255), nullable=False),
        sa.Column("started_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def _create_partition_owner() -> None:
    op.create_table(
        "partition_owner",
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("epoch >= 0", name="partition_owner_epoch"),
        sa.PrimaryKeyConstraint("partition"),
    )


def _create_task() -> None:
    op.create_table(
        "task",
        sa.Column("namespace", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("scheduled_version", sa.BigInteger(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "name"),
    )
    op.create_index(
        "task_changed",
        "task",
        ["updated_us"],
        sqlite_where=sa.text("scheduled_version <> version"),
        postgresql_where=sa.text("scheduled_version <> version"),
    )


def _create_task_definition() -> None:
    op.create_table(
        "task_definition",
        sa.Column("namespace", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("definition", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "name", "version"),
    )


def _create_task_trigger() -> None:
    op.create_table(
        "task_trigger",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("namespace", sa.String(length=255), nullable=False),
        sa.Column("task", sa.String(length=255), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("task_version", sa.BigInteger(), nullable=False),
        sa.Column("spec", sa.LargeBinary(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("next_us", sa.BigInteger(), nullable=True),
        sa.Column("last_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "task_trigger_next",
        "task_trigger",
        ["next_us", "id"],
        sqlite_where=sa.text("next_us IS NOT NULL"),
        postgresql_where=sa.text("next_us IS NOT NULL"),
    )
    op.create_index("task_trigger_task", "task_trigger", ["namespace", "task"])


def _create_instance() -> None:
    op.create_table(
        "instance",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("namespace", sa.String(length=255), nullable=False),
        sa.Column("task", sa.String(length=255), nullable=False),
        sa.Column("task_version", sa.BigInteger(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("due_us", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("attempt_id", sa.String(length=64), server_default=sa.text("''"), nullable=False),
        sa.Column("worker_id", sa.String(length=64), server_default=sa.text("''"), nullable=False),
        sa.Column("worker_name", sa.String(length=255), server_default=sa.text("''"), nullable=False),
        sa.Column("counters", sa.Text(), nullable=True),
        sa.Column("hold", sa.String(length=16), nullable=True),
        sa.Column("reason", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=True),
        sa.Column("fire_trigger", sa.String(length=64), server_default=sa.text("''"), nullable=False),
        sa.Column("fire_us", sa.BigInteger(), nullable=True),
        sa.Column("shard", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("shard_total", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("key", sa.String(length=255), server_default=sa.text("''"), nullable=False),
        sa.Column("assigned_us", sa.BigInteger(), nullable=True),
        sa.Column("started_us", sa.BigInteger(), nullable=True),
        sa.Column("finished_us", sa.BigInteger(), nullable=True),
        sa.Column("cancel_requested_us", sa.BigInteger(), nullable=True),
        sa.Column("cancel_reason", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("result", sa.LargeBinary(), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.CheckConstraint(_STATE_CHECK, name="instance_state"),
        sa.CheckConstraint("hold IN ('no_worker', 'busy', 'paused', 'overlap')", name="instance_hold"),
        sa.CheckConstraint("generation >= 1 AND attempt >= 0", name="instance_counts"),
        sa.CheckConstraint("priority BETWEEN 0 AND 9", name="instance_priority"),
        sa.CheckConstraint("shard >= 0 AND shard < shard_total", name="instance_shard"),
        sa.PrimaryKeyConstraint("id"),
    )


def _create_instance_indexes() -> None:
    op.create_index(
        "instance_due",
        "instance",
        ["priority", "due_us", "id"],
        sqlite_where=sa.text("(state = 'pending' OR state = 'retry_waiting') AND hold IS NULL"),
        postgresql_where=sa.text("(state = 'pending' OR state = 'retry_waiting') AND hold IS NULL"),
    )
    op.create_index(
        "instance_expiry",
        "instance",
        ["expires_us"],
        sqlite_where=sa.text("expires_us IS NOT NULL AND (state = 'pending' OR state = 'retry_waiting')"),
        postgresql_where=sa.text("expires_us IS NOT NULL AND (state = 'pending' OR state = 'retry_waiting')"),
    )
    op.create_index(
        "instance_finished",
        "instance",
        ["state", "finished_us"],
        sqlite_where=sa.text("finished_us IS NOT NULL"),
        postgresql_where=sa.text("finished_us IS NOT NULL"),
    )
    op.create_index(
        "instance_fire",
        "instance",
        ["fire_trigger", "fire_us", "shard"],
        unique=True,
        sqlite_where=sa.text("fire_us IS NOT NULL"),
        postgresql_where=sa.text("fire_us IS NOT NULL"),
    )
    op.create_index(
        "instance_held",
        "instance",
        ["namespace", "task", "hold", "priority", "due_us", "id"],
        sqlite_where=sa.text("hold IS NOT NULL"),
        postgresql_where=sa.text("hold IS NOT NULL"),
    )
    op.create_index(
        "instance_key",
        "instance",
        ["key", "id"],
        sqlite_where=sa.text("key <> ''"),
        postgresql_where=sa.text("key <> ''"),
    )
    op.create_index(
        "instance_live",
        "instance",
        ["namespace", "task", "created_us"],
        sqlite_where=sa.text("finished_us IS NULL"),
        postgresql_where=sa.text("finished_us IS NULL"),
    )
    op.create_index(
        "instance_state",
        "instance",
        ["state", "id"],
        sqlite_where=sa.text("state <> 'pending' AND state <> 'success'"),
        postgresql_where=sa.text("state <> 'pending' AND state <> 'success'"),
    )
    op.create_index("instance_task", "instance", ["namespace", "task", "id"])


def _create_history() -> None:
    op.create_table(
        "history",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("instance_id", sa.String(length=64), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.String(length=64), nullable=False),
        sa.Column("worker_name", sa.String(length=255), nullable=False),
        sa.Column("code", sa.String(length=255), nullable=False),
        sa.Column("category", sa.String(length=255), nullable=False),
        sa.Column("started_us", sa.BigInteger(), nullable=True),
        sa.Column("due_us", sa.BigInteger(), nullable=True),
        sa.Column("by", sa.String(length=255), nullable=False),
        sa.Column("unconditional", sa.Boolean(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("sequence"),
    )
    op.create_index("history_instance", "history", ["instance_id"])


def _create_output() -> None:
    op.create_table(
        "output",
        sa.Column("instance_id", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("attempt_id", sa.String(length=64), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("stream", sa.String(length=16), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("instance_id", "attempt", "sequence", "attempt_id"),
    )


def _create_request() -> None:
    op.create_table(
        "request",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("namespace", sa.String(length=255), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("task", sa.String(length=255), nullable=False),
        sa.Column("instance_id", sa.String(length=64), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("by", sa.String(length=255), nullable=False),
        sa.Column("code", sa.String(length=255), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("answer_instance_id", sa.String(length=64), nullable=True),
        sa.Column("answered_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "request_answered",
        "request",
        ["answered_us"],
        sqlite_where=sa.text("answered_us IS NOT NULL"),
        postgresql_where=sa.text("answered_us IS NOT NULL"),
    )
    op.create_index(
        "request_open",
        "request",
        ["created_us", "id"],
        sqlite_where=sa.text("code IS NULL"),
        postgresql_where=sa.text("code IS NULL"),
    )


def _create_idempotency_key() -> None:
    op.create_table(
        "idempotency_key",
        sa.Column("namespace", sa.String(length=255), nullable=False),
        sa.Column("task", sa.String(length=255), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("instance_id", sa.String(length=64), nullable=False),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "task", "key"),
    )
    op.create_index("idempotency_key_expiry", "idempotency_key", ["expires_us"])
