"""One heap of deadlines for all attempts of a worker.

Ended attempts leave their entries behind, because taking one out of a heap costs a search; the owner says how
many entries are still wanted and the heap is rebuilt once most are not (at 5,000 attempts a second with a
time-out of an hour it would otherwise grow to millions).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

#: Below this the heap is never rebuilt.
_SIZE_MIN = 1_024


class DeadlineKind(StrEnum):
    """What happens to an attempt at that time."""

    TIMEOUT = "timeout"
    HEARTBEAT = "heartbeat"


class Deadline(NamedTuple):
    """Earliest first; `at_us` is boot time."""

    at_us: int
    attempt_id: str
    kind: DeadlineKind


class DeadlineHeap:
    """Deadlines in order of time."""

    def __init__(self, is_wanted: Callable[[str], bool]) -> None:
        """`is_wanted` says of an attempt id whether its deadlines still matter."""
        self._heap: list[Deadline] = []
        self._is_wanted = is_wanted
        self._rebuild_size = _SIZE_MIN

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_us(self) -> int | None:
        """Boot time of the earliest entry, of a live attempt or not; None when there is none."""
        return self._heap[0].at_us if self._heap else None

    def push(self, at_us: int, attempt_id: str, *, kind: DeadlineKind) -> None:
        """Add a deadline."""
        if len(self._heap) >= self._rebuild_size:
            self._heap = [entry for entry in self._heap if self._is_wanted(entry.attempt_id)]
            heapify(self._heap)
            self._rebuild_size = max(_SIZE_MIN, 2 * len(self._heap))
        heappush(self._heap, Deadline(at_us, attempt_id, kind))

    def pop_due(self, now_us: int) -> list[Deadline]:
        """Take out what is due, earliest first; entries of ended attempts are dropped."""
        due: list[Deadline] = []
        while self._heap and self._heap[0].at_us <= now_us:
            entry = heappop(self._heap)
            if self._is_wanted(entry.attempt_id):
                due.append(entry)
        return due
