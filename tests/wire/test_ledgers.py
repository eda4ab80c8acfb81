"""Credits, grants and unacknowledged outcomes: counts that repeated and late messages cannot upset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ostinato.core.failure.failure import Cause, Failure
from ostinato.core.model import Outcome
from ostinato.errors import InternalError
from ostinato.wire.ledgers import CreditLedger, GrantLedger, UnacknowledgedOutcomes, outcome_bytes

POOLS = st.sampled_from(["process", "async"])
COUNTS = st.dictionaries(POOLS, st.integers(-5, 50))


def outcome(attempt_id: str, *, result: bytes = b"null") -> Outcome:
    return Outcome(
        instance_id="i", attempt=1, attempt_id=attempt_id, started_us=1, finished_us=2, result=result
    )


# ── credits ───────────────────────────────────────────────────────────────────────────────────────────


def test_credit_is_what_is_granted_less_what_is_used() -> None:
    ledger = CreditLedger({"process": 4})
    ledger.use("process", 3)
    assert ledger.available("process") == 1
    assert ledger.update({"process": 6})
    assert ledger.available("process") == 3
    assert ledger.available("async") == 0
    assert ledger.pools == ["process"]


def test_a_grant_that_goes_back_is_ignored() -> None:
    ledger = CreditLedger({"process": 4})
    ledger.use("process", 4)
    assert not ledger.update({"process": 2})
    assert not ledger.update({"process": 4})
    assert not ledger.update({})
    assert ledger.available("process") == 0


def test_more_than_the_credit_cannot_be_used() -> None:
    ledger = CreditLedger({"process": 1})
    with pytest.raises(InternalError, match="credits"):
        ledger.use("process", 2)
    with pytest.raises(InternalError, match="credits"):
        ledger.use("process", -1)
    with pytest.raises(InternalError, match="credits"):
        ledger.use("async")
    assert ledger.available("process") == 1


def test_credit_that_was_not_spent_is_given_back() -> None:
    ledger = CreditLedger({"process": 3})
    ledger.use("process", 3)
    ledger.give_back("process", 2)
    assert ledger.available("process") == 2
    with pytest.raises(InternalError, match="credits"):
        ledger.give_back("process", 2)


@given(updates=st.lists(COUNTS), late=st.randoms(use_true_random=False), used=st.lists(POOLS))
def test_repeated_and_late_updates_change_nothing(
    updates: list[dict[str, int]], late: object, used: list[str]
) -> None:
    ledger, disturbed = CreditLedger(), CreditLedger()
    for update in updates:
        ledger.update(update)
    shuffled = updates + updates[::-1]
    late.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    for update in shuffled:
        disturbed.update(update)
    for pool in used:
        assert ledger.available(pool) == disturbed.available(pool) >= 0
        if ledger.available(pool):
            ledger.use(pool)
            disturbed.use(pool)


# ── grants ────────────────────────────────────────────────────────────────────────────────────────────


def test_every_free_slot_is_granted_at_first() -> None:
    assert GrantLedger({"process": 4, "async": 100}).granted == {"process": 4, "async": 100}
    assert GrantLedger({"process": 4}, {"process": 3}).granted == {"process": 1}
    assert GrantLedger({"process": 4}, {"process": 9}).granted == {"process": 0}


def test_a_slot_is_granted_again_when_its_attempt_has_ended() -> None:
    ledger = GrantLedger({"process": 2})
    assert ledger.receive("process")
    assert ledger.granted == {"process": 2}
    assert ledger.release("process")
    assert ledger.granted == {"process": 3}
    assert ledger.outstanding("process") == 2


def test_an_assignment_beyond_the_grants_is_refused() -> None:
    ledger = GrantLedger({"process": 1})
    assert ledger.receive("process")
    assert not ledger.receive("process")
    assert not ledger.receive("gpu")
    assert ledger.occupied == {"process": 1}


def test_a_release_that_is_repeated_grants_nothing() -> None:
    ledger = GrantLedger({"process": 2})
    assert not ledger.release("process")
    assert not ledger.release("gpu")
    assert ledger.granted == {"process": 2}


def test_an_assignment_that_the_worker_already_has_gives_its_credit_back() -> None:
    ledger = GrantLedger({"process": 2}, {"process": 1})
    assert ledger.receive("process")
    assert ledger.release("process")
    assert ledger.occupied == {"process": 1}
    assert ledger.outstanding("process") == 1


def test_too_many_attempts_for_smaller_pools_delay_the_first_grant() -> None:
    ledger = GrantLedger({"process": 1}, {"process": 3})
    assert [(ledger.release("process"), ledger.granted["process"]) for _ in range(3)] == [
        (True, 0),
        (True, 0),
        (True, 1),
    ]


class BothSides(RuleBasedStateMachine):
    """A worker and a node; reports are repeated, delayed and reordered, and streams replaced."""

    capacity = {"process": 3, "async": 5}  # noqa: RUF012 - never changed

    def __init__(self) -> None:
        super().__init__()
        self.running: list[str] = []
        self.connect()

    def connect(self) -> None:
        occupied = {pool: self.running.count(pool) for pool in self.capacity}
        self.grants = GrantLedger(self.capacity, occupied)
        self.credits = CreditLedger(self.grants.granted)
        self.reports = [self.grants.granted]
        self.on_the_way: list[str] = []

    @rule()
    def reconnect(self) -> None:
        """What was under way is lost; what runs goes on."""
        self.connect()

    @rule(pool=POOLS)
    def assign(self, pool: str) -> None:
        if self.credits.available(pool):
            self.credits.use(pool)
            self.on_the_way.append(pool)

    @rule()
    def arrive(self) -> None:
        if self.on_the_way:
            pool = self.on_the_way.pop(0)
            assert self.grants.receive(pool), "an assignment within the credit finds its slot"
            self.running.append(pool)

    @rule(number=st.integers(0, 7))
    def end(self, number: int) -> None:
        if self.running:
            pool = self.running.pop(number % len(self.running))
            assert self.grants.release(pool)
            self.reports.append(self.grants.granted)

    @rule(number=st.integers(0, 20))
    def report(self, number: int) -> None:
        self.credits.update(self.reports[number % len(self.reports)])

    @invariant()
    def slots_are_promised_once(self) -> None:
        for pool, slots in self.capacity.items():
            promised = self.credits.available(pool) + self.on_the_way.count(pool)
            assert 0 <= promised <= self.grants.outstanding(pool)
            assert self.grants.outstanding(pool) + self.running.count(pool) == slots
            assert self.credits.available(pool) >= 0


TestBothSides = BothSides.TestCase


# ── outcomes ──────────────────────────────────────────────────────────────────────────────────────────


def test_outcomes_are_taken_in_order_and_once_per_stream() -> None:
    ledger = UnacknowledgedOutcomes()
    for name in "abcde":
        assert ledger.add(outcome(name))
    assert [item.attempt_id for item in ledger.take(count_max=2, bytes_max=10**6)] == ["a", "b"]
    assert [item.attempt_id for item in ledger.take(count_max=9, bytes_max=10**6)] == ["c", "d", "e"]
    assert ledger.take(count_max=9, bytes_max=10**6) == []
    assert [item.attempt_id for item in ledger.pending] == list("abcde")


def test_a_new_stream_repeats_what_is_not_acknowledged() -> None:
    ledger = UnacknowledgedOutcomes()
    for name in "abcd":
        ledger.add(outcome(name))
    ledger.take(count_max=3, bytes_max=10**6)
    assert [item.attempt_id for item in ledger.acknowledge(["b", "b", "never heard of"])] == ["b"]
    ledger.resume()
    assert [item.attempt_id for item in ledger.take(count_max=9, bytes_max=10**6)] == ["a", "c", "d"]


def test_batches_are_bounded_by_bytes_and_never_empty() -> None:
    ledger = UnacknowledgedOutcomes()
    for name in "abc":
        ledger.add(outcome(name, result=b"x" * 1_000))
    size = outcome_bytes(outcome("a", result=b"x" * 1_000))
    assert len(ledger.take(count_max=9, bytes_max=2 * size)) == 2
    assert len(ledger.take(count_max=9, bytes_max=1)) == 1


def test_the_first_outcome_of_an_attempt_stands() -> None:
    ledger = UnacknowledgedOutcomes()
    assert ledger.add(outcome("a", result=b"1"))
    assert not ledger.add(outcome("a", result=b"2"))
    assert [item.result for item in ledger.pending] == [b"1"]
    assert len(ledger) == 1


def test_long_parts_of_a_failure_count_as_bytes() -> None:
    failure = Failure(
        "EIO", "transient", "m" * 100, chain=(Cause("OSError", "c" * 100),), traceback="t" * 100
    )
    failed = Outcome(instance_id="i", attempt=1, attempt_id="a", started_us=1, finished_us=2, failure=failure)
    assert outcome_bytes(failed) >= 300


@given(
    steps=st.lists(st.tuples(st.sampled_from(["add", "acknowledge", "take", "resume"]), st.integers(0, 6)))
)
def test_nothing_is_lost_and_nothing_is_counted_twice(steps: list[tuple[str, int]]) -> None:
    ledger = UnacknowledgedOutcomes()
    expected: dict[str, Outcome] = {}
    sent: set[str] = set()
    for step, number in steps:
        name = str(number)
        if step == "add":
            assert ledger.add(outcome(name)) == (name not in expected)
            expected.setdefault(name, outcome(name))
        elif step == "acknowledge":
            ledger.acknowledge([name])
            expected.pop(name, None)
            sent.discard(name)
        elif step == "take":
            taken = [item.attempt_id for item in ledger.take(count_max=max(1, number), bytes_max=10**6)]
            assert taken == [name for name in expected if name not in sent][: max(1, number)]
            sent |= set(taken)
        else:
            ledger.resume()
            sent.clear()
        assert ledger.pending == list(expected.values())
        assert ledger.unsent_count == len(expected) - len(sent)
        assert ledger.size_bytes == sum(map(outcome_bytes, expected.values()))
