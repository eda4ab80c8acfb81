"""A breaker opens by rate and volume, lets exactly its probes through, and hears only its own generation."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.breaker import (
    Breaker,
    BreakerPolicy,
    cooled_down,
    counted,
    free_probes,
    half_open_us,
    probe_ended,
    probes_taken,
    word_of,
)
from ostinato.core.instants import SECOND

POLICY = BreakerPolicy(volume_min=10, window_us=10 * SECOND, cool_down_us=30 * SECOND)
T0 = 1_767_225_600_000_000


def _open(policy: BreakerPolicy = POLICY) -> Breaker:
    return counted(Breaker(), policy, generation=1, good=0, bad=policy.volume_min, now_us=T0)


def _half_open(policy: BreakerPolicy = POLICY) -> Breaker:
    return cooled_down(_open(policy), policy, now_us=T0 + policy.cool_down_us)


def test_it_opens_at_the_rate_once_there_is_enough_to_go_by() -> None:
    few = counted(Breaker(), POLICY, generation=1, good=0, bad=9, now_us=T0)
    assert few.state == "closed"
    assert counted(few, POLICY, generation=1, good=0, bad=1, now_us=T0).state == "open"
    mixed = counted(few, POLICY, generation=1, good=10, bad=0, now_us=T0)
    assert mixed.state == "closed"
    assert counted(mixed, POLICY, generation=1, good=0, bad=1, now_us=T0).state == "open"


def test_what_is_older_than_the_window_is_forgotten() -> None:
    before = counted(Breaker(), POLICY, generation=1, good=0, bad=9, now_us=T0)
    after = counted(before, POLICY, generation=1, good=0, bad=9, now_us=T0 + 10 * SECOND)
    assert (after.state, sum(part.bad_count for part in after.parts)) == ("closed", 9)


def test_c173_failures_of_categories_that_do_not_count_say_nothing() -> None:
    """20 BAD_PAYLOAD, 20 cancelled, then 10 successes: closed, and nothing is written before these."""
    words = [word_of(POLICY, category) for category in ["permanent"] * 20 + ["cancelled"] * 20 + [None] * 10]
    breaker = Breaker()
    for word in words:
        good, bad = int(word == "good"), int(word == "bad")
        breaker = counted(breaker, POLICY, generation=1, good=good, bad=bad, now_us=T0)
    assert (breaker.state, breaker.version) == ("closed", 10)
    assert [word_of(POLICY, category) for category in ("transient", "resource", "lost")] == [
        "bad",
        "bad",
        "neither",
    ]


def test_it_is_open_until_its_cool_down_is_over() -> None:
    breaker = _open()
    assert (breaker.state, free_probes(breaker, POLICY)) == ("open", 0)
    end_us = half_open_us(breaker, POLICY)
    assert end_us == T0 + 30 * SECOND
    assert cooled_down(breaker, POLICY, now_us=end_us - 1) is breaker
    assert cooled_down(breaker, POLICY, now_us=end_us).state == "half_open"


def test_c169_a_success_from_before_closes_nothing_and_fails_nothing() -> None:
    breaker = _half_open()
    taken = probes_taken(breaker, POLICY, count=1)
    assert taken is not None
    assert counted(taken, POLICY, generation=1, good=100, bad=100, now_us=T0) is taken
    assert probe_ended(taken, POLICY, generation=1, word="good", now_us=T0) is taken
    again = probe_ended(taken, POLICY, generation=taken.generation, word="bad", now_us=T0 + 60 * SECOND)
    assert (again.state, again.since_us) == ("open", T0 + 60 * SECOND)
    assert probe_ended(again, POLICY, generation=taken.generation, word="good", now_us=T0) is again


def test_c171_a_probe_that_says_nothing_gives_its_place_back() -> None:
    taken = probes_taken(_half_open(), POLICY, count=1)
    assert taken is not None
    assert probes_taken(taken, POLICY, count=1) is None
    given_back = probe_ended(taken, POLICY, generation=taken.generation, word="neither", now_us=T0)
    assert (given_back.state, free_probes(given_back, POLICY)) == ("half_open", 1)


#: Of three nodes: which acts, and how a probe of it ends.
acts = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["read", "take", "good", "bad", "neither"])), max_size=80
)


@given(acts, st.integers(1, 4))
def test_c169_nodes_that_know_an_older_row_never_have_more_probes_out_than_there_may_be(
    course: list[tuple[int, str]], probe_count: int
) -> None:
    """Each writes by what it has read, and only if nobody has written since."""
    policy = msgspec.structs.replace(POLICY, probe_count=probe_count)
    shared = _half_open(policy)
    known = [shared] * 3
    out: dict[int, list[int]] = {node: [] for node in range(3)}
    good_counts: dict[int, int] = {}
    now_us = T0 + policy.cool_down_us

    def write(node: int, after: Breaker | None) -> bool:
        nonlocal shared
        if after is None or after is known[node] or known[node].version != shared.version:
            return False
        shared = known[node] = after
        return True

    for node, act in course:
        if act == "read":
            known[node] = cooled_down(shared, policy, now_us=now_us)
            if known[node] is not shared:
                shared = known[node]
        elif act == "take":
            if write(node, probes_taken(known[node], policy, count=1)):
                out[node].append(shared.generation)
        elif out[node]:
            generation = out[node][0]
            known[node] = shared
            after = probe_ended(shared, policy, generation=generation, word=act, now_us=now_us)  # type: ignore[arg-type]  # a word
            if after is not shared and act == "good":
                good_counts[generation] = good_counts.get(generation, 0) + 1
            if after.state == "closed" and shared.state != "closed":
                assert good_counts[generation] == probe_count
            write(node, after)
            out[node].pop(0)
        running = sum(each == shared.generation for generations in out.values() for each in generations)
        if shared.state == "half_open":
            assert running == shared.probes_out
            assert running + shared.probes_good <= probe_count
