"""What each move of an instance does to its row, in memory; the twin of the adapters' UPDATE statements."""

from __future__ import annotations

from ostinato.core.model import Instance
from ostinato.core.retry.counters import Counters
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


def is_expected(row: Instance, move: Move) -> bool:
    """Whether `row` is in the state and attempt that `move` expects to find."""
    if isinstance(move, Replay):
        return row.state is move.expected_state and row.generation == move.expected_generation
    if row.attempt != move.expected_attempt:
        return False
    if isinstance(move, EndAttempt) and row.cancel_requested_us is not None:
        # The owner did not know of the wish: it must decide again.
        return is_running(row, move) and move.state is State.CANCELLED
    if isinstance(move, (Success, EndAttempt)):
        return is_running(row, move)
    if isinstance(move, RequestCancel):
        return row.state is State.RUNNING
    return row.state is move.expected_state


def is_running(row: Instance, move: Success | EndAttempt) -> bool:
    """Whether exactly the attempt of `move` runs (I6)."""
    return row.state is State.RUNNING and row.attempt_id == move.attempt_id


def apply_move(row: Instance, move: Move) -> None:
    """Change `row` in place as `move` says."""
    match move:
        case Assign():
            _assign(row, move)
        case Success():
            row.state, row.reason = State.SUCCESS, ""
            row.started_us, row.finished_us, row.result = move.started_us, move.finished_us, move.result
        case EndAttempt():
            _end_attempt(row, move)
        case HoldWaiting():
            row.hold, row.reason = move.hold, move.reason
        case EndWaiting():
            row.state, row.reason, row.hold = move.state, move.reason, None
            row.finished_us = move.finished_us
            row.failure = row.failure if move.failure is None else move.failure
        case RequestCancel():
            if row.cancel_requested_us is None:
                row.cancel_requested_us, row.cancel_reason = move.requested_us, move.reason
        case Replay():
            _replay(row, move)


def _assign(row: Instance, move: Assign) -> None:
    row.state, row.hold, row.reason = State.RUNNING, None, ""
    row.attempt += 1
    row.attempt_id, row.worker_id, row.worker_name = move.attempt_id, move.worker_id, move.worker_name
    row.assigned_us, row.started_us = move.assigned_us, None


def _end_attempt(row: Instance, move: EndAttempt) -> None:
    row.state, row.reason, row.counters = move.state, move.reason, move.counters
    row.started_us, row.finished_us = move.started_us, move.finished_us
    row.failure = row.failure if move.failure is None else move.failure
    if move.state is State.RETRY_WAITING:
        row.due_us, row.expires_us = move.due_us, move.expires_us


def _replay(row: Instance, move: Replay) -> None:
    row.state, row.reason, row.hold = State.PENDING, move.reason, None
    row.generation += 1
    row.counters = Counters()
    row.task_version, row.payload = move.task_version, move.payload
    row.due_us, row.expires_us = move.due_us, move.expires_us
    row.attempt_id = row.worker_id = row.worker_name = row.cancel_reason = ""
    row.assigned_us = row.started_us = row.finished_us = row.cancel_requested_us = None
    row.result = row.failure = None
