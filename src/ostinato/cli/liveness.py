"""Whether a scheduler runs on the database of a command, found out fast enough to ask in passing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ostinato.settings import sqlite_path

if TYPE_CHECKING:
    from ostinato.cli.session import Session
    from ostinato.settings import Settings

HOW_TO_START = "start one with ostinato dev APP, or ostinato scheduler and ostinato worker --app APP"
#: A node renews itself once a second.
_WATCHED_US = 1_500_000
#: The kernel's list of locks; reading it takes none, as trying the lock would for a moment.
_LOCKS = "/proc/locks"


async def no_scheduler_runs(session: Session) -> bool:
    """Whether none does: told at once by the rows and by the lock of the file, else within two seconds."""
    from ostinato.control.cluster import silent_nodes

    nodes = await session.store.nodes()
    if not nodes:
        return True
    if lock_is_held(session.settings):
        return False
    # Killed, or in another container, whose locks are not in the list.
    return len(await silent_nodes(session.store, clock=session.clock, limit_us=_WATCHED_US)) == len(nodes)


def lock_is_held(settings: Settings) -> bool:
    """Whether a process that can be seen from here holds the lock of the SQLite database."""
    path = sqlite_path(settings.database)
    if path is None:
        return False
    try:
        inode = str(os.stat(f"{os.path.realpath(path)}.lock").st_ino)
        with open(_LOCKS, encoding="ascii") as file:
            rows = [line.split() for line in file]
    except (OSError, UnicodeError):
        return False
    return any("FLOCK" in row and row[-3].rpartition(":")[2] == inode for row in rows if len(row) > 3)
