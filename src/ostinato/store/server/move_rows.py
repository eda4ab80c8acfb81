"""Moves of instances as rows of their statements: one order of columns for the statements of every server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

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
from ostinato.store.rules import Move
from ostinato.store.server.rows import Value, counters_text, failure_text

Kind = TypeVar("Kind", bound=Move)
Row = tuple[Value, ...]


class MoveRows(NamedTuple):
    """The moves of one kind: their statement, and its rows in the order of the instances' ids."""

    statement: str
    rows: list[Row]


def move_rows(batch: CommitBatch) -> list[MoveRows]:
    """One for each kind of move that there is in the batch."""
    kinds = (
        _rows("assign", batch.assigns, values=_assign),
        _rows("succeed", batch.successes, values=_success),
        _rows("end_attempt", batch.ended_attempts, values=_end_attempt),
        _rows("hold", batch.holds, values=_hold),
        _rows("end_waiting", batch.ended_waiting, values=_end_waiting),
        _rows("request_cancel", batch.cancel_requests, values=_request_cancel),
        _rows("replay", batch.replays, values=_replay),
    )
    return [kind for kind in kinds if kind.rows]


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
