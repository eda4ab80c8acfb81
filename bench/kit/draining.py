"""How fast a contender works off what it was given, seen from outside."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

from kit.rounds import RunError

#: Between two looks: long enough to cost the contender nothing to speak of, short against a drain of seconds.
LOOK_S = 0.05


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
    while (seen := look(draining)).completed < count:
        draining.require_running()
        if seen.at_s > end_s:
            raise RunError(f"{seen.completed} of {count} were done within {limit_s:g} s")
        time.sleep(LOOK_S)
    return seen


def drain_rate(draining: Draining, count: int, *, limit_s: float) -> float:
    """Completions a second from the first look that finds some to the one that finds all.

    So the start of the programs does not count. Raises ``RunError`` where all were done at that first look.
    """
    first = wait_until(draining, 1, limit_s=limit_s)
    if first.completed >= count:
        raise RunError(f"all {count} were done between two looks; ask for more")
    return wait_until(draining, count, limit_s=limit_s).rate_since(first)
