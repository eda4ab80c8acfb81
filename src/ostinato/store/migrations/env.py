"""Alembic's entry: runs the revisions on the connection that the caller has put into the configuration.

The caller's transaction holds all of it, so that a database of SQLite or PostgreSQL is never half made;
MySQL and MariaDB have no such transactions, for which see ``forms``. Offline mode does not exist.
"""

from __future__ import annotations

import warnings

from alembic import context

from ostinato.store.migrations import SERVER_VERSION_TABLE, SQLITE_VERSION_TABLE
from ostinato.store.schema import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table=SQLITE_VERSION_TABLE if connection.dialect.name == "sqlite" else SERVER_VERSION_TABLE,
    transactional_ddl=True,
    # SQLite changes a table by copying it.
    render_as_batch=True,
)
with warnings.catch_warnings():
    # Of Alembic's own table: MySQL gives a primary key no name, and says so.
    warnings.filterwarnings("ignore", message="Name '.*' ignored for PRIMARY key")
    context.run_migrations()
