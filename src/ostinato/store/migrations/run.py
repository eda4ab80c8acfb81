"""Brings a database to another revision within the caller's transaction."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, inspect

from ostinato.errors import UserError
from ostinato.store.migrations import HEAD_REVISION, REVISIONS
from ostinato.store.schema import metadata

#: What is before the first revision.
NO_REVISION = "base"


def alembic_config() -> Config:
    """Configuration that names the package's own revisions; there is no ``alembic.ini``."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def knows_revision(revision: str) -> bool:
    """Whether `revision` is one of ours; if not, a newer version of Ostinato has made the database."""
    return revision in REVISIONS


def upgrade(connection: Connection, *, partition_count: int, revision: str = HEAD_REVISION) -> None:
    """Run every missing revision up to `revision`; a new database gets `partition_count` partitions.

    On MySQL and MariaDB it goes on where an upgrade before it broke off.
    """
    config = alembic_config()
    config.attributes["connection"] = connection
    config.attributes["partition_count"] = partition_count
    command.upgrade(config, revision)


def downgrade(connection: Connection, *, revision: str) -> None:
    """Undo every revision after `revision`, and lose what they keep; ``base`` leaves no table of ours."""
    config = alembic_config()
    config.attributes["connection"] = connection
    command.downgrade(config, revision)


def require_complete(connection: Connection, *, subject: str) -> None:
    """Raise ``DATABASE_UNUSABLE`` where a table or column of the newest schema is missing.

    So it is where a downgrade broke off on MySQL or MariaDB and was not repeated before an upgrade.
    """
    inspector = inspect(connection)
    present = set(inspector.get_table_names())
    missing = [name for name in metadata.tables if name not in present]
    for table in metadata.tables.values():
        if table.name in present:
            columns = {column["name"] for column in inspector.get_columns(table.name)}
            missing += [
                f"{table.name}.{column.name}" for column in table.columns if column.name not in columns
            ]
    if missing:
        raise UserError(
            "DATABASE_UNUSABLE",
            f"{subject} says that it has schema {HEAD_REVISION}, but lacks {', '.join(sorted(missing))}",
            subject=subject,
            hint="a downgrade broke off: repeat it with ostinato db downgrade --to REVISION, then upgrade",
        )
