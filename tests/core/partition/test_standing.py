"""When a node that no worker reaches hands over: in time, never without need, and not to and fro."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.partition.standing import Standing, StandingWatch

PATIENCE, FRESH, GAP = 30, 15, 3

#: How far the clock goes between two looks, whether a heartbeat has come meanwhile, whether one is connected,
#: and whether others serve.
LOOKS = st.lists(
    st.tuples(st.integers(0, 5), st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=200
)


class Node:
    """One node that looks."""

    def __init__(self) -> None:
        self.watch = StandingWatch(patience_us=PATIENCE, fresh_us=FRESH, gap_us=GAP)
        self.standing: Standing = ""
        self.now_us = 1_000

    def look(self, *, heard_us: int | None = None, others_serve: bool, after_us: int = 1) -> Standing:
        self.now_us += after_us
        self.standing = self.watch.look(
            self.standing, now_us=self.now_us, heard_us=heard_us, others_serve=others_serve
        )
        return self.standing


@given(LOOKS)
def test_a_node_becomes_idle_only_after_its_whole_patience_with_others_that_serve_and_no_worker(
    looks: list[tuple[int, bool, bool, bool]],
) -> None:
    node = Node()
    heard_us: int | None = None
    told: list[tuple[int, int | None, bool, Standing]] = []
    for after_us, beats, is_connected, others_serve in looks:
        if beats:
            heard_us = node.now_us + after_us
        shown = heard_us if is_connected else None
        node.look(heard_us=shown, others_serve=others_serve, after_us=after_us)
        told.append((node.now_us, shown, others_serve, node.standing))
    for place, (before, after) in enumerate(pairwise(told), start=1):
        if after[3] != "idle" or before[3] == "idle":
            continue
        recent = [look for look in told[: place + 1] if look[0] > after[0] - PATIENCE]
        assert all(others_serve for _, _, others_serve, _ in recent)
        assert all(heard is None or after[0] - heard >= PATIENCE for _, heard, _, _ in recent)
        assert all(later[0] - earlier[0] < GAP for earlier, later in pairwise(recent))


@given(LOOKS)
def test_a_worker_that_is_heard_and_nothing_else_ends_it(looks: list[tuple[int, bool, bool, bool]]) -> None:
    node = Node()
    node.standing = "idle"
    for after_us, beats, _, others_serve in looks:
        heard_us = node.now_us + after_us if beats else None
        if node.standing == "idle":
            expected = "serving" if beats else "idle"
            assert node.look(heard_us=heard_us, others_serve=others_serve, after_us=after_us) == expected


def test_it_counts_from_the_last_heartbeat_where_a_connection_is_cut_silently() -> None:
    node = Node()
    for _ in range(50):
        assert node.look(heard_us=node.now_us + 1, others_serve=True) == "serving"
    heard_us = node.now_us
    while node.look(heard_us=heard_us, others_serve=True) == "serving":
        pass
    assert node.now_us - heard_us == FRESH
    while node.look(heard_us=heard_us, others_serve=True) != "idle":
        pass
    assert node.now_us - heard_us == PATIENCE


def test_without_a_worker_anywhere_nobody_becomes_idle() -> None:
    node = Node()
    assert {node.look(others_serve=False) for _ in range(10 * PATIENCE)} == {""}
