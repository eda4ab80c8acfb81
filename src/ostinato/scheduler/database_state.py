"""Whether the database takes what the node writes: one state for all loops, said once for a full disk."""

from __future__ import annotations

from ostinato.clock import Clock
from ostinato.errors import OstinatoError
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import DatabaseFull, DatabaseWritable


class DatabaseState:
    """In trouble from the first round that failed for it until every loop that failed has had a good one.

    Not until the first write that succeeds: a small row may find room on a disk that takes no large one.
    """

    def __init__(self, clock: Clock, hooks: Hooks) -> None:
        self._clock = clock
        self._hooks = hooks
        #: By loop: what the database said, whatever kept it from its work.
        self._problems: dict[str, str] = {}
        #: Loops of these for which the disk was full.
        self._full: set[str] = set()
        self._full_since_boot_us = 0

    @property
    def problem(self) -> str:
        """What keeps the node from its work; empty when nothing does."""
        return next(iter(self._problems.values()), "")

    def failed(self, loop: str, error: OstinatoError) -> None:
        """A loop's round has ended with an error, which may be of another kind."""
        if not error.code.startswith("DATABASE_"):
            return
        self._problems[loop] = str(error)
        if error.code != "DATABASE_FULL":
            return
        if not self._full:
            self._full_since_boot_us = self._clock.boot_us()
            self._hooks.emit(DatabaseFull(loop=loop, error_code=error.code, error_message=str(error)))
        self._full.add(loop)

    def succeeded(self, loop: str) -> None:
        """A loop's round has gone well."""
        self._problems.pop(loop, None)
        if loop not in self._full:
            return
        self._full.discard(loop)
        if not self._full:
            self._hooks.emit(DatabaseWritable(full_us=self._clock.boot_us() - self._full_since_boot_us))
