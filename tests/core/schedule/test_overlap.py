"""What a fire does while earlier instances of its task live."""

from __future__ import annotations

import msgspec
import pytest

from ostinato.core.model import Instance
from ostinato.core.schedule.overlap import LiveInstance, decide_overlap, replaced_cause, stands_before
from ostinato.core.states import State
from ostinato.errors import UserError

RUNNING = LiveInstance("one", "running", 10)
RETRYING = LiveInstance("two", "retry_waiting", 20)
WAITING = LiveInstance("three", "pending", 30, is_waiting_replacement=True)


@pytest.mark.parametrize("mode", ["allow", "forbid", "queue", "replace"])
def test_c043_with_nothing_alive_every_policy_creates(mode: str) -> None:
    assert decide_overlap(mode, live=[]) == ("create", (), "")


def test_allow_creates_beside_the_living() -> None:
    assert decide_overlap("allow", live=[RUNNING, RETRYING]).action == "create"


@pytest.mark.parametrize("state", ["blocked", "pending", "running", "retry_waiting"])
def test_c047_forbid_skips_with_the_reason_whatever_live_state(state: str) -> None:
    decision = decide_overlap("forbid", live=[LiveInstance("one", state, 10)])
    assert decision == ("skip", (), f"overlap forbid: one ({state}) has not ended")


def test_c047_queue_lets_wait_up_to_the_bound_and_then_skips_visibly() -> None:
    live = [RUNNING]
    for number in range(100):
        assert decide_overlap("queue", live=live).action == "wait"
        live.append(LiveInstance(f"queued-{number}", "pending", 100 + number))
    refused = decide_overlap("queue", live=live)
    assert refused == ("skip", (), "overlap queue: 101 are live, at most 100 may wait behind the first")
    assert decide_overlap("queue", live=live, queue_bound=101).action == "wait"
    alone = decide_overlap("queue", live=[RUNNING], queue_bound=0)
    assert alone == ("skip", (), "overlap queue: 1 is live, at most 0 may wait behind the first")


def test_c045_replace_cancels_the_old_and_waits_for_its_end() -> None:
    decision = decide_overlap("replace", live=[RETRYING, RUNNING])
    assert decision.action == "wait"
    assert decision.cancel == ("one", "two")
    assert decision.reason == "overlap replace: waits until one (running), two (retry_waiting) have ended"
    assert replaced_cause("four") == "replaced by four"


def test_a_waiting_replacement_is_itself_replaced() -> None:
    decision = decide_overlap("replace", live=[WAITING, RUNNING])
    assert decision.action == "wait"
    assert decision.cancel == ("one", "three")


def test_a_long_list_of_the_living_is_cut_in_the_reason() -> None:
    live = [LiveInstance(f"i{number}", "pending", number) for number in range(50)]
    assert decide_overlap("forbid", live=live).reason == (
        "overlap forbid: i0 (pending), i1 (pending), i2 (pending) and 47 more have not ended"
    )


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        decide_overlap("maybe", live=[])
    assert caught.value.field == "overlap"


def test_an_instance_that_another_node_has_started_meanwhile_stands_not_before_itself() -> None:
    waiting = Instance(
        id="one",
        namespace="default",
        task="t",
        task_version=1,
        partition=0,
        state=State.PENDING,
        priority=0,
        due_us=10,
        created_us=10,
    )
    started = msgspec.structs.replace(waiting, state=State.RUNNING, attempt=1)
    assert not stands_before(started, waiting)
    assert stands_before(msgspec.structs.replace(started, id="two"), waiting)
