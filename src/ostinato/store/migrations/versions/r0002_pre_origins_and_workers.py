"""Who made a task, and the workers that nodes have recorded: pre, since the old code reads neither."""

from __future__ import annotations

import sqlalchemy as sa

from ostinato.store.migrations import forms

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Every task that was there before has been applied by an app: documents came with this revision.
    forms.add_column(
        "task", sa.Column("origin", forms.word(16), server_default=sa.text("'app'"), nullable=False)
    )
    forms.create_table(
        "worker",
        sa.Column("worker_id", forms.word(64), nullable=False),
        sa.Column("node_id", forms.word(64), nullable=False),
        sa.Column("worker_name", forms.word(255), nullable=False),
        sa.Column("state", forms.word(16), nullable=False),
        sa.Column("running_count", sa.Integer(), nullable=False),
        sa.Column("protocol", sa.Integer(), nullable=False),
        sa.Column("connected_us", sa.BigInteger(), nullable=False),
        sa.Column("seen_us", sa.BigInteger(), nullable=False),
        sa.Column("facts", forms.long_bytes(), nullable=False),
        sa.PrimaryKeyConstraint("worker_id", "node_id"),
        storage={
            "fillfactor": 50,
            "autovacuum_vacuum_scale_factor": 0,
            "autovacuum_vacuum_threshold": 200,
            "autovacuum_vacuum_cost_delay": 0,
        },
    )


def downgrade() -> None:
    """Who made a task is forgotten: an app, then, as the old code has it."""
    forms.drop_table("worker")
    forms.drop_column("task", "origin")
