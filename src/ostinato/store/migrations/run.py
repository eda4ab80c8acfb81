"""Brings a database to the newest revision within the caller's transaction."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection


def alembic_config() -> Config:
    """Configuration that names the package's own revisions; there is no ``alembic.ini``."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def knows_revision(revision: str) -> bool:
    """Whether `revision` is one of ours; if not, a newer version of Ostinato has made the database."""
    scripts = ScriptDirectory.from_config(alembic_config())
    return revision in {script.revision for script in scripts.walk_revisions()}


def upgrade(connection: Connection, *, partition_count: int) -> None:
    """Run every missing revision; a new database gets `partition_count` partitions."""
    config = alembic_config()
    config.attributes["connection"] = connection
    config.attributes["partition_count"] = partition_count
    command.upgrade(config, "head")
