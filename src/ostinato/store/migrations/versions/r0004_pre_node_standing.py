"""Whether workers reach a node: pre, since the old code does not read it."""

from __future__ import annotations

import sqlalchemy as sa

from ostinato.store.migrations import forms

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    forms.add_column(
        "node", sa.Column("standing", forms.word(16), server_default=sa.text("''"), nullable=False)
    )


def downgrade() -> None:
    forms.drop_column("node", "standing")
