"""Slots over several nodes: whoever has work gets them, an idle cluster leaves them where they are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.instants import SECOND
from ostinato.wire.messages import Heartbeat
from ostinato.worker.credits import Credits
from tests.worker.many_nodes import ManyNodes, play
from tests.worker.one_stream import credits_of
from tests.worker.scripted_node import HEARTBEAT_US, assignment


class Node:
    """One node's end of a stream, which answers at once as a real one does."""

    def __init__(self, credits: Credits, stream: int) -> None:
        self.credits, self.stream = credits, stream
        self.used = self.returned = 0
        self.demand = 0
        self.beat_count = 0

    @property
    def free(self) -> int:
        return self.credits.granted(self.stream)["async"] - self.used - self.returned

    def beat(self) -> None:
        self.beat_count += 1
        wanted = self.credits.wanted(self.stream).get("async", 0)
        self.returned += max(0, min(wanted - self.returned, self.free))
        self.credits.heard(
            self.stream,
            returned={"async": self.returned},
            demand={"async": self.demand} if self.demand else {},
        )


class Shared:
    """A worker of `slots` and its nodes; `wanted` collects whose heartbeats were hastened."""

    def __init__(self, slots: int, count: int) -> None:
        self.credits = Credits({"async": slots})
        self.hastened: list[int] = []
        self.nodes: list[Node] = []
        for stream in range(1, count + 1):
            self.credits.open(
                stream, on_granted=lambda: None, on_wanted=lambda number=stream: self.hastened.append(number)
            )
            self.credits.welcomed(stream)
            self.nodes.append(Node(self.credits, stream))
        self.beat()

    def beat(self) -> None:
        """Hastened heartbeats first, then one of every node."""
        for _ in range(2):
            for node in self.nodes:
                node.beat()

    @property
    def free(self) -> list[int]:
        return [node.free for node in self.nodes]


def test_the_first_node_has_everything_until_others_come_and_then_all_have_as_much() -> None:
    assert Shared(9, 1).free == [9]
    assert Shared(9, 3).free == [3, 3, 3]
    assert sorted(Shared(10, 3).free) == [3, 3, 4]
    assert sorted(Shared(1, 3).free) == [0, 0, 1]
    assert sorted(Shared(2, 3).free) == [0, 0, 2] or sorted(Shared(2, 3).free) == [0, 1, 1]


@given(slots=st.integers(0, 20), count=st.integers(1, 4))
def test_an_idle_cluster_moves_nothing(slots: int, count: int) -> None:
    shared = Shared(slots, count)
    shared.beat()
    settled, hastened = shared.free, len(shared.hastened)
    for _ in range(20):
        shared.beat()
    assert shared.free == settled
    assert len(shared.hastened) == hastened
    assert sum(settled) == slots


def test_unused_credits_move_to_the_node_with_demand_at_once_and_come_back_when_it_has_none() -> None:
    shared = Shared(9, 3)
    first = shared.nodes[0]
    first.demand = 64
    first.beat()
    assert set(shared.hastened) >= {2, 3}
    shared.beat()
    assert shared.free == [9, 0, 0]
    first.demand = 0
    shared.beat()
    shared.beat()
    assert shared.free == [3, 3, 3]


def test_no_more_is_asked_for_than_the_demand() -> None:
    shared = Shared(9, 3)
    shared.nodes[0].demand = 1
    shared.nodes[0].beat()
    shared.nodes[0].demand = 0
    for node in shared.nodes[1:]:
        node.beat()
    assert sorted(shared.free) == [2, 3, 4]


def test_a_slot_that_becomes_free_goes_to_demand_and_otherwise_to_the_node_with_the_fewest() -> None:
    shared = Shared(6, 2)
    first, second = shared.nodes
    for _ in range(2):
        assert shared.credits.take(1, "async")
        first.used += 1
    shared.credits.give_back("async")
    assert shared.free == [2, 3]
    second.demand = 1
    second.beat()
    shared.credits.give_back("async")
    assert shared.free == [2, 4]


def test_two_nodes_with_demand_take_turns() -> None:
    shared = Shared(4, 2)
    for node in shared.nodes:
        while node.free:
            assert shared.credits.take(node.stream, "async")
            node.used += 1
        node.demand = 64
        node.beat()
    for _ in range(4):
        shared.credits.give_back("async")
    assert shared.free == [2, 2]


def test_what_was_promised_to_a_node_that_is_gone_is_usable_by_the_others_at_once() -> None:
    shared = Shared(9, 3)
    shared.credits.close(1)
    assert sum(node.free for node in shared.nodes[1:]) == 9


def test_nothing_is_promised_or_asked_back_while_granting_rests() -> None:
    shared = Shared(9, 3)
    shared.credits.pause_granting("no room")
    shared.nodes[0].demand = 5
    shared.beat()
    shared.credits.close(3)
    assert [node.free for node in shared.nodes[:2]] == [3, 3]
    shared.credits.resume_granting()
    assert sum(node.free for node in shared.nodes[:2]) == 9


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["take", "end", "beat", "demand", "lie", "close"]), st.integers(0, 2)),
        max_size=60,
    )
)
def test_over_all_nodes_no_slot_is_promised_twice_and_none_is_stranded(steps: list[tuple[str, int]]) -> None:
    shared = Shared(5, 3)
    taken = 0
    lied: set[int] = set()
    alive = {0, 1, 2}
    for step, number in steps:
        node = shared.nodes[number]
        if number not in alive:
            continue
        if step == "take" and shared.credits.take(node.stream, "async"):
            node.used += 1
            taken += 1
        elif step == "end" and taken:
            taken -= 1
            shared.credits.give_back("async")
        elif step == "beat" and number not in lied:
            node.beat()
        elif step == "demand":
            node.demand = 0 if node.demand else 7
        elif step == "lie":
            lied.add(number)
            shared.credits.heard(node.stream, returned={"async": 10**6}, demand={"async": 10**6})
        elif step == "close" and len(alive) > 1:
            alive.remove(number)
            shared.credits.close(node.stream)
        ledger = shared.credits._ledger
        promised = sum(ledger.outstanding(shared.nodes[other].stream, "async") for other in alive)
        assert promised + taken + ledger.free("async") == 5
        # Some node that lives may use every slot that nobody occupies.
        assert ledger.free("async") == 0


def test_a_slot_that_is_free_while_nobody_is_welcome_is_promised_to_whoever_comes() -> None:
    credits = credits_of({"async": 2}, 1)
    assert credits.take(1, "async")
    credits.close(1)
    credits.give_back("async")
    assert credits.open(2, on_granted=lambda: None, on_wanted=lambda: None) == {"async": 2}


# ── between nodes that are scripted ───────────────────────────────────────────────────────────────────────


def test_one_connected_node_alone_may_use_the_whole_worker_soon_after_the_others_are_gone() -> None:
    async def story(made: ManyNodes) -> None:
        await made.pass_time(2 * HEARTBEAT_US)
        assert made.free() == [3, 3, 3]
        for node in made.nodes[1:]:
            await node.kill()
        began_us = made.clock.boot_us()
        await made.nodes[0].until(lambda: made.free()[0] == 9)
        assert made.clock.boot_us() - began_us <= HEARTBEAT_US

    play(story)


def test_demand_moves_credits_within_a_heartbeat_and_without_waiting_for_the_others() -> None:
    async def story(made: ManyNodes) -> None:
        first = made.nodes[0]
        await made.pass_time(2 * HEARTBEAT_US)
        first.demand = {"async": 64}
        began_us = made.clock.boot_us()
        await first.until(lambda: made.free() == [9, 0, 0])
        assert made.clock.boot_us() - began_us <= HEARTBEAT_US
        first.demand = {}
        await made.pass_time(2 * HEARTBEAT_US)
        assert made.free() == [3, 3, 3]

    play(story)


def test_an_idle_worker_sends_one_heartbeat_an_interval_to_each_node() -> None:
    async def story(made: ManyNodes) -> None:
        await made.pass_time(2 * HEARTBEAT_US)
        for node in made.nodes:
            node.heard.clear()
        await made.pass_time(20 * HEARTBEAT_US)
        assert [len(node.all(Heartbeat)) for node in made.nodes] == [20, 20, 20]
        assert all(not beat.wanted for node in made.nodes for beat in node.all(Heartbeat))

    play(story)


def test_a_node_that_lies_about_what_it_gave_back_cannot_make_the_worker_take_too_much() -> None:
    async def story(made: ManyNodes) -> None:
        first, second, _ = made.nodes
        await made.pass_time(2 * HEARTBEAT_US)
        first.ledger._returned = {"async": 50}
        await made.pass_time(2 * HEARTBEAT_US)
        items = [assignment("forever", f"a{number}", partition=0) for number in range(3)]
        await made.assign(first, *items)
        others = [assignment("forever", f"b{number}", partition=1) for number in range(20)]
        await made.assign(second, *others)
        await made.pass_time(SECOND)
        assert made.worker.running_count <= 9
        assert all("no free slot" in outcome.unstarted_reason for outcome in first.outcomes)

    play(story)
