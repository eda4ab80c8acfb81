"""The table of legal moves."""

from __future__ import annotations

import itertools

import pytest

from ostinato.core.states import (
    INITIAL_STATES,
    LIVE_STATES,
    MOVES,
    TERMINAL_STATES,
    State,
    is_legal,
    require_move,
)
from ostinato.errors import InternalError


def test_only_a_replay_leaves_a_terminal_state() -> None:
    """I7."""
    leaving = {move.name for move in MOVES if move.source in TERMINAL_STATES}
    assert leaving == {"replay"}


def test_every_terminal_state_can_be_replayed() -> None:
    assert {move.source for move in MOVES if move.name == "replay"} == TERMINAL_STATES


def test_every_state_can_be_reached_from_an_initial_one() -> None:
    reached = set(INITIAL_STATES)
    for _ in State:
        reached |= {move.target for move in MOVES if move.source in reached}
    assert reached == set(State)


def test_every_live_state_can_reach_a_terminal_one() -> None:
    for state in LIVE_STATES:
        reached = {state}
        for _ in State:
            reached |= {move.target for move in MOVES if move.source in reached}
        assert reached & TERMINAL_STATES, state


def test_no_move_stays_where_it_is() -> None:
    assert not [move for move in MOVES if move.source is move.target]


@pytest.mark.parametrize(("source", "target"), list(itertools.product(State, State)))
def test_a_move_is_allowed_exactly_if_the_table_has_it(source: State, target: State) -> None:
    named = [move.name for move in MOVES if (move.source, move.target) == (source, target)]
    assert is_legal(source, target) == bool(named)
    for name in {move.name for move in MOVES}:
        if name in named:
            require_move(name, source, target)
        else:
            with pytest.raises(InternalError, match="I7"):
                require_move(name, source, target)
