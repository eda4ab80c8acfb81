"""Moves of instances as rows of their statements, and whether a locked row is as a move expects it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from ostinato.core.states import State
from ostinato.store.batches import (
    Assign,
    CommitBatch,
    EndAttempt,
    EndWaiting,
    HoldWaiting,
    Replay,
    RequestCancel,
    Success,
)
from ostinato.store.mysql.literals import Row
from ostinato.store.rules import Move
from ostinato.store.server.rows import counters_text, failure_text

Kind = TypeVar("Kind", bound=Move)


class MoveRows(NamedTuple):
    """The moves of one kind: their statement, and its rows in the order of the instances' ids."""

    statement: str
    rows: list[Row]


class Found(NamedTuple):
    """What decides whether a move may be written, of an instance that is locked."""

    id: str
    partition: int
    state: str
    attempt: int
    attempt_id: str
    generation: int
    cancel_requested_us: int | None


def move_rows(batch: CommitBatch) -> tuple[MoveRows, ...]:
    """One for each kind of move; empty kinds included."""
    return (
        _rows("assign", batch.assigns, values=_assign),
        _rows("succeed", batch.successes, values=_success),
        _rows("end_attempt", batch.ended_attempts, values=_end_attempt),
        _rows("hold", batch.holds, values=_hold),
        _rows("end_waiting", batch.ended_waiting, values=_end_waiting),
        _rows("request_cancel", batch.cancel_requests, values=_request_cancel),
        _rows("replay", batch.replays, values=_replay),
    )


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


def _rows(statement: str, moves: Sequence[Kind], *, values: Callable[[Kind], Row]) -> MoveRows:
    # Everybody locks instances in this order.
    ordered = sorted(moves, key=lambda move: move.instance_id)
    return MoveRows(statement, [values(move) for move in ordered])


def _assign(move: Assign) -> Row:
    return (
        move.instance_id,
        move.partition,
        move.expected_state.value,
        move.expected_attempt,
        move.attempt_id,
        move.worker_id,
        move.worker_name,
        move.assigned_us,
    )


def _success(move: Success) -> Row:
    return (
        move.instance_id,
        move.partition,
        move.expected_attempt,
        move.attempt_id,
        move.started_us,
        move.finished_us,
        move.result,
    )


def _end_attempt(move: EndAttempt) -> Row:
    return (
        move.instance_id,
        move.partition,
        move.expected_attempt,
        move.attempt_id,
        move.state.value,
        move.reason,
        counters_text(move.counters),
        move.due_us,
        move.expires_us,
        move.started_us,
        move.finished_us,
        failure_text(move.failure),
    )


def _hold(move: HoldWaiting) -> Row:
    return (
        move.instance_id,
        move.partition,
        move.expected_state.value,
        move.expected_attempt,
        move.hold.value,
        move.reason,
    )


def _end_waiting(move: EndWaiting) -> Row:
    return (
        move.instance_id,
        move.partition,
        move.expected_state.value,
        move.expected_attempt,
        move.state.value,
        move.reason,
        move.finished_us,
        failure_text(move.failure),
    )


def _request_cancel(move: RequestCancel) -> Row:
    return move.instance_id, move.partition, move.expected_attempt, move.requested_us, move.reason


def _replay(move: Replay) -> Row:
    return (
        move.instance_id,
        move.partition,
        move.expected_state.value,
        move.expected_generation,
        move.task_version,
        move.payload,
        move.due_us,
        move.expires_us,
        move.reason,
    )
