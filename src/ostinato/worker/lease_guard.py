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
from typing import NamedTuple

from ostinato.core.instants import SECOND

#: Covers the drift of clocks and what stands between a decision and a kill.
DRIFT_US = SECOND


class _Sent(NamedTuple):
    stream: int
    sequence: int
    at_us: int


class LeaseGuard:
    """The worker's leases. All times are boot time of this machine.

    Heartbeats of all streams are numbered by one counter, in the order in which they are sent. A node can
    name those of its own stream only; 0 is the greeting of the stream.
    """

    def __init__(self) -> None:
        #: How long a lease is: the least that nodes of present streams have told, as of the newest welcome.
        self.worker_lease_us: int | None = None
        #: Newest heartbeat that any lease rests on, 0 for none; the greeting of a stream counts as none.
        self.newest_sequence = 0
        #: End of the last of all leases, of whatever partition; 0 if there never was one.
        self.last_end_us = 0
        self._sent: deque[_Sent] = deque()
        self._trusted_from_us: dict[int, int] = {}
        self._lease_of_stream: dict[int, int] = {}

    def welcome(self, stream: int, *, worker_lease_us: int, hello_sent_us: int) -> None:
        """A node has answered a ``Hello``, which counts as heartbeat 0 of its stream."""
        self._lease_of_stream[stream] = worker_lease_us
        self.worker_lease_us = min(self._lease_of_stream.values())
        self.sent(stream, 0, at_us=hello_sent_us)

    def end_stream(self, stream: int) -> None:
        """A stream is over. Its leases run on, and no longer than they did. Idempotent."""
        self._lease_of_stream.pop(stream, None)

    def sent(self, stream: int, sequence: int, *, at_us: int) -> None:
        """A heartbeat was handed to a stream."""
        if self.worker_lease_us is not None:
            while self._sent and self._sent[0].at_us + self.worker_lease_us < at_us:
                self._sent.popleft()
        self._sent.append(_Sent(stream, sequence, at_us))

    def acknowledged(self, stream: int, sequence: int, *, partitions: Iterable[int]) -> None:
        """An owner that still believes in itself has processed that heartbeat of its stream.

        One that was not sent there, or so long ago that it is forgotten, extends nothing.
        """
        sent_us = self._sent_us(stream, sequence) if sequence else None
        if sent_us is None:
            return
        for partition in partitions:
            self._extend(partition, sent_us)
        self._rest_on(sequence, sent_us)

    def covers(self, stream: int, heartbeat_sequence: int, *, now_us: int) -> bool:
        """Whether an assignment whose sender had processed that heartbeat may still be started.

        A heartbeat so old that it is forgotten covers nothing.
        """
        sent_us = self._sent_us(stream, heartbeat_sequence)
        if sent_us is None or self.worker_lease_us is None:
            return False
        return now_us < sent_us + self.worker_lease_us - DRIFT_US

    def assigned(self, stream: int, partition: int, *, heartbeat_sequence: int) -> bool:
        """An owner of the partition has assigned an attempt, having processed that heartbeat.

        True if that extends the partition's lease.
        """
        sent_us = self._sent_us(stream, heartbeat_sequence)
        if sent_us is None:
            return False
        self._rest_on(heartbeat_sequence, sent_us)
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

    def _sent_us(self, stream: int, heartbeat_sequence: int) -> int | None:
        for sent in reversed(self._sent):
            if sent.sequence == heartbeat_sequence and sent.stream == stream:
                return sent.at_us
        return None

    def _extend(self, partition: int, sent_us: int) -> bool:
        known_us = self._trusted_from_us.get(partition)
        if known_us is not None and sent_us <= known_us:
            return False
        self._trusted_from_us[partition] = sent_us
        return True

    def _rest_on(self, sequence: int, sent_us: int) -> None:
        """Leases rest on a heartbeat, or could: its node may assign under it."""
        self.newest_sequence = max(self.newest_sequence, sequence)
        if self.worker_lease_us is not None:
            self.last_end_us = max(self.last_end_us, sent_us + self.worker_lease_us)
