"""Upgrades and downgrades of a server's database, and what is stored there."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
from sqlalchemy import func, inspect, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.clock import Clock
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.errors import ConflictError
from ostinato.store.migrations import HEAD_REVISION, REVISIONS, SERVER_VERSION_TABLE
from ostinato.store.schema import node, partition_owner
from ostinato.store.schema_facts import NO_REVISION, SchemaChange, SchemaFacts, require_target
from ostinato.store.server.administration import (
    ANSWER_US,
    FaultReader,
    administering,
    require_ours_or_empty,
)
from ostinato.store.server.faults import timed_out
from ostinato.store.server.revision import stored_revision, too_new
from ostinato.store.server.schema_change import begin_change, end_change, not_ended, stored_change
from ostinato.store.server.url import ServerUrl

#: A node renews itself once a second: one that has not in so long is gone or frozen.
_SILENCE_US = 2500 * MILLISECOND


class ServerAdministrator:
    """One database, which many nodes may use while its schema changes."""

    def __init__(self, url: ServerUrl, *, fault: FaultReader, clock: Clock) -> None:
        self._url = url
        self._fault = fault
        self._clock = clock

    async def facts(self) -> SchemaFacts:
        try:
            return await asyncio.wait_for(self._facts(), ANSWER_US / SECOND)
        except TimeoutError:
            raise timed_out("reading the schema", deadline_us=ANSWER_US, subject=self._url.shown) from None

    async def _facts(self) -> SchemaFacts:
        async with administering(
            self._url, fault=self._fault, operation="reading the schema", is_change=False
        ) as connection:
            return await self._look(connection)

    async def upgrade(self, revision: str, *, partition_count: int) -> SchemaFacts:
        # Late: importing Alembic takes longer than most commands.
        from ostinato.store.migrations.run import require_complete, upgrade

        subject = self._url.shown
        async with administering(
            self._url, fault=self._fault, operation="upgrading the schema", is_change=True
        ) as connection:
            await connection.run_sync(partial(require_ours_or_empty, subject=subject))
            stored = await self._known_revision(connection)
            require_target(revision, stored=stored, is_upgrade=True)
            await self._begin(connection, stored=stored, revision=revision, is_upgrade=True)
            await connection.run_sync(partial(upgrade, partition_count=partition_count, revision=revision))
            await end_change(connection)
        # What it has done stands, so that what it lacks is mended by going down and up again.
        async with administering(
            self._url, fault=self._fault, operation="reading the schema", is_change=False
        ) as connection:
            if revision == HEAD_REVISION:
                await connection.run_sync(partial(require_complete, subject=subject))
            return await self._look(connection)

    async def downgrade(self, revision: str) -> SchemaFacts:
        from ostinato.store.migrations.run import downgrade

        async with administering(
            self._url, fault=self._fault, operation="downgrading the schema", is_change=True
        ) as connection:
            stored = await self._known_revision(connection)
            require_target(revision, stored=stored, is_upgrade=False)
            await require_no_node(connection, clock=self._clock, subject=self._url.shown)
            await self._begin(connection, stored=stored, revision=revision, is_upgrade=False)
            if stored:
                await connection.run_sync(partial(downgrade, revision=revision))
            if revision == NO_REVISION and stored is not None:
                await connection.execute(text(f"DROP TABLE {SERVER_VERSION_TABLE}"))
            await end_change(connection)
            return await self._look(connection)

    async def _begin(
        self, connection: AsyncConnection, *, stored: str | None, revision: str, is_upgrade: bool
    ) -> None:
        """Raise ``SCHEMA_VERSION`` where another change has broken off that this one does not end."""
        before = await stored_change(connection)
        if before is not None and not before.is_ended_by(revision, is_upgrade=is_upgrade):
            raise not_ended(before, subject=self._url.shown)
        if before is not None:
            await begin_change(connection, msgspec.structs.replace(before, to_revision=revision))
        elif revision != (stored or NO_REVISION):
            await begin_change(connection, SchemaChange(from_revision=stored or "", to_revision=revision))

    async def _look(self, connection: AsyncConnection) -> SchemaFacts:
        revision = await stored_revision(connection)
        count = 0
        # A downgrade that broke off may have dropped it already.
        if revision and await _has_table(connection, partition_owner.name):
            count = await connection.scalar(select(func.count()).select_from(partition_owner)) or 0
        return SchemaFacts(
            database=self._url.shown,
            revision=revision,
            partitions=count,
            change=await stored_change(connection),
        )

    async def _known_revision(self, connection: AsyncConnection) -> str | None:
        revision = await stored_revision(connection)
        if revision and revision not in REVISIONS:
            raise too_new(revision, subject=self._url.shown)
        return revision


async def require_no_node(connection: AsyncConnection, *, clock: Clock, subject: str) -> None:
    """Raise ``NODE_ALREADY_RUNNING`` where a scheduler node renews itself; watches if there are rows.

    Rows of killed nodes stay until another takes over, and count for nothing.
    """
    # A downgrade that broke off may have dropped it already.
    before = await _renewals(connection) if await _has_table(connection, node.name) else {}
    if not before:
        return
    until_us = clock.boot_us() + _SILENCE_US
    while clock.boot_us() < until_us:
        await clock.sleep_until_us(min(until_us, clock.boot_us() + SECOND // 4))
        for node_id, renewals in (await _renewals(connection)).items():
            if renewals != before.get(node_id):
                raise ConflictError(
                    "NODE_ALREADY_RUNNING",
                    f"scheduler node {node_id} runs on {subject}",
                    subject=subject,
                    hint="stop every scheduler first: ostinato node list shows them",
                )


async def _renewals(connection: AsyncConnection) -> dict[str, int]:
    rows = await connection.execute(text("SELECT id, renewals FROM node"))
    return {str(node_id): int(renewals) for node_id, renewals in rows}


async def _has_table(connection: AsyncConnection, name: str) -> bool:
    return await connection.run_sync(lambda each: inspect(each).has_table(name))
