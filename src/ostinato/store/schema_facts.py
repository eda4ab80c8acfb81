"""What a database says of its schema, and to which revisions it can be brought."""

from __future__ import annotations

from typing import Protocol

import msgspec

from ostinato.errors import UserError
from ostinato.store.migrations import HEAD_REVISION, REVISIONS

#: Partitions of a database that none are asked for.
PARTITION_COUNT = 64
#: What a downgrade to before the first revision is called.
NO_REVISION = "base"


class SchemaChange(msgspec.Struct, frozen=True, kw_only=True):
    """An upgrade or downgrade that has begun and not ended."""

    #: Empty: there was no schema.
    from_revision: str
    to_revision: str

    @property
    def is_upgrade(self) -> bool:
        return self.to_revision != NO_REVISION and self.to_revision > self.from_revision

    @property
    def command(self) -> str:
        """What ends it: each step can be repeated."""
        if not self.is_upgrade:
            return f"ostinato db downgrade --to {self.to_revision}"
        if self.to_revision == HEAD_REVISION:
            return "ostinato db upgrade"
        return f"ostinato db upgrade --to {self.to_revision}"

    def __str__(self) -> str:
        what = "upgrade" if self.is_upgrade else "downgrade"
        return f"{what} from {self.from_revision or 'nothing'} to {self.to_revision}"

    def is_ended_by(self, revision: str, *, is_upgrade: bool) -> bool:
        """Whether a change to `revision` does all that is left of this one, and perhaps more."""
        if is_upgrade != self.is_upgrade:
            return False
        if is_upgrade:
            return revision >= self.to_revision
        return revision == NO_REVISION or (self.to_revision != NO_REVISION and revision <= self.to_revision)


class SchemaFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a database says of its schema."""

    #: Where it is, without a password.
    database: str
    #: None: there never was a schema; empty: its first upgrade broke off.
    revision: str | None
    #: Zero where there is no schema.
    partitions: int = 0
    #: Only on servers that cannot undo half a change; whatever the revision says, the schema is not whole.
    change: SchemaChange | None = None

    @property
    def is_current(self) -> bool:
        """Whether it is, whole, what this version needs."""
        return self.revision == HEAD_REVISION and self.change is None

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
        newer version has made, or whose downgrade has not ended, and ``INVALID_VALUE`` for a revision that it
        has left behind.
        """
        ...

    async def downgrade(self, revision: str) -> SchemaFacts:
        """Undo every revision after `revision`.

        Raises ``NODE_ALREADY_RUNNING`` while a scheduler lives, and ``SCHEMA_VERSION`` where an upgrade has
        not ended.
        """
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
