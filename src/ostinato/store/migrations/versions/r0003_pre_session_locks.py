"""Session locks of nodes: pre, since the old code does not read them."""

from __future__ import annotations

import sqlalchemy as sa

from ostinato.store.migrations import forms

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    forms.add_column(
        "node", sa.Column("session", forms.word(64), server_default=sa.text("''"), nullable=False)
    )


def downgrade() -> None:
    forms.drop_column("node", "session")
