"""Attempts have ended: well, badly, lost, unstarted. Every retry of Ostinato is decided here.

The verdict is taken on what the partition remembers of the attempt, and is part of the same batch as the
result that caused it, so that a crash between the two cannot lose a retry.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from ostinato.core.changes import EndAttempt, Success
from ostinato.core.definition import TaskDefinition
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.instants import format_instant
from ostinato.core.model import HistoryKind, HistoryRow, Instance, Outcome
from ostinato.core.partition.effects import Effects, EndedAttempt, RefusedOutcome
from ostinato.core.partition.reported import checked, plausible_us
from ostinato.core.partition.running import RunningAttempt
from ostinato.core.retry.counters import Counters
from ostinato.core.retry.lost import HAND_BACK_CODES, REFUSAL_CODES
from ostinato.core.retry.verdict import RetryAt, decide
from ostinato.core.states import State, require_move


def end_attempt(
    attempt: RunningAttempt,
    outcome: Outcome,
    *,
    now_us: int,
    rng: Random,
    into: Effects,
    withdrawn: str = "",
) -> None:
    """An outcome that names exactly the running attempt (I6).

    `withdrawn` says why nothing more is started for its task (deleted, disabled): then what the policy would
    try again is cancelled. Empty: the policy decides.
    """
    outcome = checked(outcome, attempt, now_us=now_us)
    if outcome.failure is None and not outcome.unstarted_reason:
        _end_well(attempt, outcome, into=into)
        return
    if outcome.unstarted_reason or outcome.failure is None:
        failure = safe_failure("REFUSED", f"refused before the start: {outcome.unstarted_reason}")
    else:
        failure = _safe(outcome.failure)
    decision = _decide(attempt, failure, now_us=now_us, rng=rng, withdrawn=withdrawn)
    _end_badly(attempt, failure, outcome=outcome, decision=decision, into=into)


def lose_attempt(
    attempt: RunningAttempt,
    *,
    code: str,
    message: str,
    now_us: int,
    rng: Random,
    into: Effects,
    withdrawn: str = "",
) -> None:
    """Nobody will report this attempt: its worker is gone, or never acknowledged it.

    `withdrawn` as in `end_attempt`.
    """
    outcome = Outcome(
        instance_id=attempt.instance_id,
        attempt=attempt.attempt,
        attempt_id=attempt.attempt_id,
        started_us=None,
        finished_us=now_us,
    )
    failure = safe_failure(code, message, category="lost")
    decision = _decide(attempt, failure, now_us=now_us, rng=rng, withdrawn=withdrawn)
    _end_badly(attempt, failure, outcome=outcome, decision=decision, into=into)


def refuse_outcome(outcome: Outcome, instance: Instance | None, *, now_us: int, into: Effects) -> None:
    """An outcome whose attempt is not running: kept in the history, acknowledged, without effect (I6)."""
    if instance is None:
        return
    if outcome.attempt == instance.attempt:
        reason = f"the attempt is no longer running; the instance is {instance.state}"
    else:
        reason = f"attempt {instance.attempt} has begun since; the instance is {instance.state}"
    what = "success" if outcome.failure is None and not outcome.unstarted_reason else "failure"
    into.refused.append(
        RefusedOutcome(
            instance_id=instance.id,
            partition=instance.partition,
            ref=instance.ref,
            attempt=outcome.attempt,
            attempt_id=outcome.attempt_id,
            reason=reason,
        )
    )
    into.batch.history.append(
        HistoryRow(
            instance_id=instance.id,
            partition=instance.partition,
            at_us=now_us,
            kind=HistoryKind.LATE_RESULT,
            sentence=f"the {what} reported for attempt {outcome.attempt} was refused: {reason}",
            generation=instance.generation,
            attempt=outcome.attempt,
            attempt_id=outcome.attempt_id,
            code=outcome.failure.code if outcome.failure is not None else "",
            started_us=plausible_us(outcome.started_us, now_us=now_us),
            unconditional=True,
        )
    )


def expires_us(definition: TaskDefinition, counters: Counters, *, due_us: int) -> int | None:
    """Latest start of the next attempt: end of the retry window or of the queue time-out, the earlier."""
    ends: list[int] = []
    window_us = definition.retry.window_us
    if window_us is not None and counters.window_opened_us is not None:
        ends.append(counters.window_opened_us + window_us)
    if definition.queue_timeout_us is not None:
        ends.append(due_us + definition.queue_timeout_us)
    return min(ends, default=None)


def _end_well(attempt: RunningAttempt, outcome: Outcome, *, into: Effects) -> None:
    into.batch.successes.append(
        Success(
            instance_id=attempt.instance_id,
            partition=attempt.partition,
            expected_attempt=attempt.attempt,
            attempt_id=attempt.attempt_id,
            started_us=outcome.started_us,
            finished_us=outcome.finished_us,
            result=outcome.result,
        )
    )
    into.ended.append(_ended(attempt, outcome, "success", State.SUCCESS))


class _Decision(NamedTuple):
    """What becomes of an instance whose attempt has ended badly."""

    move: str
    state: State
    kind: HistoryKind
    rule: str
    sentence: str
    counters: Counters
    due_us: int
    expires_us: int | None = None


def _decide(
    attempt: RunningAttempt, failure: Failure, *, now_us: int, rng: Random, withdrawn: str
) -> _Decision:
    if attempt.cancel_requested:
        return _cancelled(
            attempt, failure, cause=attempt.cancel_reason or "asked for", rule="cancel", now_us=now_us
        )
    verdict = decide(attempt.definition.retry, failure, attempt.counters, now_us=now_us, rng=rng)
    if withdrawn and isinstance(verdict, RetryAt):
        # What waits of such a task is cancelled; what has failed for good has failed all the same.
        return _cancelled(attempt, failure, cause=withdrawn, rule="withdrawn", now_us=now_us)
    if isinstance(verdict, RetryAt):
        return _Decision(
            "retry",
            State.RETRY_WAITING,
            _kind_of_retry(failure),
            verdict.rule,
            verdict.why,
            verdict.counters,
            verdict.due_us,
            expires_us(attempt.definition, verdict.counters, due_us=verdict.due_us),
        )
    return _Decision(
        "fail", State.FAILED, HistoryKind.GAVE_UP, verdict.rule, verdict.why, verdict.counters, now_us
    )


def _cancelled(attempt: RunningAttempt, failure: Failure, *, cause: str, rule: str, now_us: int) -> _Decision:
    sentence = f"cancelled: {cause}; the attempt ended with {failure.code}"
    return _Decision(
        "cancel", State.CANCELLED, HistoryKind.CANCELLED, rule, sentence, attempt.counters, now_us
    )


def _end_badly(
    attempt: RunningAttempt, failure: Failure, *, outcome: Outcome, decision: _Decision, into: Effects
) -> None:
    state = decision.state
    require_move(decision.move, State.RUNNING, state, subject=attempt.instance_id)
    is_terminal = state is not State.RETRY_WAITING
    next_due_us = None if is_terminal else decision.due_us
    ended_us = _end_us(outcome)
    into.batch.ended_attempts.append(
        EndAttempt(
            instance_id=attempt.instance_id,
            partition=attempt.partition,
            expected_attempt=attempt.attempt,
            attempt_id=attempt.attempt_id,
            state=state,
            reason=decision.sentence,
            counters=decision.counters,
            due_us=decision.due_us,
            expires_us=decision.expires_us,
            started_us=outcome.started_us,
            finished_us=ended_us if is_terminal else None,
            # An attempt that never ran leaves the failure of the one before it.
            failure=None if _is_uncounted(failure, REFUSAL_CODES) else failure,
        )
    )
    into.batch.history.append(
        HistoryRow(
            instance_id=attempt.instance_id,
            partition=attempt.partition,
            at_us=ended_us,
            kind=decision.kind,
            sentence=decision.sentence,
            generation=attempt.generation,
            attempt=attempt.attempt,
            attempt_id=attempt.attempt_id,
            worker_name=attempt.worker_name,
            code=failure.code,
            category=failure.category,
            failure=failure,
            started_us=outcome.started_us,
            due_us=next_due_us,
        )
    )
    ended = _ended(attempt, outcome, _outcome_word(failure, state), state)
    ended.failure, ended.rule, ended.sentence = failure, decision.rule, decision.sentence
    ended.due_us = next_due_us
    into.ended.append(ended)


def _safe(failure: Failure) -> Failure:
    """A worker in another language may report what no store takes: it is made safe here."""
    return safe_failure(
        failure.code,
        failure.message,
        category=failure.category,
        classes=failure.classes,
        chain=failure.chain,
        traceback=failure.traceback,
        retry_after_us=failure.retry_after_us,
        retry_at_us=failure.retry_at_us,
        detail=failure.detail,
    )


def _end_us(outcome: Outcome) -> int:
    """End of an attempt; never before its start, whatever a worker's clock did between the two."""
    started_us = outcome.started_us
    return outcome.finished_us if started_us is None else max(outcome.finished_us, started_us)


def _is_uncounted(failure: Failure, codes: frozenset[str]) -> bool:
    """Whether it is one of Ostinato's own codes: a task's code of the same name has another category."""
    return failure.category == "lost" and failure.code in codes


def _kind_of_retry(failure: Failure) -> HistoryKind:
    if _is_uncounted(failure, REFUSAL_CODES):
        return HistoryKind.REFUSED
    return HistoryKind.HANDED_BACK if _is_uncounted(failure, HAND_BACK_CODES) else HistoryKind.RETRY


def _outcome_word(failure: Failure, state: State) -> str:
    if state is State.CANCELLED:
        return "cancelled"
    if _is_uncounted(failure, REFUSAL_CODES):
        return "unstarted"
    return "lost" if failure.category == "lost" else "failed"


def _ended(attempt: RunningAttempt, outcome: Outcome, word: str, state: State) -> EndedAttempt:
    run_us = None if outcome.started_us is None else max(0, outcome.finished_us - outcome.started_us)
    return EndedAttempt(
        instance_id=attempt.instance_id,
        partition=attempt.partition,
        ref=attempt.ref,
        attempt=attempt.attempt,
        attempt_id=attempt.attempt_id,
        worker_id=attempt.worker_id,
        worker_name=attempt.worker_name,
        outcome=word,
        state=state,
        retry_count=attempt.counters.failures,
        run_us=run_us,
    )


def expiry_reason(instance: Instance, definition: TaskDefinition) -> tuple[str, str]:
    """Code and sentence for a waiting instance whose latest start has passed; says what held it."""
    held = f"; it waited because {instance.reason}" if instance.hold is not None and instance.reason else ""
    latest = format_instant(instance.expires_us) if instance.expires_us is not None else "now"
    window_us = definition.retry.window_us
    opened_us = instance.counters.window_opened_us
    if window_us is not None and opened_us is not None and opened_us + window_us == instance.expires_us:
        return "WINDOW_PASSED", f"no attempt could start before the retry window ended at {latest}{held}"
    return "QUEUE_TIMEOUT", f"no attempt could start before the queue time-out at {latest}{held}"
