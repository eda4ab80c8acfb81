"""A worker's leases: one per partition, trusted from the sending of what an owner has processed (I1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ostinato.core.instants import SECOND
from ostinato.worker.lease_guard import DRIFT_US, LeaseGuard
from tests.worker.one_stream import STREAM

LEASE_US = 60 * SECOND


def welcomed(*, hello_sent_us: int = 0) -> LeaseGuard:
    guard = LeaseGuard()
    guard.welcome(STREAM, worker_lease_us=LEASE_US, hello_sent_us=hello_sent_us)
    return guard


def test_a_welcome_extends_nothing_and_says_how_long_a_lease_is() -> None:
    guard = welcomed()
    assert guard.worker_lease_us == LEASE_US
    assert guard.ends_us(0) is None
    assert guard.stop_us(0, 0) is None
    assert guard.check_us(0) is None


def test_a_second_welcome_leaves_the_leases_as_they_are() -> None:
    guard = welcomed()
    guard.sent(STREAM, 1, at_us=1_000)
    guard.acknowledged(STREAM, 1, partitions=[3])
    guard.welcome(STREAM, worker_lease_us=LEASE_US, hello_sent_us=50 * SECOND)
    assert guard.ends_us(3) == 1_000 + LEASE_US


def test_a_lease_runs_from_the_sending_of_the_newest_acknowledged_heartbeat() -> None:
    guard = welcomed()
    for sequence, sent_us in ((1, 5_000), (2, 9_000)):
        guard.sent(STREAM, sequence, at_us=sent_us)
    guard.acknowledged(STREAM, 2, partitions=[3])
    guard.acknowledged(STREAM, 1, partitions=[3])
    assert guard.ends_us(3) == 9_000 + LEASE_US
    assert guard.newest_sequence == 2


def test_an_acknowledgement_extends_the_partitions_that_it_lists_and_no_other() -> None:
    guard = welcomed()
    guard.sent(STREAM, 1, at_us=5_000)
    guard.sent(STREAM, 2, at_us=9_000)
    guard.acknowledged(STREAM, 1, partitions=[3, 4])
    guard.acknowledged(STREAM, 2, partitions=[4])
    assert [guard.ends_us(number) for number in (3, 4, 5)] == [5_000 + LEASE_US, 9_000 + LEASE_US, None]


def test_an_acknowledgement_of_what_was_never_sent_extends_nothing() -> None:
    guard = welcomed()
    guard.sent(STREAM, 1, at_us=5_000)
    guard.acknowledged(STREAM, 2, partitions=[3])
    assert guard.ends_us(3) is None


def test_an_assignment_extends_its_partition_to_the_heartbeat_that_it_names() -> None:
    guard = welcomed(hello_sent_us=1_000)
    guard.sent(STREAM, 1, at_us=5_000)
    guard.assigned(STREAM, 3, heartbeat_sequence=0)
    assert guard.ends_us(3) == 1_000 + LEASE_US
    assert guard.newest_sequence == 0
    assert guard.assigned(STREAM, 3, heartbeat_sequence=1)
    assert not guard.assigned(STREAM, 3, heartbeat_sequence=0)
    guard.assigned(STREAM, 4, heartbeat_sequence=0)
    guard.assigned(STREAM, 5, heartbeat_sequence=99)
    assert [guard.ends_us(number) for number in (3, 4, 5)] == [5_000 + LEASE_US, 1_000 + LEASE_US, None]
    assert guard.newest_sequence == 1


@pytest.mark.parametrize(("grace_us", "margin_us"), [(3 * SECOND, 4 * SECOND), (30 * SECOND, 11 * SECOND)])
def test_an_attempt_is_stopped_its_grace_and_a_second_before_the_end(grace_us: int, margin_us: int) -> None:
    guard = welcomed()
    guard.assigned(STREAM, 3, heartbeat_sequence=0)
    assert guard.stop_us(3, grace_us) == LEASE_US - margin_us
    check_us = guard.check_us(3)
    assert check_us is not None
    assert check_us <= LEASE_US - margin_us


def test_an_assignment_is_covered_by_the_heartbeat_that_its_sender_had_processed() -> None:
    assert not LeaseGuard().covers(STREAM, 0, now_us=0)
    guard = welcomed()
    guard.sent(STREAM, 1, at_us=5 * SECOND)
    assert guard.covers(STREAM, 0, now_us=LEASE_US - DRIFT_US - 1)
    assert not guard.covers(STREAM, 0, now_us=LEASE_US - DRIFT_US)
    assert guard.covers(STREAM, 1, now_us=LEASE_US)
    assert not guard.covers(STREAM, 99, now_us=6 * SECOND)


def test_the_greeting_that_counts_as_heartbeat_0_is_that_of_the_newest_stream() -> None:
    guard = welcomed()
    guard.welcome(STREAM, worker_lease_us=LEASE_US, hello_sent_us=30 * SECOND)
    assert guard.covers(STREAM, 0, now_us=80 * SECOND)
    assert not guard.covers(STREAM, 0, now_us=30 * SECOND + LEASE_US - DRIFT_US)


def test_a_heartbeat_of_long_ago_is_forgotten_and_covers_nothing() -> None:
    guard = welcomed()
    for sequence in range(1, 1_000):
        guard.sent(STREAM, sequence, at_us=sequence * 5 * SECOND)
    assert not guard.covers(STREAM, 1, now_us=6 * SECOND)
    guard.acknowledged(STREAM, 1, partitions=[3])
    assert guard.ends_us(3) is None
    assert len(guard._sent) <= LEASE_US // (5 * SECOND) + 1


# ── whatever happens ──────────────────────────────────────────────────────────────────────────────────────

PARTITIONS = st.integers(0, 3)
STREAMS = st.sampled_from([1, 2, 3])


class Leases(RuleBasedStateMachine):
    """Any order of streams, heartbeats, acknowledgements and assignments, beside a plain record of each."""

    def __init__(self) -> None:
        super().__init__()
        self.guard = LeaseGuard()
        self.now_us = 0
        self.sequence = 0
        #: Sending time of each heartbeat by stream and number; 0 is the newest greeting there.
        self.sent: dict[tuple[int, int], int] = {}
        #: Newest sending time that an owner has confirmed for a partition.
        self.confirmed: dict[int, int] = {}

    @initialize()
    def greet_all(self) -> None:
        for stream in (1, 2, 3):
            self.greet(stream)

    @rule(stream=STREAMS)
    def greet(self, stream: int) -> None:
        self.sent[stream, 0] = self.now_us
        self.guard.end_stream(stream)
        self.guard.welcome(stream, worker_lease_us=LEASE_US, hello_sent_us=self.now_us)

    @rule(pause_us=st.integers(0, 2 * LEASE_US))
    def pass_time(self, pause_us: int) -> None:
        self.now_us += pause_us

    @rule(stream=STREAMS)
    def beat(self, stream: int) -> None:
        self.sequence += 1
        self.sent[stream, self.sequence] = self.now_us
        self.guard.sent(stream, self.sequence, at_us=self.now_us)

    def _recent(self, stream: int, back: int) -> int:
        """Number of a heartbeat of the stream, the greeting if there are not so many."""
        return ([0] * 6 + sorted(number for known, number in self.sent if known == stream))[-1 - back]

    @rule(stream=STREAMS, back=st.integers(0, 5), partitions=st.sets(PARTITIONS))
    def acknowledge(self, stream: int, back: int, partitions: set[int]) -> None:
        number = self._recent(stream, back)
        self.guard.acknowledged(stream, number, partitions=partitions)
        if number:
            self._confirm(partitions, self.sent[stream, number])

    @rule(stream=STREAMS, back=st.integers(0, 5), partition=PARTITIONS)
    def assign(self, stream: int, back: int, partition: int) -> None:
        named = self._recent(stream, back)
        is_covered = self.guard.covers(stream, named, now_us=self.now_us)
        assert is_covered == (self.now_us < self.sent[stream, named] + LEASE_US - DRIFT_US)
        if is_covered:
            self.guard.assigned(stream, partition, heartbeat_sequence=named)
            self._confirm({partition}, self.sent[stream, named])

    @rule(stream=STREAMS, number=st.integers(1, 60), partitions=st.sets(PARTITIONS))
    def hear_nonsense(self, stream: int, number: int, partitions: set[int]) -> None:
        """A node names what was sent to another one, or to nobody."""
        if (stream, number) not in self.sent:
            self.guard.acknowledged(stream, number, partitions=partitions)
            assert not self.guard.covers(stream, number, now_us=self.now_us)

    @invariant()
    def the_last_end_is_not_before_any_other(self) -> None:
        for partition in range(4):
            ends_us = self.guard.ends_us(partition)
            assert ends_us is None or ends_us <= self.guard.last_end_us

    @invariant()
    def what_is_assigned_under_the_newest_heartbeat_or_an_older_one_is_over_at_the_last_end(self) -> None:
        """What a guardian's report rests on, over all streams."""
        for (stream, number), sent_us in self.sent.items():
            if 0 < number <= self.guard.newest_sequence:
                assert sent_us + LEASE_US <= self.guard.last_end_us
                assert not self.guard.covers(stream, number, now_us=self.guard.last_end_us - DRIFT_US)

    @invariant()
    def trusts_no_longer_than_a_lease_from_what_was_confirmed_for_that_partition(self) -> None:
        for partition in range(4):
            ends_us = self.guard.ends_us(partition)
            confirmed_us = self.confirmed.get(partition)
            if confirmed_us is None:
                assert ends_us is None
                continue
            # A lease that has run out may have been forgotten before it was confirmed.
            assert ends_us is None or ends_us <= confirmed_us + LEASE_US
            if confirmed_us + LEASE_US > self.now_us:
                assert ends_us == confirmed_us + LEASE_US

    @invariant()
    def names_no_heartbeat_that_was_not_sent(self) -> None:
        assert 0 <= self.guard.newest_sequence <= self.sequence

    def _confirm(self, partitions: set[int], sent_us: int) -> None:
        for partition in partitions:
            self.confirmed[partition] = max(sent_us, self.confirmed.get(partition, sent_us))


TestLeases = Leases.TestCase


@given(grace_us=st.integers(0, 10 * LEASE_US), sent_us=st.integers(0, 10**12))
def test_every_stop_leaves_its_grace_and_a_second_before_the_end(grace_us: int, sent_us: int) -> None:
    guard = welcomed(hello_sent_us=sent_us)
    guard.assigned(STREAM, 0, heartbeat_sequence=0)
    stop_us, ends_us, check_us = guard.stop_us(0, grace_us), guard.ends_us(0), guard.check_us(0)
    assert stop_us is not None
    assert ends_us is not None
    assert check_us is not None
    assert check_us <= stop_us
    assert stop_us + guard.grace_us(grace_us) + DRIFT_US == ends_us == sent_us + LEASE_US
    assert guard.grace_us(grace_us) <= min(grace_us, LEASE_US // 6)
