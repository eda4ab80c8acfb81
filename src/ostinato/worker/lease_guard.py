"""How long a worker may go on with its strict attempts without hearing from an owner; pure.

Trust runs from when a heartbeat was *sent*, on the worker's own boot clock, and is extended by its
acknowledgement. An attempt must be gone when the lease is, so it is stopped a margin before: the time that
killing takes plus a second for clock drift (design section 3, Leases; section 11, WL margin).

Kept as one lease for the whole worker: an acknowledgement of the one node covers all of its partitions.
"""

from __future__ import annotations

from collections import deque

from ostinato.core.instants import SECOND

#: Covers the drift of clocks and what stands between a decision and a kill.
DRIFT_US = SECOND


class LeaseGuard:
    """The worker's lease. All times are boot time of this machine."""

    def __init__(self) -> None:
        self.worker_lease_us: int | None = None
        self._sent: deque[tuple[int, int]] = deque()
        self._trusted_from_us: int | None = None

    def welcome(self, *, worker_lease_us: int, hello_sent_us: int) -> None:
        """A node has answered a ``Hello``, which counts as heartbeat 0 of its stream."""
        self.worker_lease_us = worker_lease_us
        self.sent(0, hello_sent_us)
        self._extend(hello_sent_us)

    def sent(self, sequence: int, at_us: int) -> None:
        """A heartbeat was handed to the stream."""
        if self.worker_lease_us is not None:
            while self._sent and self._sent[0][1] + self.worker_lease_us < at_us:
                self._sent.popleft()
        self._sent.append((sequence, at_us))

    def acknowledged(self, sent_us: int) -> None:
        """An owner that still believes in itself has processed the heartbeat that was sent at `sent_us`."""
        self._extend(sent_us)

    def _extend(self, sent_us: int) -> None:
        if self._trusted_from_us is None or sent_us > self._trusted_from_us:
            self._trusted_from_us = sent_us

    @property
    def ends_us(self) -> int | None:
        """When the lease ends; None before the first ``Welcome``."""
        if self._trusted_from_us is None or self.worker_lease_us is None:
            return None
        return self._trusted_from_us + self.worker_lease_us

    def grace_us(self, grace_us: int) -> int:
        """Grace of an attempt that is stopped because of the lease: its own, shrunk to fit."""
        return grace_us if self.worker_lease_us is None else min(grace_us, self.worker_lease_us // 6)

    def stop_us(self, grace_us: int) -> int | None:
        """When an attempt with this grace must be stopped; None before the first ``Welcome``."""
        ends_us = self.ends_us
        return None if ends_us is None else ends_us - self.grace_us(grace_us) - DRIFT_US

    @property
    def check_us(self) -> int | None:
        """Earliest time at which any attempt might have to be stopped."""
        return None if self.worker_lease_us is None else self.stop_us(self.worker_lease_us)

    def covers_assignment(self, heartbeat_sequence: int, now_us: int) -> bool:
        """Whether an assignment whose sender had processed that heartbeat may still be started.

        Its first lease runs from the sending of the heartbeat; a heartbeat so old that it is forgotten
        covers nothing.
        """
        if self.worker_lease_us is None:
            return False
        for sequence, sent_us in reversed(self._sent):
            if sequence == heartbeat_sequence:
                return now_us < sent_us + self.worker_lease_us - DRIFT_US
        return False
