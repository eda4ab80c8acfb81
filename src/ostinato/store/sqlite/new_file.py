"""The newest schema for an empty file, as the revisions make it, without them.

To load Alembic takes longer than all the rest of a first ``ostinato dev``. ``new_file.sql`` is written by
``tools/generate_sqlite_schema.py``; a test holds it against what the revisions make.
"""

from __future__ import annotations

import sqlite3
from importlib.resources import files

from ostinato.store.migrations import HEAD_REVISION, SQLITE_VERSION_TABLE

#: Ends each statement of the file.
STATEMENT_END = ";\n"


def make_schema(connection: sqlite3.Connection, *, partition_count: int) -> None:
    """Make all tables of an empty file, with free partitions, within the caller's transaction."""
    lines = files(__package__).joinpath("new_file.sql").read_text("utf-8").splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("--"))
    for statement in text.split(STATEMENT_END):
        connection.execute(statement)
    connection.execute(f"INSERT INTO {SQLITE_VERSION_TABLE} (version_num) VALUES (?)", (HEAD_REVISION,))
    connection.executemany(
        "INSERT INTO partition_owner (partition, owner, epoch) VALUES (?, '', 0)",
        ((number,) for number in range(partition_count)),
    )
