"""The tables of legal moves of runs and nodes."""

from __future__ import annotations

import pytest

from ostinato.core.workflow.states import (
    LIVE_NODE_STATES,
    LIVE_RUN_STATES,
    NODE_MOVES,
    RESUMABLE_RUN_STATES,
    RUN_MOVES,
    TERMINAL_NODE_STATES,
    TERMINAL_RUN_STATES,
    NodeState,
    RunState,
    require_node_move,
    require_run_move,
)
from ostinato.errors import InternalError


def test_only_a_resume_leaves_a_terminal_state() -> None:
    """I7."""
    assert {move.name for move in RUN_MOVES if move.source in TERMINAL_RUN_STATES} == {"resume"}
    assert {move.name for move in NODE_MOVES if move.source in TERMINAL_NODE_STATES} == {"resume"}
    assert {move.source for move in RUN_MOVES if move.name == "resume"} == RESUMABLE_RUN_STATES


def test_every_live_state_can_reach_every_end_that_its_picture_shows() -> None:
    for live, moves, ends in (
        (RunState.RUNNING, RUN_MOVES, TERMINAL_RUN_STATES),
        (NodeState.WAITING, NODE_MOVES, TERMINAL_NODE_STATES),
    ):
        reached = {live}
        for _ in range(8):
            reached |= {move.target for move in moves if move.source in reached}
        assert ends <= reached


def test_every_live_state_has_a_way_out() -> None:
    assert {move.source for move in RUN_MOVES} >= LIVE_RUN_STATES
    assert {move.source for move in NODE_MOVES} >= LIVE_NODE_STATES


@pytest.mark.parametrize("source", RunState)
@pytest.mark.parametrize("target", RunState)
def test_a_move_of_a_run_is_allowed_exactly_if_the_table_has_it(source: RunState, target: RunState) -> None:
    named = {move.name for move in RUN_MOVES if (move.source, move.target) == (source, target)}
    for name in {move.name for move in RUN_MOVES}:
        if name in named:
            require_run_move(name, source, target=target, subject="r")
        else:
            with pytest.raises(InternalError, match="no move"):
                require_run_move(name, source, target=target, subject="r")


@pytest.mark.parametrize("source", NodeState)
@pytest.mark.parametrize("target", NodeState)
def test_a_move_of_a_node_is_allowed_exactly_if_the_table_has_it(
    source: NodeState, target: NodeState
) -> None:
    named = {move.name for move in NODE_MOVES if (move.source, move.target) == (source, target)}
    for name in {move.name for move in NODE_MOVES}:
        if name in named:
            require_node_move(name, source, target=target, subject="n")
        else:
            with pytest.raises(InternalError, match="no move"):
                require_node_move(name, source, target=target, subject="n")
