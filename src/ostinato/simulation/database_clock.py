"""The clock of the simulated database's machine, which may jump and drift like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ostinato.core.instants import SECOND
from ostinato.testing.virtual_clock import START_US

_MILLION = 1_000_000
#: What the clock has shown may be believed so long: nodes ask about once a second, and a jump has to last
#: for 10 s.
BELIEVED_US = 60 * SECOND
#: No answer takes longer: who has had none for more than this stands still or is cut off, or the database is.
_ANSWER_US_MAX = 10 * SECOND


class _Left(NamedTuple):
    """A time that the clock has shown before a jump."""

    #: How far it was off.
    off_us: int
    #: The true time until which somebody may go by it.
    until_us: int


class DatabaseClock:
    """Wall time of the server; only ever asked for the time."""

    def __init__(self, true_us: Callable[[], int]) -> None:
        self._true_us = true_us
        self._drift_ppm = 0
        #: When the drift began to be what it is: in true time, and on this clock.
        self._since_us = true_us()
        self._wall_us = START_US + self._since_us
        #: One for each jump; those that are over too, because who stands still goes on by them later.
        self._left: list[_Left] = []
        #: By process of a node: the true time at which it was told the time last.
        self._told_us: dict[str, int] = {}

    def wall_us(self) -> int:
        passed_us = self._true_us() - self._since_us
        return self._wall_us + passed_us + passed_us * self._drift_ppm // _MILLION

    def boot_us(self) -> int:
        return self._true_us()

    async def sleep_until_us(self, boot_us: int) -> None:
        raise NotImplementedError("a server does not wait by its own wall clock")

    def jump(self, by_us: int) -> None:
        """Forth, or back where negative."""
        self._leave()
        self._wall_us += by_us

    def drift(self, ppm: int) -> None:
        """Run so much too fast from now on, too slow where negative; 0: right."""
        self._wall_us = self.wall_us()
        self._since_us = self._true_us()
        self._drift_ppm = ppm

    def correct(self) -> None:
        """Show true time, and keep it."""
        self._leave()
        self.drift(0)
        self._wall_us = START_US + self._since_us

    def asks(self, process: str) -> None:
        """A node asks for the time. One that has long been told nothing may know of no jump since then."""
        now_us = self._true_us()
        told_us = self._told_us.get(process, now_us)
        if now_us - told_us > _ANSWER_US_MAX:
            until_us = now_us + BELIEVED_US
            self._left = [
                _Left(left.off_us, until_us) if left.until_us >= told_us else left for left in self._left
            ]

    def is_told(self, process: str) -> None:
        """The answer has come."""
        self.asks(process)
        self._told_us[process] = self._true_us()

    def believed_us(self) -> tuple[int, int]:
        """The earliest and the latest time that somebody may take it for who has asked not long ago."""
        true_us = self._true_us()
        believed = (left.off_us for left in self._left if true_us <= left.until_us)
        shown = [self.wall_us(), *(START_US + true_us + off_us for off_us in believed)]
        return min(shown), max(shown)

    def _leave(self) -> None:
        true_us = self._true_us()
        self._left.append(_Left(self.wall_us() - START_US - true_us, true_us + BELIEVED_US))
