"""The clock of the simulated database's machine, which may jump and drift like any other."""

from __future__ import annotations

from collections.abc import Callable

from ostinato.core.instants import SECOND
from ostinato.testing.virtual_clock import START_US

_MILLION = 1_000_000
#: What the clock has shown may be believed so long: nodes ask about once a second, and not while they stand
#: still, are cut off or are being answered.
BELIEVED_US = 60 * SECOND


class DatabaseClock:
    """Wall time of the server; only ever asked for the time."""

    def __init__(self, true_us: Callable[[], int]) -> None:
        self._true_us = true_us
        self._drift_ppm = 0
        #: When the drift began to be what it is: in true time, and on this clock.
        self._since_us = true_us()
        self._wall_us = START_US + self._since_us
        #: How far it was off before each jump, and the true time of that jump.
        self._left: list[tuple[int, int]] = []

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

    def believed_us(self) -> tuple[int, int]:
        """The earliest and the latest time that somebody may take it for who has asked not long ago."""
        true_us = self._true_us()
        self._left = [(off_us, at_us) for off_us, at_us in self._left if true_us - at_us <= BELIEVED_US]
        shown = [self.wall_us(), *(START_US + true_us + off_us for off_us, _ in self._left)]
        return min(shown), max(shown)

    def _leave(self) -> None:
        self._left.append((self.wall_us() - START_US - self._true_us(), self._true_us()))
