"""How fast a contender works off what it was given, seen from outside."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

from kit.rounds import RunError

#: Between two looks at least. While much is left there are few: a look reads all rows, of which a scheduler's
#: are wider than a queue's, and takes the time from whom it looks at.
LOOK_S = 0.05
_LOOK_S_MAX = 2.0


class Draining(Protocol):
    """What is watched."""

    def completed(self) -> int: ...

    def require_running(self) -> None: ...


class Look(NamedTuple):
    """How much was done when."""

    at_s: float
    completed: int

    def rate_since(self, earlier: Look) -> float:
        """Completions a second between the two."""
        return (self.completed - earlier.completed) / (self.at_s - earlier.at_s)


def look(draining: Draining) -> Look:
    """The time is that before the question, which the answer is never older than."""
    at_s = time.monotonic()
    return Look(at_s, draining.completed())


def wait_until(draining: Draining, count: int, *, limit_s: float) -> Look:
    """The first look that finds at least `count` done. Raises ``RunError`` where `limit_s` is over before."""
    end_s = time.monotonic() + limit_s
    before = Look(0.0, 0)
    while (seen := look(draining)).completed < count:
        draining.require_running()
        if seen.at_s > end_s:
            raise RunError(f"{seen.completed} of {count} were done within {limit_s:g} s")
        # Half way to where it will be done at the rate so far: the last look comes just after the end.
        rate = seen.rate_since(before) if before.completed else 0.0
        time.sleep(min(max((count - seen.completed) / rate / 2, LOOK_S), _LOOK_S_MAX) if rate else LOOK_S)
        before = seen
    return seen


def drain_rate(draining: Draining, count: int, *, limit_s: float) -> float:
    """Completions a second from the first look that finds some to the one that finds all.

    So the start of the programs does not count. Raises ``RunError`` where all were done at that first look.
    """
    first = wait_until(draining, 1, limit_s=limit_s)
    if first.completed >= count:
        raise RunError(f"all {count} were done between two looks; ask for more")
    return wait_until(draining, count, limit_s=limit_s).rate_since(first)
