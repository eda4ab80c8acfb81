"""What a database says of its schema, and to which revisions it can be brought."""

from __future__ import annotations

from typing import Protocol

import msgspec

from ostinato.errors import UserError
from ostinato.store.migrations import REVISIONS

#: Partitions of a database that none are asked for.
PARTITION_COUNT = 64
#: What a downgrade to before the first revision is called.
NO_REVISION = "base"


class SchemaFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a database says of its schema."""

    #: Where it is, without a password.
    database: str
    #: None: there never was a schema; empty: its first upgrade broke off.
    revision: str | None
    #: Zero where there is no schema.
    partitions: int = 0

    @property
    def pending(self) -> list[str]:
        """Revisions that an upgrade would run, oldest first; none for a database of a newer version."""
        return [] if self.is_newer else [each for each in REVISIONS if each > (self.revision or "")]

    @property
    def is_newer(self) -> bool:
        """Whether a newer version of Ostinato has made the database."""
        return bool(self.revision) and self.revision not in REVISIONS


class Administrator(Protocol):
    """Changes the schema of one database. Raises ``DATABASE_UNAVAILABLE`` and its kin."""

    async def facts(self) -> SchemaFacts:
        """What is stored; changes nothing."""
        ...

    async def upgrade(self, revision: str, *, partition_count: int) -> SchemaFacts:
        """Run every missing revision up to `revision`; a database that has them all is left as it is.

        A new database gets `partition_count` partitions. Raises ``SCHEMA_VERSION`` for a database that a
        newer version has made, and ``INVALID_VALUE`` for a revision that it has left behind.
        """
        ...

    async def downgrade(self, revision: str) -> SchemaFacts:
        """Undo every revision after `revision`. Raises ``NODE_ALREADY_RUNNING`` while a scheduler lives."""
        ...


def require_target(revision: str, *, stored: str | None, is_upgrade: bool) -> None:
    """Raise ``INVALID_VALUE`` with the field ``to`` unless `revision` lies in the direction meant."""
    known = REVISIONS if is_upgrade else (NO_REVISION, *REVISIONS)
    if revision not in known:
        raise UserError(
            "INVALID_VALUE",
            f"there is no revision {revision!a}",
            field="to",
            hint=f"revisions are {', '.join(known)}",
        )
    reached = stored or ""
    if is_upgrade and revision < reached:
        raise UserError(
            "INVALID_VALUE",
            f"revision {revision} is older than {reached}, which the database has",
            field="to",
            hint=f"that is a downgrade: ostinato db downgrade --to {revision}",
        )
    if not is_upgrade and revision != NO_REVISION and revision > reached:
        raise UserError(
            "INVALID_VALUE",
            f"revision {revision} is newer than {reached or 'what the database has'}",
            field="to",
            hint=f"that is an upgrade: ostinato db upgrade --to {revision}",
        )
