"""Whether a row that is locked is as a move expects it."""

from __future__ import annotations

from typing import NamedTuple

from ostinato.core.states import State
from ostinato.store.batches import (
    Assign,
    EndAttempt,
    EndWaiting,
    HoldWaiting,
    Replay,
    RequestCancel,
    Success,
)
from ostinato.store.rules import Move


class Found(NamedTuple):
    """What decides whether a move may be written, of an instance that is locked."""

    id: str
    partition: int
    state: str
    attempt: int
    attempt_id: str
    generation: int
    cancel_requested_us: int | None


def matches(move: Move, found: Found) -> bool:
    """Whether `move` may be written: the twin of the conditions in the statements."""
    if found.partition != move.partition:
        return False
    match move:
        case Assign() | HoldWaiting() | EndWaiting():
            return (found.state, found.attempt) == (move.expected_state, move.expected_attempt)
        case Replay():
            return (found.state, found.generation) == (move.expected_state, move.expected_generation)
        case RequestCancel():
            return (found.state, found.attempt) == (State.RUNNING, move.expected_attempt)
        case Success() | EndAttempt():
            running = (State.RUNNING, move.expected_attempt, move.attempt_id)
            if (found.state, found.attempt, found.attempt_id) != running:
                return False
            return (
                isinstance(move, Success)
                or found.cancel_requested_us is None
                or move.state == State.CANCELLED
            )
