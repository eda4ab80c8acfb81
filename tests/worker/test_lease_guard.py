"""A worker's leases: one per partition, trusted from the sending of what an owner has processed (I1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ostinato.core.instants import SECOND
from ostinato.worker.lease_guard import DRIFT_US, LeaseGuard

LEASE_US = 60 * SECOND


def welcomed(*, hello_sent_us: int = 0) -> LeaseGuard:
    guard = LeaseGuard()
    guard.welcome(worker_lease_us=LEASE_US, hello_sent_us=hello_sent_us)
    return guard


def test_a_welcome_extends_nothing_and_says_how_long_a_lease_is() -> None:
    guard = welcomed()
    assert guard.worker_lease_us == LEASE_US
    assert guard.ends_us(0) is None
    assert guard.stop_us(0, 0) is None
    assert guard.check_us(0) is None


def test_a_second_welcome_leaves_the_leases_as_they_are() -> None:
    guard = welcomed()
    guard.sent(1, 1_000)
    guard.acknowledged(1_000, [3])
    guard.welcome(worker_lease_us=LEASE_US, hello_sent_us=50 * SECOND)
    assert guard.ends_us(3) == 1_000 + LEASE_US


def test_a_lease_runs_from_the_sending_of_the_newest_acknowledged_heartbeat() -> None:
    guard = welcomed()
    for sequence, sent_us in ((1, 5_000), (2, 9_000)):
        guard.sent(sequence, sent_us)
    guard.acknowledged(9_000, [3])
    guard.acknowledged(5_000, [3])
    assert guard.ends_us(3) == 9_000 + LEASE_US
    assert guard.newest_sequence == 2


def test_an_acknowledgement_extends_the_partitions_that_it_lists_and_no_other() -> None:
    guard = welcomed()
    guard.sent(1, 5_000)
    guard.sent(2, 9_000)
    guard.acknowledged(5_000, [3, 4])
    guard.acknowledged(9_000, [4])
    assert [guard.ends_us(number) for number in (3, 4, 5)] == [5_000 + LEASE_US, 9_000 + LEASE_US, None]


def test_an_acknowledgement_of_what_was_never_sent_extends_nothing() -> None:
    guard = welcomed()
    guard.sent(1, 5_000)
    guard.acknowledged(999 * SECOND, [3])
    assert guard.ends_us(3) is None


def test_an_assignment_extends_its_partition_to_the_heartbeat_that_it_names() -> None:
    guard = welcomed(hello_sent_us=1_000)
    guard.sent(1, 5_000)
    guard.assigned(3, 0)
    assert guard.ends_us(3) == 1_000 + LEASE_US
    assert guard.newest_sequence == 0
    assert guard.assigned(3, 1)
    assert not guard.assigned(3, 0)
    guard.assigned(4, 0)
    guard.assigned(5, 99)
    assert [guard.ends_us(number) for number in (3, 4, 5)] == [5_000 + LEASE_US, 1_000 + LEASE_US, None]
    assert guard.newest_sequence == 1


@pytest.mark.parametrize(("grace_us", "margin_us"), [(3 * SECOND, 4 * SECOND), (30 * SECOND, 11 * SECOND)])
def test_an_attempt_is_stopped_its_grace_and_a_second_before_the_end(grace_us: int, margin_us: int) -> None:
    guard = welcomed()
    guard.assigned(3, 0)
    assert guard.stop_us(3, grace_us) == LEASE_US - margin_us
    check_us = guard.check_us(3)
    assert check_us is not None
    assert check_us <= LEASE_US - margin_us


def test_an_assignment_is_covered_by_the_heartbeat_that_its_sender_had_processed() -> None:
    assert not LeaseGuard().covers(0, 0)
    guard = welcomed()
    guard.sent(1, 5 * SECOND)
    assert guard.covers(0, LEASE_US - DRIFT_US - 1)
    assert not guard.covers(0, LEASE_US - DRIFT_US)
    assert guard.covers(1, LEASE_US)
    assert not guard.covers(99, 6 * SECOND)


def test_the_greeting_that_counts_as_heartbeat_0_is_that_of_the_newest_stream() -> None:
    guard = welcomed()
    guard.welcome(worker_lease_us=LEASE_US, hello_sent_us=30 * SECOND)
    assert guard.covers(0, 80 * SECOND)
    assert not guard.covers(0, 30 * SECOND + LEASE_US - DRIFT_US)


def test_a_heartbeat_of_long_ago_is_forgotten_and_covers_nothing() -> None:
    guard = welcomed()
    for sequence in range(1, 1_000):
        guard.sent(sequence, sequence * 5 * SECOND)
    assert not guard.covers(1, 6 * SECOND)
    guard.acknowledged(5 * SECOND, [3])
    assert guard.ends_us(3) is None
    assert len(guard._sent) <= LEASE_US // (5 * SECOND) + 1


# ── whatever happens ──────────────────────────────────────────────────────────────────────────────────────

PARTITIONS = st.integers(0, 3)


class Leases(RuleBasedStateMachine):
    """Any order of streams, heartbeats, acknowledgements and assignments, beside a plain record of each."""

    def __init__(self) -> None:
        super().__init__()
        self.guard = LeaseGuard()
        self.now_us = 0
        self.sequence = 0
        #: Sending time of each heartbeat; 0 is the newest greeting.
        self.sent: dict[int, int] = {}
        #: Newest sending time that an owner has confirmed for a partition.
        self.confirmed: dict[int, int] = {}

    @initialize()
    def greet_first(self) -> None:
        self.greet()

    @rule()
    def greet(self) -> None:
        self.sent[0] = self.now_us
        self.guard.welcome(worker_lease_us=LEASE_US, hello_sent_us=self.now_us)

    @rule(pause_us=st.integers(0, 2 * LEASE_US))
    def pass_time(self, pause_us: int) -> None:
        self.now_us += pause_us

    @rule()
    def beat(self) -> None:
        self.sequence += 1
        self.sent[self.sequence] = self.now_us
        self.guard.sent(self.sequence, self.now_us)

    @rule(back=st.integers(0, 5), partitions=st.sets(PARTITIONS))
    def acknowledge(self, back: int, partitions: set[int]) -> None:
        sent_us = self.sent.get(max(1, self.sequence - back))
        if sent_us is not None:
            self.guard.acknowledged(sent_us, partitions)
            self._confirm(partitions, sent_us)

    @rule(back=st.integers(0, 5), partition=PARTITIONS)
    def assign(self, back: int, partition: int) -> None:
        named = max(0, self.sequence - back)
        is_covered = self.guard.covers(named, self.now_us)
        assert is_covered == (self.now_us < self.sent[named] + LEASE_US - DRIFT_US)
        if is_covered:
            self.guard.assigned(partition, named)
            self._confirm({partition}, self.sent[named])

    @rule(sent_us=st.integers(-LEASE_US, 10 * LEASE_US), partitions=st.sets(PARTITIONS))
    def hear_nonsense(self, sent_us: int, partitions: set[int]) -> None:
        if sent_us not in self.sent.values():
            self.guard.acknowledged(sent_us, partitions)

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
    guard.assigned(0, 0)
    stop_us, ends_us, check_us = guard.stop_us(0, grace_us), guard.ends_us(0), guard.check_us(0)
    assert stop_us is not None
    assert ends_us is not None
    assert check_us is not None
    assert check_us <= stop_us
    assert stop_us + guard.grace_us(grace_us) + DRIFT_US == ends_us == sent_us + LEASE_US
    assert guard.grace_us(grace_us) <= min(grace_us, LEASE_US // 6)
