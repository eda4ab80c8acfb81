"""Administers the database that a URL names: its schema, and copies of it into another.

Only a server's database is migrated by command; a SQLite file is migrated by whoever opens it, and these
functions do the same to it when they are asked.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ostinato.clock import Clock
from ostinato.errors import ConflictError, OstinatoError, UserError
from ostinato.store.schema_facts import PARTITION_COUNT, Administrator

if TYPE_CHECKING:
    from ostinato.store.copying import Copied, Side


def administrator_of(url: str, *, clock: Clock) -> Administrator:
    """Of the database that `url` names. Raises ``INVALID_SETTING``."""
    from ostinato.store.server.url import is_server_url, read_server_url

    if is_server_url(url):
        from ostinato.store.from_url import fault_reader
        from ostinato.store.server.migration import ServerAdministrator

        server_url = read_server_url(url)
        return ServerAdministrator(server_url, fault=fault_reader(server_url), clock=clock)
    if url == "memory:":
        raise UserError(
            "INVALID_SETTING",
            "memory: has no schema, and lives with the process that opens it",
            field="database",
            hint="name the database that is meant with --database",
        )
    from ostinato.store.from_url import sqlite_path_of
    from ostinato.store.sqlite.administration import SqliteAdministrator

    return SqliteAdministrator(sqlite_path_of(url))


async def copy_database(source: str, target: str, *, leave_running: bool, clock: Clock) -> Copied:
    """Copy what the database at URL `source` still has to do into the empty one at `target`, all or nothing.

    Raises as ``copying.copy_rows``, ``NODE_ALREADY_RUNNING`` where a scheduler runs on either, and
    ``INVALID_SETTING`` for a URL; ``field`` is ``source`` or ``target``.
    """
    from ostinato.store.copying import copy_rows

    if _place(source, field="source") == _place(target, field="target"):
        raise ConflictError(
            "COPY_REFUSED", "both URLs name the same database", field="target", hint="name an empty one"
        )
    async with (
        _side(source, field="source", clock=clock) as source_side,
        _side(target, field="target", clock=clock) as target_side,
    ):
        now_us = clock.wall_us()
        return await copy_rows(source_side, target_side, now_us=now_us, leave_running=leave_running)


def _place(url: str, *, field: str) -> str:
    """Where `url` leads, as far as can be told without going there."""
    from ostinato.store.from_url import sqlite_path_of
    from ostinato.store.server.url import is_server_url, read_server_url

    try:
        return read_server_url(url).shown if is_server_url(url) else os.path.realpath(sqlite_path_of(url))
    except OstinatoError as error:
        error.field = field
        raise


@asynccontextmanager
async def _side(url: str, *, field: str, clock: Clock) -> AsyncIterator[Side]:
    from ostinato.store.from_url import fault_reader, sqlite_path_of
    from ostinato.store.server.url import is_server_url, read_server_url

    is_inside = False
    try:
        if is_server_url(url):
            from ostinato.store.server.copying import server_side

            server_url = read_server_url(url)
            opening = server_side(server_url, fault=fault_reader(server_url), clock=clock)
        else:
            from ostinato.store.sqlite.copying import sqlite_side

            opening = sqlite_side(
                sqlite_path_of(url), makes_database=field == "target", partition_count=PARTITION_COUNT
            )
        async with opening as side:
            is_inside = True
            yield side
            is_inside = False
    except OstinatoError as error:
        if not is_inside:
            error.field = field
        raise
