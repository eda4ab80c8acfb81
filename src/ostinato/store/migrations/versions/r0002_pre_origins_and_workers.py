"""Who made a task, and the workers that nodes have recorded: pre, since the old code reads neither."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Every task that was there before has been applied by an app: documents came with this revision.
    op.add_column(
        "task", sa.Column("origin", sa.String(length=16), server_default=sa.text("'app'"), nullable=False)
    )
    op.create_table(
        "worker",
        sa.Column("worker_id", sa.String(length=64), nullable=False),
        sa.Column("node_id", sa.String(length=64), nullable=False),
        sa.Column("worker_name", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("running_count", sa.Integer(), nullable=False),
        sa.Column("protocol", sa.Integer(), nullable=False),
        sa.Column("connected_us", sa.BigInteger(), nullable=False),
        sa.Column("seen_us", sa.BigInteger(), nullable=False),
        sa.Column("facts", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("worker_id", "node_id"),
    )
