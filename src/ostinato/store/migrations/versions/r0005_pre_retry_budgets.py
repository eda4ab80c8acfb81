"""Retries that wait for their task's budget: pre, since the old code holds nothing for it."""

from __future__ import annotations

from alembic import op

from ostinato.store.migrations import forms

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_OLD = "hold IN ('no_worker', 'busy', 'paused', 'overlap')"
_NEW = "hold IN ('no_worker', 'busy', 'paused', 'overlap', 'budget')"


def upgrade() -> None:
    forms.replace_check("instance", "instance_hold", old=_OLD, new=_NEW)


def downgrade() -> None:
    """What the old code does not know as held waits for a worker: it looks for that, and starts it."""
    op.execute("UPDATE instance SET hold = 'busy' WHERE hold = 'budget'")
    forms.replace_check("instance", "instance_hold", old=_NEW, new=_OLD)
