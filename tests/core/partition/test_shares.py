"""Fair shares: every partition gets one owner, sizes differ by one at most, nothing moves without need."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.partition.shares import Moves, moves, shares

NAMES = st.sampled_from([f"node-{number}" for number in range(8)])


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[str], set[str]]:
    """Owners of some partitions (free ones, and ones of dead nodes among them), and who lives."""
    live = draw(st.sets(NAMES, min_size=1, max_size=6))
    count = draw(st.integers(min_value=0, max_value=70))
    owners = draw(st.lists(st.one_of(st.just(""), NAMES), min_size=count, max_size=count))
    return owners, live


def step(owners: list[str], live: set[str], order: list[str], *, idle: Collection[str] = ()) -> list[str]:
    """Each node in turn sees what is, and does its part: one look each."""
    owners = list(owners)
    for node_id in order:
        mine = moves(node_id, owners=owners, live=live, idle=idle)
        for partition in mine.take:
            assert owners[partition] not in live, "nobody takes what a living node owns"
            owners[partition] = node_id
        for partition in mine.release:
            assert owners[partition] == node_id, "nobody releases another's"
            owners[partition] = ""
    return owners


@given(clusters(), st.randoms(use_true_random=False))
def test_every_partition_gets_exactly_one_owner_in_two_looks(
    cluster: tuple[list[str], set[str]], chance: Random
) -> None:
    owners, live = cluster
    for _ in range(2):
        order = sorted(live)
        chance.shuffle(order)
        owners = step(owners, live, order)
    assert set(owners) <= live
    sizes = [owners.count(name) for name in sorted(live)]
    assert sizes == list(shares(len(owners), live).values())
    assert max(sizes) - min(sizes) <= 1


@given(clusters())
def test_nothing_moves_once_the_shares_are_fair(cluster: tuple[list[str], set[str]]) -> None:
    owners, live = cluster
    for _ in range(2):
        owners = step(owners, live, sorted(live))
    assert all(moves(name, owners=owners, live=live) == Moves() for name in live)


@given(clusters())
def test_no_more_moves_than_the_shares_need(cluster: tuple[list[str], set[str]]) -> None:
    owners, live = cluster
    share = shares(len(owners), live)
    for name in live:
        held = owners.count(name)
        plan = moves(name, owners=owners, live=live)
        assert len(plan.release) == max(0, held - share[name])
        assert len(plan.take) <= max(0, share[name] - held)
        assert not (plan.release and plan.take)


@given(clusters())
def test_the_plans_of_all_nodes_share_out_what_is_free_and_never_twice(
    cluster: tuple[list[str], set[str]],
) -> None:
    owners, live = cluster
    taken = [partition for name in live for partition in moves(name, owners=owners, live=live).take]
    assert sorted(taken) == [number for number, owner in enumerate(owners) if owner not in live]


@given(clusters(), st.sets(NAMES), st.randoms(use_true_random=False))
def test_idle_nodes_own_nothing_in_the_end_unless_all_are(
    cluster: tuple[list[str], set[str]], idle: set[str], chance: Random
) -> None:
    owners, live = cluster
    sharing = live - idle or live
    for _ in range(3):
        order = sorted(live)
        chance.shuffle(order)
        owners = step(owners, live, order, idle=idle)
    assert [owners.count(name) for name in sorted(sharing)] == list(shares(len(owners), sharing).values())
    assert all(moves(name, owners=owners, live=live, idle=idle) == Moves() for name in live)


@given(clusters(), st.sets(NAMES))
def test_idle_nodes_take_nothing_and_the_others_share_out_all_that_is_free(
    cluster: tuple[list[str], set[str]], idle: set[str]
) -> None:
    owners, live = cluster
    plans = {name: moves(name, owners=owners, live=live, idle=idle) for name in live}
    if live - idle:
        assert all(plans[name].take == () for name in live & idle)
    taken = [partition for plan in plans.values() for partition in plan.take]
    free = [number for number, owner in enumerate(owners) if owner not in live]
    assert len(taken) == len(set(taken))
    assert set(taken) <= set(free)
    if not {owner for owner in owners if owner in live & idle} or not live - idle:
        assert sorted(taken) == free


@given(clusters(), NAMES)
def test_a_node_that_does_not_live_does_nothing(cluster: tuple[list[str], set[str]], name: str) -> None:
    owners, live = cluster
    assert moves(name, owners=owners, live=live - {name}) == Moves()


def test_one_node_owns_all_and_a_third_takes_a_third() -> None:
    assert moves("a", owners=[""] * 64, live={"a"}).take == tuple(range(64))
    owners = ["a"] * 32 + ["b"] * 32
    assert moves("a", owners=owners, live={"a", "b", "c"}).release == tuple(range(22, 32))
    assert moves("b", owners=owners, live={"a", "b", "c"}).release == tuple(range(53, 64))
    assert moves("c", owners=owners, live={"a", "b", "c"}) == Moves()
    assert shares(64, ["c", "a", "b"]) == {"a": 22, "b": 21, "c": 21}
