"""Which workers have not said yet whether they have what an earlier owner assigned to them."""

from __future__ import annotations

from ostinato.clock import Clock
from ostinato.core.instants import MILLISECOND
from ostinato.core.partition.running import RunningAttempt
from ostinato.scheduler.ownership import Ownership

#: A look at all running attempts serves every worker for so long.
_LOOK_US = 100 * MILLISECOND


class Unreported:
    """Taken-over attempts that their worker must be asked for."""

    def __init__(self, ownership: Ownership, clock: Clock) -> None:
        self._ownership = ownership
        self._clock = clock
        self._looked_us: int | None = None
        self._worker_ids: frozenset[str] = frozenset()

    def asks(self, worker_id: str) -> bool:
        """Whether a worker is to report what it has; may be late by a tenth of a second."""
        now_us = self._clock.boot_us()
        if self._looked_us is None or now_us - self._looked_us >= _LOOK_US:
            self._looked_us = now_us
            running = self._ownership.memory.running.values()
            self._worker_ids = frozenset(attempt.worker_id for attempt in running if is_unreported(attempt))
        return worker_id in self._worker_ids


def is_unreported(attempt: RunningAttempt) -> bool:
    """Whether an earlier owner has assigned it and its worker has not been heard of it."""
    return not (attempt.is_reported or attempt.is_from_here or attempt.lost is not None)
