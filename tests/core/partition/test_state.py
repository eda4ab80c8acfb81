"""What an owner's memory knows of wishes to cancel, in whichever order the answers to commits arrive."""

from __future__ import annotations

from support.partition_facts import NOW_US, instance, running

from ostinato.core.partition.effects import Effects
from ostinato.core.partition.fire import request_cancel
from ostinato.core.partition.running import RunningAttempt
from ostinato.core.partition.state import Memory, settle
from ostinato.core.states import State


def _assigned(attempt: RunningAttempt) -> Effects:
    return Effects(started=[attempt])


def _wished(*, attempt_id: str = "a1") -> Effects:
    effects = Effects()
    subject = instance(state=State.RUNNING, attempt=1, attempt_id=attempt_id)
    request_cancel(subject, "a mistake", by="ann", now_us=NOW_US, into=effects)
    return effects


def test_a_wish_about_an_attempt_that_is_being_entered_stays_with_it() -> None:
    """Its assignment is on record, and the answer to that is later than the answer to the wish."""
    attempt = running()
    memory = Memory(epochs={3: 1}, entering={attempt.attempt_id: attempt})
    settle(memory, _wished(), dropped=frozenset())
    settle(memory, _assigned(attempt), dropped=frozenset())
    known = memory.running["i1"]
    assert (known.cancel_requested, known.cancel_reason) == (True, "a mistake")


def test_a_wish_that_was_not_written_concerns_no_attempt() -> None:
    attempt = running()
    memory = Memory(epochs={3: 1}, entering={attempt.attempt_id: attempt})
    settle(memory, _wished(), dropped=frozenset({"i1"}))
    assert not attempt.cancel_requested


def test_what_a_warm_up_has_read_of_a_wish_outlasts_the_late_answer_to_the_assignment() -> None:
    """Its partition was doubted and taken anew meanwhile."""
    adopted = running()
    memory = Memory(epochs={3: 2}, running={"i1": adopted})
    adopted.cancel_requested, adopted.cancel_reason = True, "a mistake"
    attempt = running()
    settle(memory, _assigned(attempt), dropped=frozenset())
    assert memory.running["i1"] is attempt
    assert (attempt.cancel_requested, attempt.cancel_reason) == (True, "a mistake")


def test_a_wish_concerns_the_attempt_that_it_was_about_and_no_later_one() -> None:
    """Its instance has ended and been replayed before its answer arrived."""
    later = running(attempt_id="a2")
    memory = Memory(epochs={3: 1}, running={"i1": later})
    settle(memory, _wished(attempt_id="a1"), dropped=frozenset())
    assert not later.cancel_requested
    settle(memory, _assigned(running(attempt_id="a3")), dropped=frozenset())
    assert not memory.running["i1"].cancel_requested
