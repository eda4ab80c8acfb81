"""Session locks of nodes: pre, since the old code does not read them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "node", sa.Column("session", sa.String(length=64), server_default=sa.text("''"), nullable=False)
    )
