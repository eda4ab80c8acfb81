"""How long a worker may go on with strict attempts without hearing from their owner; pure.

A lease per partition. Trust runs from when a heartbeat was *sent*, on the worker's own boot clock. Two things
extend it: an acknowledgement of the heartbeat, for the partitions that it lists, and an assignment, for its
partition, to the heartbeat that its sender had processed. A ``Welcome`` extends nothing.

An attempt must be gone when its lease is, so it is stopped a margin before: the time that killing takes plus
a second for clock drift (design section 3, Leases; section 11, WL margin).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ostinato.core.instants import SECOND

#: Covers the drift of clocks and what stands between a decision and a kill.
DRIFT_US = SECOND


class LeaseGuard:
    """The worker's leases. All times are boot time of this machine."""

    def __init__(self) -> None:
        self.worker_lease_us: int | None = None
        #: Newest heartbeat that any lease rests on, 0 for none; the greeting of a stream counts as none.
        self.newest_sequence = 0
        self._sent: deque[tuple[int, int]] = deque()
        self._trusted_from_us: dict[int, int] = {}

    def welcome(self, *, worker_lease_us: int, hello_sent_us: int) -> None:
        """A node has answered a ``Hello``, which counts as heartbeat 0 of its stream."""
        self.worker_lease_us = worker_lease_us
        self.sent(0, hello_sent_us)

    def sent(self, sequence: int, at_us: int) -> None:
        """A heartbeat was handed to the stream."""
        if self.worker_lease_us is not None:
            while self._sent and self._sent[0][1] + self.worker_lease_us < at_us:
                self._sent.popleft()
        self._sent.append((sequence, at_us))

    def acknowledged(self, sent_us: int, partitions: Iterable[int]) -> None:
        """An owner that still believes in itself has processed the heartbeat that was sent at `sent_us`.

        A time at which none was sent, or so long ago that it is forgotten, extends nothing.
        """
        for sequence, at_us in reversed(self._sent):
            if at_us == sent_us:
                for partition in partitions:
                    self._extend(partition, sent_us)
                self.newest_sequence = max(self.newest_sequence, sequence)
                return

    def covers(self, heartbeat_sequence: int, now_us: int) -> bool:
        """Whether an assignment whose sender had processed that heartbeat may still be started.

        A heartbeat so old that it is forgotten covers nothing.
        """
        sent_us = self._sent_us(heartbeat_sequence)
        if sent_us is None or self.worker_lease_us is None:
            return False
        return now_us < sent_us + self.worker_lease_us - DRIFT_US

    def assigned(self, partition: int, heartbeat_sequence: int) -> bool:
        """An owner of the partition has assigned an attempt, having processed that heartbeat.

        True if that extends the partition's lease.
        """
        sent_us = self._sent_us(heartbeat_sequence)
        if sent_us is None:
            return False
        self.newest_sequence = max(self.newest_sequence, heartbeat_sequence)
        return self._extend(partition, sent_us)

    def ends_us(self, partition: int) -> int | None:
        """When the partition's lease ends; None if there never was one."""
        trusted_from_us = self._trusted_from_us.get(partition)
        if trusted_from_us is None or self.worker_lease_us is None:
            return None
        return trusted_from_us + self.worker_lease_us

    def grace_us(self, grace_us: int) -> int:
        """Grace of an attempt that is stopped because of the lease: its own, shrunk to fit."""
        return grace_us if self.worker_lease_us is None else min(grace_us, self.worker_lease_us // 6)

    def stop_us(self, partition: int, grace_us: int) -> int | None:
        """When an attempt of the partition with this grace must be stopped; None as `ends_us`."""
        ends_us = self.ends_us(partition)
        return None if ends_us is None else ends_us - self.grace_us(grace_us) - DRIFT_US

    def check_us(self, partition: int) -> int | None:
        """Earliest time at which any attempt of the partition might have to be stopped; None as `ends_us`."""
        return None if self.worker_lease_us is None else self.stop_us(partition, self.worker_lease_us)

    def _sent_us(self, heartbeat_sequence: int) -> int | None:
        for sequence, sent_us in reversed(self._sent):
            if sequence == heartbeat_sequence:
                return sent_us
        return None

    def _extend(self, partition: int, sent_us: int) -> bool:
        known_us = self._trusted_from_us.get(partition)
        if known_us is not None and sent_us <= known_us:
            return False
        self._trusted_from_us[partition] = sent_us
        return True
