"""What an attempt leaves running: found as children of its process, which adopts their orphans, and ended.

A process of tasks is a subreaper. Whatever descends from it is therefore its child, or the child of a child
that still lives; a second fork, a session or an environment of its own changes nothing about that. What was
there after the imports (a server of helper processes, say) stays.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from contextlib import suppress

from ostinato.worker.process_tree import TreeProcess, find_children

_ROUNDS_MAX = 20


class Leftovers:
    """Children of a process that runs one attempt at a time."""

    def __init__(self) -> None:
        self._known: frozenset[TreeProcess] = frozenset()

    def remember(self) -> None:
        """Note what there is before user code begins: what imports have started stays."""
        self._known = frozenset(find_children(os.getpid())) if _has_children() else frozenset()

    def end(self) -> bool:
        """End what an attempt has left; True if something of it still lived.

        Those that have ended and were never waited for are no more than entries in a table: they are cleared.
        """
        found = False
        for _ in range(_ROUNDS_MAX):
            # Almost always there are none, which this asks with one system call.
            left = self._left() if _has_children() else {}
            if not left:
                break
            for child, has_ended in left.items():
                if not has_ended:
                    found = True
                    # A child that was not waited for keeps its pid, so this hits nobody else.
                    with suppress(ProcessLookupError):
                        os.kill(child.pid, signal.SIGKILL)
            for child in left:
                # A thread that the task has left may have waited for it.
                with suppress(ChildProcessError):
                    os.waitpid(child.pid, 0)
        return found

    def _left(self) -> dict[TreeProcess, bool]:
        return {
            child: has_ended
            for child, has_ended in find_children(os.getpid()).items()
            if child not in self._known
        }


class OrphanEntries:
    """Ended children that nobody waits for, in a process where attempts overlap.

    Whose they were cannot be told. One that was seen ended while some attempts ran is cleared when all of
    these are over, because whoever has started it could not wait for it any more.
    """

    def __init__(self) -> None:
        self._known = frozenset(find_children(os.getpid()))
        self._waiters: dict[TreeProcess, frozenset[str]] = {}

    def clear(self, running_ids: Collection[str]) -> int:
        """Clear what can be cleared while these attempts run; returns how many were."""
        ended = [
            child
            for child, has_ended in (find_children(os.getpid()) if _has_children() else {}).items()
            if has_ended and child not in self._known
        ]
        running = frozenset(running_ids)
        self._waiters = {child: self._waiters.get(child, running) & running for child in ended}
        orphans = [child for child, waiters in self._waiters.items() if not waiters]
        for child in orphans:
            with suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)
        return len(orphans)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
