"""What a shell may complete with: names and ids from the database, silent where there are none.

Called at every press of a key, so it looks once, briefly, and never makes a database. What goes wrong is
shown under ``OSTINATO_DEBUG=1`` alone.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ostinato.cli.session import Session

#: A shell waits no longer than this for names.
_WAIT_SECONDS = 2
_NAMES_MAX = 200
_INSTANCES_MAX = 50
#: What no shell reads as anything but itself.
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@:-]*", re.ASCII)


def tasks(context: typer.Context, incomplete: str) -> list[str]:
    """Names of tasks of the namespace that begin with what was typed."""

    async def look(session: Session) -> list[str]:
        from ostinato.control.queries import list_tasks

        rows = await list_tasks(session.store, session.settings.namespace, limit=_NAMES_MAX)
        return [row.ref.name for row in rows]

    return _found(context, incomplete, look)


def instances(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of the newest instances of the namespace."""

    async def look(session: Session) -> list[str]:
        from ostinato.control.queries import list_instances
        from ostinato.store.batches import InstanceFilter

        where = InstanceFilter(namespace=session.settings.namespace)
        page = await list_instances(session.store, where, limit=_INSTANCES_MAX)
        return [instance.id for instance in page.instances]

    return _found(context, incomplete, look)


def workers(context: typer.Context, incomplete: str) -> list[str]:
    """Names of workers that are recorded; the id of one whose name a shell would not take as a word.

    A worker chooses its name, and a shell puts what it completes into the line as it stands.
    """

    async def look(session: Session) -> list[str]:
        from ostinato.control.cluster import list_workers

        found = await list_workers(session.store)
        return sorted({worker.name if _WORD.fullmatch(worker.name) else worker.id for worker in found})

    return _found(context, incomplete, look)


def namespaces(context: typer.Context, incomplete: str) -> list[str]:
    """Namespaces that have tasks."""

    async def look(session: Session) -> list[str]:
        return await session.store.namespaces(limit=_NAMES_MAX)

    return _found(context, incomplete, look)


def states(_context: typer.Context, incomplete: str) -> list[str]:
    """States of instances."""
    from ostinato.core.states import State

    return [str(state) for state in State if state.startswith(incomplete)]


def _found(
    context: typer.Context, incomplete: str, look: Callable[[Session], Awaitable[list[str]]]
) -> list[str]:
    import asyncio

    from ostinato.cli.options import settings_of
    from ostinato.cli.session import in_session

    async def briefly(session: Session) -> list[str]:
        return await asyncio.wait_for(look(session), _WAIT_SECONDS)

    try:
        settings = settings_of(context, **_options(context))
        return [name for name in in_session(settings, briefly) if name.startswith(incomplete)]
    except Exception as error:  # noqa: BLE001 - a shell that completes a word has no place for an error
        if os.environ.get("OSTINATO_DEBUG", "") not in ("", "0"):
            traceback.print_exception(error)
        return []


def _options(context: typer.Context) -> dict[str, object]:
    """Database and namespace as far as they have been typed, after the command's name or before it."""
    given: dict[str, object] = {}
    at: typer.Context | None = context
    while at is not None:
        for name in ("database", "namespace"):
            value = at.params.get(name)
            if value is not None:
                given.setdefault(name, value)
        at = at.parent  # type: ignore[assignment]  # vendored click has another name
    return given
