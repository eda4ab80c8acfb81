"""Who is dead, by counters alone and the watcher's own clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.partition.node_watch import NodeWatch

LEASE_US, MARGIN_US = 3 * SECOND, 500 * MILLISECOND
PATIENCE_US = LEASE_US + MARGIN_US
LOOK_US = 200 * MILLISECOND


def make_watch() -> NodeWatch:
    return NodeWatch(lease_us=LEASE_US, margin_us=MARGIN_US, gap_us=SECOND)


def looks(watch: NodeWatch, counter: int, *, from_us: int, until_us: int) -> list[int]:
    """Look regularly, each answered at once; when the node was found dead."""
    return [
        at_us
        for at_us in range(from_us, until_us, LOOK_US)
        if watch.look({"a": counter}, sent_us=at_us, received_us=at_us)
    ]


def test_a_counter_that_stands_still_for_lease_and_margin_is_dead_with_that_counter() -> None:
    watch = make_watch()
    found = looks(watch, 7, from_us=0, until_us=5 * SECOND)
    assert found[0] == 3_600 * MILLISECOND
    assert watch.look({"a": 7}, sent_us=5 * SECOND, received_us=5 * SECOND) == {"a": 7}


def test_a_node_that_renews_itself_in_time_lives_for_ever() -> None:
    watch = make_watch()
    for counter in range(20):
        begin_us = counter * 3 * SECOND
        assert looks(watch, counter, from_us=begin_us, until_us=begin_us + 3 * SECOND) == []


def test_a_counter_that_falls_back_has_changed_too() -> None:
    """Another node of the same name cannot be; a database that was restored can."""
    watch = make_watch()
    assert looks(watch, 9, from_us=0, until_us=3 * SECOND) == []
    assert looks(watch, 4, from_us=3 * SECOND, until_us=6 * SECOND) == []


def test_the_silence_counts_from_the_answer_of_the_first_look_to_the_question_of_the_last() -> None:
    watch = make_watch()
    watch.look({"a": 1}, sent_us=0, received_us=900 * MILLISECOND)
    at_us = 900 * MILLISECOND
    while at_us < 900 * MILLISECOND + PATIENCE_US:
        # Slow answers make nobody dead.
        assert watch.look({"a": 1}, sent_us=at_us, received_us=at_us + 300 * MILLISECOND) == {}
        at_us += 500 * MILLISECOND
    assert watch.look({"a": 1}, sent_us=at_us, received_us=at_us) == {"a": 1}


def test_c109_a_watcher_that_could_not_look_says_nothing_of_the_time_before() -> None:
    watch = make_watch()
    looks(watch, 1, from_us=0, until_us=2 * SECOND)
    back_us = 300 * SECOND
    found = looks(watch, 1, from_us=back_us, until_us=back_us + 5 * SECOND)
    assert found[0] >= back_us + PATIENCE_US


def test_a_lock_seen_free_is_death_at_once() -> None:
    watch = make_watch()
    watch.look({"a": 1, "b": 1}, sent_us=0, received_us=0)
    assert watch.look({"a": 2, "b": 2}, sent_us=1, received_us=1, freed={"a"}) == {"a": 2}


def test_a_node_whose_row_is_gone_is_forgotten() -> None:
    watch = make_watch()
    looks(watch, 1, from_us=0, until_us=3 * SECOND)
    watch.look({}, sent_us=3 * SECOND, received_us=3 * SECOND)
    assert looks(watch, 1, from_us=3_200 * MILLISECOND, until_us=6_200 * MILLISECOND) == []


@given(
    st.lists(st.integers(0, 2 * SECOND), min_size=1, max_size=40),
    st.lists(st.integers(1, 900 * MILLISECOND), min_size=1, max_size=80),
    st.integers(0, 400 * MILLISECOND),
)
def test_nobody_is_found_dead_while_it_believes_in_itself(
    pauses: list[int], gaps: list[int], travel_us: int
) -> None:
    """Belief ends a lease less a margin after a renewal was sent; renewals and looks take their time."""
    renewals: list[int] = []
    at_us = 0
    for pause_us in pauses:
        renewals.append(at_us)
        at_us += pause_us
    watch, look_us = make_watch(), 0
    for gap_us in gaps:
        # What has arrived is what the owner believes by, at the most.
        counter = sum(sent_us + travel_us <= look_us for sent_us in renewals)
        dead = watch.look({"a": counter}, sent_us=look_us, received_us=look_us + travel_us // 2)
        if dead and counter:
            assert look_us >= renewals[counter - 1] + LEASE_US - MARGIN_US
        look_us += gap_us
