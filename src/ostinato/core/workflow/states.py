"""The tables of legal moves of a workflow's run and of its nodes; everything else asks them.

A run::

                ┌──────────── resume ─────────────┐
                ▼                                 │
    start ──► running ──┬──► success              │
                        ├──► failed ──────────────┤
                        ├──► cancelled ───────────┘
                        └──► rolling_back ──┬──► rolled_back
                                  ▲         └──► rollback_failed ──┐
                                  └──────────── resume ────────────┘

A node of a run::

    waiting ──► ready ──► running ──► success │ failed │ skipped │ cancelled
       │          │
       │          └──► success (an empty map) │ failed (no payload) │ skipped │ upstream_failed
       └──► cancelled (so do ready and running, when the run is stopped)

``ready``: all direct upstream have ended, the trigger rule has not been asked yet. A resume puts a node
that ended back to ``waiting`` or ``ready``, or to ``running`` where only some items of a map run again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from ostinato.errors import invariant


class RunState(StrEnum):
    """State of one run of a workflow."""

    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    ROLLBACK_FAILED = "rollback_failed"


class NodeState(StrEnum):
    """State of one node within a run."""

    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    #: It never ran, since something that it needs has failed; its instance ends ``skipped``.
    UPSTREAM_FAILED = "upstream_failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


LIVE_RUN_STATES = frozenset({RunState.RUNNING, RunState.ROLLING_BACK})
TERMINAL_RUN_STATES = frozenset(set(RunState) - LIVE_RUN_STATES)
#: Those that a person's resume leaves.
RESUMABLE_RUN_STATES = frozenset({RunState.FAILED, RunState.CANCELLED, RunState.ROLLBACK_FAILED})

LIVE_NODE_STATES = frozenset({NodeState.WAITING, NodeState.READY, NodeState.RUNNING})
TERMINAL_NODE_STATES = frozenset(set(NodeState) - LIVE_NODE_STATES)


class RunMove(NamedTuple):
    """A named move of a run, and why it happens."""

    name: str
    source: RunState
    target: RunState
    meaning: str


class NodeMove(NamedTuple):
    """A named move of a node, and why it happens."""

    name: str
    source: NodeState
    target: NodeState
    meaning: str


_R = RunState
RUN_MOVES: tuple[RunMove, ...] = (
    RunMove("succeed", _R.RUNNING, _R.SUCCESS, "every node has ended and none of them fails it"),
    RunMove("fail", _R.RUNNING, _R.FAILED, "every node has ended and one of them fails it"),
    RunMove("cancel", _R.RUNNING, _R.CANCELLED, "somebody asked for it and all that ran has ended"),
    RunMove("roll_back", _R.RUNNING, _R.ROLLING_BACK, "a node with that strategy failed, or somebody asked"),
    RunMove("finish_rollback", _R.ROLLING_BACK, _R.ROLLED_BACK, "every compensation has succeeded"),
    RunMove("fail_rollback", _R.ROLLING_BACK, _R.ROLLBACK_FAILED, "a compensation failed for good"),
    RunMove("resume", _R.FAILED, _R.RUNNING, "a person asked for what failed to run again"),
    RunMove("resume", _R.CANCELLED, _R.RUNNING, "a person asked for what was cancelled to run again"),
    RunMove("resume", _R.ROLLBACK_FAILED, _R.ROLLING_BACK, "a person asked for the rollback to go on"),
)

_N = NodeState
NODE_MOVES: tuple[NodeMove, ...] = (
    NodeMove("release", _N.WAITING, _N.READY, "every direct upstream has ended"),
    NodeMove("begin", _N.READY, _N.RUNNING, "its trigger rule holds"),
    NodeMove("succeed", _N.READY, _N.SUCCESS, "its rule holds and it maps over an empty list"),
    NodeMove("fail", _N.READY, _N.FAILED, "its rule holds and its payload cannot be made"),
    NodeMove("skip", _N.READY, _N.SKIPPED, "its trigger rule does not hold, and nothing that failed is why"),
    NodeMove("give_up", _N.READY, _N.UPSTREAM_FAILED, "what failed upstream is why its rule does not hold"),
    NodeMove("succeed", _N.RUNNING, _N.SUCCESS, "all of its instances have ended well"),
    NodeMove("fail", _N.RUNNING, _N.FAILED, "all of its instances have ended, one of them badly"),
    NodeMove("skip", _N.RUNNING, _N.SKIPPED, "all of its instances were skipped"),
    NodeMove("cancel", _N.WAITING, _N.CANCELLED, "the run was stopped, or somebody cancelled its instance"),
    NodeMove("cancel", _N.READY, _N.CANCELLED, "the run was stopped, or somebody cancelled its instance"),
    NodeMove(
        "cancel", _N.RUNNING, _N.CANCELLED, "all have ended, one of them cancelled, or not all came to be"
    ),
    *(
        NodeMove("resume", source, target, meaning)
        for source in (_N.SUCCESS, _N.FAILED, _N.UPSTREAM_FAILED, _N.SKIPPED, _N.CANCELLED)
        for target, meaning in (
            (_N.WAITING, "a person asked for it, or for what stands before it, to run again"),
            (_N.READY, "a person asked for it to run again, and nothing stands before it"),
        )
    ),
    NodeMove("resume", _N.FAILED, _N.RUNNING, "its items that failed run again"),
    NodeMove("resume", _N.CANCELLED, _N.RUNNING, "its items that were cancelled run again"),
)

_RUN_LEGAL = frozenset((move.name, move.source, move.target) for move in RUN_MOVES)
_NODE_LEGAL = frozenset((move.name, move.source, move.target) for move in NODE_MOVES)


def require_run_move(name: str, source: RunState, *, target: RunState, subject: str) -> None:
    """Raise ``INVARIANT`` unless the table has this move of a run."""
    legal = (name, source, target) in _RUN_LEGAL
    invariant(legal, "run states", f"no move {name!r} from {source} to {target}", subject=subject)


def require_node_move(name: str, source: NodeState, *, target: NodeState, subject: str) -> None:
    """Raise ``INVARIANT`` unless the table has this move of a node."""
    legal = (name, source, target) in _NODE_LEGAL
    invariant(legal, "node states", f"no move {name!r} from {source} to {target}", subject=subject)
