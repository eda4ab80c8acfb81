"""Alembic's entry: runs the revisions on the connection that the caller has put into the configuration.

The caller's transaction holds all of it, so that a database is never half made. Offline mode does not exist.
"""

from __future__ import annotations

from alembic import context

from ostinato.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
    # SQLite changes a table by copying it.
    render_as_batch=True,
)
context.run_migrations()
