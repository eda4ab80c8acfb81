"""The one table of legal moves of an instance's state; everything else asks it.

::

                    ┌────────────────────────── replay (new generation) ──────────────────────────┐
                    ▼                                                                             │
     blocked ──► pending ──► running ──► success ─────────────────────────────────────────────────┤
        │           │         │   ▲                                                               │
        │           │         ▼   │ assign                                                        │
        │           │     retry_waiting ──► failed ───────────────────────────────────────────────┤
        ▼           ▼         │                                                                   │
     skipped    cancelled ◄───┘                                                                   │
        └───────────┴─────────────────────────────────────────────────────────────────────────────┘

The same table stands as a CHECK constraint in the schema, as far as one row can show it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from ostinato.errors import invariant


class State(StrEnum):
    """State of an instance (design section 1)."""

    BLOCKED = "blocked"
    PENDING = "pending"
    RUNNING = "running"
    RETRY_WAITING = "retry_waiting"
    SUCCESS = "success"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


TERMINAL_STATES = frozenset({State.SUCCESS, State.FAILED, State.SKIPPED, State.CANCELLED})
WAITING_STATES = frozenset({State.PENDING, State.RETRY_WAITING})
LIVE_STATES = frozenset(set(State) - TERMINAL_STATES)

#: States in which an instance may be created: a fire refused by its overlap rule is born ``skipped``.
INITIAL_STATES = frozenset({State.PENDING, State.BLOCKED, State.SKIPPED})


class Move(NamedTuple):
    """A named move from one state to another, and why it happens."""

    name: str
    source: State
    target: State
    meaning: str


_S = State
MOVES: tuple[Move, ...] = (
    Move("unblock", _S.BLOCKED, _S.PENDING, "everything upstream has ended"),
    Move("skip", _S.BLOCKED, _S.SKIPPED, "an upstream result says that it must not run"),
    Move("assign", _S.PENDING, _S.RUNNING, "a worker was chosen"),
    Move("assign", _S.RETRY_WAITING, _S.RUNNING, "a worker was chosen for the next attempt"),
    Move("succeed", _S.RUNNING, _S.SUCCESS, "the attempt ended well"),
    Move("retry", _S.RUNNING, _S.RETRY_WAITING, "the attempt ended badly and the policy grants another"),
    Move("put_back", _S.RUNNING, _S.RETRY_WAITING, "the attempt was refused or handed back unstarted"),
    Move("fail", _S.RUNNING, _S.FAILED, "the attempt ended badly and the policy grants no other"),
    Move("skip", _S.PENDING, _S.SKIPPED, "its task's overlap rule refused it"),
    Move("expire", _S.PENDING, _S.FAILED, "it could not start in time"),
    Move("expire", _S.RETRY_WAITING, _S.FAILED, "the retry could not start in time"),
    Move("cancel", _S.BLOCKED, _S.CANCELLED, "somebody asked for it"),
    Move("cancel", _S.PENDING, _S.CANCELLED, "somebody asked for it"),
    Move("cancel", _S.RETRY_WAITING, _S.CANCELLED, "somebody asked for it"),
    Move("cancel", _S.RUNNING, _S.CANCELLED, "somebody asked for it and the attempt has ended"),
    Move("replay", _S.SUCCESS, _S.PENDING, "a person asked for a new generation"),
    Move("replay", _S.FAILED, _S.PENDING, "a person asked for a new generation"),
    Move("replay", _S.SKIPPED, _S.PENDING, "a person asked for a new generation"),
    Move("replay", _S.CANCELLED, _S.PENDING, "a person asked for a new generation"),
)

_LEGAL = frozenset((move.name, move.source, move.target) for move in MOVES)
_TARGETS = frozenset((move.source, move.target) for move in MOVES)


def is_legal(source: State, target: State) -> bool:
    """Whether any named move leads from `source` to `target`."""
    return (source, target) in _TARGETS


def require_move(name: str, source: State, target: State, *, subject: str = "") -> None:
    """Raise ``INVARIANT`` (I7) unless the table has this move."""
    invariant(
        (name, source, target) in _LEGAL, "I7", f"no move {name!r} from {source} to {target}", subject=subject
    )


class Hold(StrEnum):
    """Why a waiting instance that is due does not start; stored with it, so that everyone can see it.

    A held row leaves the queue of its partition and is looked for by task once the cause has ended: work
    that cannot run does not stand in front of work that can (design section 4, no head-of-line blocking).
    """

    NO_WORKER = "no_worker"
    BUSY = "busy"
    PAUSED = "paused"
    OVERLAP = "overlap"
    #: A retry for which its task's budget has no token.
    BUDGET = "budget"
