"""Moves of instances as rows to bind: which statement writes each kind, and in which order of values."""

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
from ostinato.store.sqlite.rows import counters_text, failure_text
from ostinato.store.sqlite.statements import Row

Kind = TypeVar("Kind", bound=Move)


class MoveRows(NamedTuple):
    """The moves of one kind: their statement, its rows, and whose they are."""

    statement: str
    rows: list[Row]
    instance_ids: list[str]


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


def _rows(statement: str, moves: Sequence[Kind], *, values: Callable[[Kind], Row]) -> MoveRows:
    return MoveRows(statement, [values(move) for move in moves], [move.instance_id for move in moves])


def _assign(move: Assign) -> Row:
    return (
        move.attempt_id,
        move.worker_id,
        move.worker_name,
        move.assigned_us,
        move.instance_id,
        move.partition,
        move.expected_state.value,
        move.expected_attempt,
    )


def _success(move: Success) -> Row:
    return (
        move.started_us,
        move.finished_us,
        move.result,
        move.instance_id,
        move.partition,
        move.expected_attempt,
        move.attempt_id,
    )


def _end_attempt(move: EndAttempt) -> Row:
    return (
        move.state.value,
        move.reason,
        counters_text(move.counters),
        move.due_us,
        move.expires_us,
        move.started_us,
        move.finished_us,
        failure_text(move.failure),
        move.instance_id,
        move.partition,
        move.expected_attempt,
        move.attempt_id,
    )


def _hold(move: HoldWaiting) -> Row:
    return (
        move.hold.value,
        move.reason,
        move.instance_id,
        move.partition,
        move.expected_state.value,
        move.expected_attempt,
    )


def _end_waiting(move: EndWaiting) -> Row:
    return (
        move.state.value,
        move.reason,
        move.finished_us,
        failure_text(move.failure),
        move.instance_id,
        move.partition,
        move.expected_state.value,
        move.expected_attempt,
    )


def _request_cancel(move: RequestCancel) -> Row:
    return move.requested_us, move.reason, move.instance_id, move.partition, move.expected_attempt


def _replay(move: Replay) -> Row:
    return (
        move.task_version,
        move.payload,
        move.due_us,
        move.expires_us,
        move.reason,
        move.instance_id,
        move.partition,
        move.expected_state.value,
        move.expected_generation,
    )
