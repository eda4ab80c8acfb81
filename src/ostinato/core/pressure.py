"""Backpressure: how much waits against two limits, as a level; and how long a submission then waits. Pure.

Waiting is what is due and has not started. *Green*: submissions pass. *Yellow*: each waits a moment, longer
the more there is. *Red*: none is accepted. A level is left only once a tenth of its limit has been worked
off, so that a backlog that stands at the limit does not make it flap. Design section 7.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.errors import UserError

#: What a submission waits for at the yellow limit, and from the red one on: far below any client's patience.
DELAY_US_MIN = 50 * MILLISECOND
DELAY_US_MAX = SECOND
#: A level is left at its limit less this share, and less one at least.
_BAND_SHARE = 10


class Level(IntEnum):
    """How things stand, the worse the higher."""

    GREEN = 0
    YELLOW = 1
    RED = 2

    @property
    def word(self) -> str:
        """As people and programs read it."""
        return self.name.lower()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of waiting instances from which on a level holds; None: never."""

    yellow: int | None = None
    red: int | None = None

    @property
    def is_set(self) -> bool:
        """Whether there is any level but green."""
        return self.yellow is not None or self.red is not None

    @property
    def count_max(self) -> int:
        """More need not be counted: nothing changes any more."""
        return self._longest_delay_at() if self.red is None else self.red

    def validate(self) -> None:
        """Raise ``INVALID_SETTING`` for a yellow limit that is not below the red one."""
        if self.yellow is not None and self.red is not None and self.yellow >= self.red:
            raise UserError(
                "INVALID_SETTING",
                f"{self.yellow} is not below pressure_red, which is {self.red}",
                field="pressure_yellow",
                hint="first submissions are slowed down, then refused",
            )

    def delay_us(self, count: int) -> int:
        """How long a submission waits where `count` instances wait and the level is yellow.

        It grows evenly up to the red limit, or without one up to twice the yellow.
        """
        if self.yellow is None:
            return 0
        span = self._longest_delay_at() - self.yellow
        part = min(max(count - self.yellow, 0), span)
        return DELAY_US_MIN + (DELAY_US_MAX - DELAY_US_MIN) * part // span

    def _longest_delay_at(self) -> int:
        if self.red is not None:
            return self.red
        return 2 * (self.yellow or 0)


def level_of(count: int, limits: Limits, *, before: Level) -> Level:
    """The level where `count` instances wait and it was `before`; for every count there is one."""
    if _is_over(count, limits.red, was_over=before >= Level.RED):
        return Level.RED
    if _is_over(count, limits.yellow, was_over=before >= Level.YELLOW):
        return Level.YELLOW
    return Level.GREEN


def _is_over(count: int, limit: int | None, *, was_over: bool) -> bool:
    if limit is None:
        return False
    return count > limit - max(1, limit // _BAND_SHARE) if was_over else count >= limit
