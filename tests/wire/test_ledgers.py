"""Credits, grants and unacknowledged outcomes: counts that repeated and late messages cannot upset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.failure.failure import Cause, Failure
from ostinato.core.model import Outcome
from ostinato.errors import InternalError
from ostinato.wire.ledgers import CreditLedger, OutcomeQueue, UnacknowledgedOutcomes, outcome_bytes

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


def test_unused_credit_that_is_wanted_is_given_back_and_cannot_be_spent() -> None:
    ledger = CreditLedger({"process": 4})
    ledger.use("process", 1)
    ledger.want({"process": 2, "async": 1})
    assert ledger.return_wanted()
    assert not ledger.return_wanted()
    assert (ledger.available("process"), ledger.returned) == (1, {"process": 2})
    ledger.want({"process": 9})
    assert ledger.return_wanted()
    assert (ledger.available("process"), ledger.returned) == (0, {"process": 3})


def test_the_newest_wish_counts() -> None:
    ledger = CreditLedger({"process": 4})
    ledger.want({"process": 2})
    ledger.want({})
    assert not ledger.return_wanted()
    assert ledger.returned == {}


# ── outcomes ──────────────────────────────────────────────────────────────────────────────────────────


def queued(names: str, *, result: bytes = b"null") -> tuple[UnacknowledgedOutcomes, OutcomeQueue]:
    kept = UnacknowledgedOutcomes()
    queue = OutcomeQueue(kept)
    for name in names:
        assert kept.add(outcome(name, result=result))
    queue.add(names)
    return kept, queue


def take(queue: OutcomeQueue, *, count_max: int = 9, bytes_max: int = 10**6) -> list[str]:
    return [item.attempt_id for item in queue.take(count_max=count_max, bytes_max=bytes_max)]


def test_outcomes_are_taken_in_order_and_once_per_stream() -> None:
    kept, queue = queued("abcde")
    assert take(queue, count_max=2) == ["a", "b"]
    assert take(queue) == ["c", "d", "e"]
    assert take(queue) == []
    assert (queue.unsent_count, queue.sent_count) == (0, 5)
    assert [item.attempt_id for item in kept.pending] == list("abcde")


def test_what_was_dropped_is_repeated_before_what_waits_and_only_where_no_answer_came() -> None:
    kept, queue = queued("abcd")
    take(queue, count_max=3)
    assert [item.attempt_id for item in kept.acknowledge(["b", "b", "never heard of"])] == ["b"]
    queue.answered(["b", "never heard of"])
    queue.repeat()
    assert take(queue) == ["a", "c", "d"]


def test_what_waits_for_an_answer_is_not_queued_again_and_what_was_answered_is() -> None:
    _, queue = queued("ab")
    take(queue)
    queue.add("ab")
    assert take(queue) == []
    queue.answered("a")
    queue.add("ab")
    assert take(queue) == ["a"]


def test_an_outcome_that_another_node_has_acknowledged_leaves_no_more() -> None:
    kept, queue = queued("ab")
    kept.acknowledge(["a"])
    assert take(queue) == ["b"]
    assert queue.unsent_count == 0


def test_batches_are_bounded_by_bytes_and_never_empty() -> None:
    _, queue = queued("abc", result=b"x" * 1_000)
    size = outcome_bytes(outcome("a", result=b"x" * 1_000))
    assert len(take(queue, bytes_max=2 * size)) == 2
    assert len(take(queue, bytes_max=1)) == 1


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
    steps=st.lists(
        st.tuples(
            st.sampled_from(["add", "acknowledge", "refuse", "take", "repeat", "new stream"]),
            st.integers(0, 1),
            st.integers(0, 6),
        )
    )
)
def test_nothing_is_lost_and_nothing_is_counted_twice(steps: list[tuple[str, int, int]]) -> None:
    """Two streams: each carries what it was given and nobody has answered, and no outcome twice unasked."""
    kept = UnacknowledgedOutcomes()
    queues = [OutcomeQueue(kept), OutcomeQueue(kept)]
    expected: dict[str, Outcome] = {}
    given_to: list[set[str]] = [set(), set()]
    sent: list[set[str]] = [set(), set()]
    for step, number, count in steps:
        name, queue = str(count), queues[number]
        if step == "add":
            assert kept.add(outcome(name)) == (name not in expected)
            expected.setdefault(name, outcome(name))
            queue.add([name])
            given_to[number].add(name)
        elif step == "acknowledge":
            kept.acknowledge([name])
            expected.pop(name, None)
            for other in (0, 1):
                queues[other].answered([name])
                given_to[other].discard(name)
                sent[other].discard(name)
        elif step == "refuse":
            queue.answered([name])
            given_to[number].discard(name)
            sent[number].discard(name)
        elif step == "take":
            taken = take(queue, count_max=max(1, count))
            assert len(taken) == min(max(1, count), len(given_to[number] - sent[number]))
            assert set(taken) <= given_to[number] - sent[number]
            sent[number] |= set(taken)
        elif step == "repeat":
            queue.repeat()
            sent[number].clear()
        else:
            queues[number] = OutcomeQueue(kept)
            queues[number].add(expected)
            given_to[number], sent[number] = set(expected), set()
        assert kept.pending == list(expected.values())
        assert [queue.unsent_count for queue in queues] == [
            len(given_to[other] - sent[other]) for other in (0, 1)
        ]
        assert kept.size_bytes == sum(map(outcome_bytes, expected.values()))
