"""Whether the database takes what the node writes: one state for all loops, and one voice for its errors.

A database that is away, read-only or full fails every loop, at every round, perhaps for hours. What it says
is told once for all of them, then once a minute with how often it has been said meanwhile, and its end once.
"""

from __future__ import annotations

from collections import Counter

from ostinato.clock import Clock
from ostinato.core.instants import MINUTE
from ostinato.errors import OstinatoError
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import DatabaseFull, DatabaseRecovered, DatabaseWritable, LoopFailed

#: The same error is said again, above the level of debug, after this long.
SAY_AGAIN_US = MINUTE


class Voice:
    """Which errors are worth a line: a code at first, then once a minute, whatever goes well between."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said_boot_us: dict[str, int] = {}
        self._counts: Counter[str] = Counter()

    def heard(self, code: str) -> int:
        """How many errors of `code` a line now stands for; 0: none is due yet, this one is only counted."""
        self._counts[code] += 1
        now_us = self._clock.boot_us()
        said_us = self._said_boot_us.get(code)
        if said_us is not None and now_us - said_us < SAY_AGAIN_US:
            return 0
        self._said_boot_us[code] = now_us
        return self._counts.pop(code)


class DatabaseState:
    """In trouble from the first round that failed for it until every loop that failed has had a good one.

    Not until the first write that succeeds: a small row may find room on a disk that takes no large one.
    """

    def __init__(self, clock: Clock, hooks: Hooks) -> None:
        self._clock = clock
        self._hooks = hooks
        self._voice = Voice(clock)
        #: By loop: what the database said, whatever kept it from its work.
        self._problems: dict[str, str] = {}
        #: Loops of these for which the disk was full.
        self._full: set[str] = set()
        self._full_since_boot_us = 0
        self._failing_since_boot_us = 0
        #: Whether a line says that it fails, and none yet that it is over.
        self._is_told = False

    @property
    def problem(self) -> str:
        """What keeps the node from its work; empty when nothing does."""
        return next(iter(self._problems.values()), "")

    def failed(self, loop: str, error: OstinatoError) -> None:
        """A loop's round, or a try within it, has ended with an error of the database."""
        if not self._problems:
            self._failing_since_boot_us = self._clock.boot_us()
        self._problems[loop] = str(error)
        if error.code == "DATABASE_FULL":
            if not self._full:
                self._full_since_boot_us = self._clock.boot_us()
                self._hooks.emit(DatabaseFull(loop=loop, error_code=error.code, error_message=str(error)))
            self._full.add(loop)
            count = 0
        else:
            count = self._voice.heard(error.code)
        self._is_told = self._is_told or count > 0
        self._hooks.emit(
            LoopFailed(
                loop=loop,
                error_code=error.code,
                error_message=str(error),
                is_repeated=count == 0,
                count=max(1, count),
            )
        )

    def succeeded(self, loop: str) -> None:
        """A loop's round has gone well."""
        self.forget(loop)
        if self._is_told and not self._problems:
            self._is_told = False
            self._hooks.emit(
                DatabaseRecovered(failing_us=self._clock.boot_us() - self._failing_since_boot_us)
            )

    def forget(self, loop: str) -> None:
        """What kept it from its work does so no more, or is told by another loop."""
        self._problems.pop(loop, None)
        if loop not in self._full:
            return
        self._full.discard(loop)
        if not self._full:
            self._hooks.emit(DatabaseWritable(full_us=self._clock.boot_us() - self._full_since_boot_us))
