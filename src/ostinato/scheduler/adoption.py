"""Running attempts and the workers that report them: what goes on, what is lost for certain.

A report is what a worker says in its greeting, what it accepts on that stream later, and what it answers
when it is asked. It proves that the worker has an attempt. That it does *not* have one it proves only where
nothing can be on its way to it any more. An assignment of a former owner may still arrive, and be started,
until

* the lease under which it was sent has ended (``RunningAttempt.certain_from_boot_us``), or
* the worker has no other stream than the one that it greets on, or
* the worker knows the partition's new epoch, as it does when it answers: then it refuses older assignments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ostinato.core.partition.running import Loss, RunningAttempt
from ostinato.scheduler.sessions import Sessions, WorkerSession
from ostinato.scheduler.unreported import is_unreported
from ostinato.wire.messages import Cancel, Report


def adopt_reported(attempts: Iterable[RunningAttempt], sessions: Sessions) -> None:
    """Attempts of partitions just taken, against what connected workers have reported already.

    A wish to cancel is signalled again to whoever may have the attempt (design section 11).
    """
    by_attempt = {
        attempt_id: session for session in sessions.by_id.values() for attempt_id in session.reported
    }
    ended_workers = {
        worker_id
        for session in sessions.by_id.values()
        for worker_id in session.hello.ended_workers
        if worker_id not in sessions.by_id
    }
    for attempt in attempts:
        session = by_attempt.get(attempt.attempt_id)
        if session is not None:
            _confirm(attempt, session)
        elif attempt.worker_id in ended_workers:
            attempt.lost = _ended(attempt)
        else:
            session = sessions.by_id.get(attempt.worker_id)
        if session is not None:
            _repeat_cancel(attempt, session)


def adopt_greeting(
    session: WorkerSession,
    attempts: Iterable[RunningAttempt],
    *,
    connected: Iterable[str],
    boot_us: int,
) -> set[str]:
    """What the worker has goes on; what it was given and has not is lost with certainty.

    Returns the attempt ids of its report that are not among `attempts`. `connected` are the ids of workers
    that are connected here: they have not ended, whatever is said of them.
    """
    unknown = {report.attempt_id for report in session.hello.running}
    has_one_stream = session.hello.stream > 0 and not session.hello.open_streams
    ended_workers = frozenset(session.hello.ended_workers).difference(connected)
    for attempt in attempts:
        if attempt.attempt_id in unknown:
            unknown.remove(attempt.attempt_id)
            _confirm(attempt, session)
            attempt.heartbeat_sequence = None
            _repeat_cancel(attempt, session)
        elif attempt.worker_id in ended_workers:
            attempt.lost = _ended(attempt)
        elif attempt.worker_id == session.worker_id and (
            attempt.is_confirmed or has_one_stream or attempt.certain_from_boot_us <= boot_us
        ):
            code = "WORKER_LOST" if attempt.acknowledged else "NOT_ACKNOWLEDGED"
            attempt.lost = Loss(code, f"worker {session.worker_name} came back without it")
    return unknown


def adopt_report(
    session: WorkerSession,
    report: Report,
    *,
    attempts: Iterable[RunningAttempt],
    epochs: Mapping[int, int],
) -> bool:
    """What the worker has of a former owner's goes on; what it will never start is lost: True if any is.

    `epochs` are those of the partitions that this node owns.
    """
    reported = {running.attempt_id for running in report.running}
    listed = session.listed(report.sequence)
    is_any_lost = False
    for attempt in attempts:
        if not is_unreported(attempt):
            continue
        if attempt.attempt_id in reported:
            _confirm(attempt, session)
            attempt.heartbeat_sequence = None
            _repeat_cancel(attempt, session)
        elif (
            attempt.worker_id == session.worker_id
            and attempt.partition in listed
            and listed[attempt.partition] == epochs.get(attempt.partition)
        ):
            message = f"its assignment never reached worker {session.worker_name}"
            attempt.lost = Loss("NOT_ACKNOWLEDGED", message)
            is_any_lost = True
    return is_any_lost


def _confirm(attempt: RunningAttempt, session: WorkerSession) -> None:
    attempt.worker_id = session.worker_id
    attempt.acknowledged = True
    attempt.is_confirmed = True
    attempt.lost = None
    session.is_undated = True


def _ended(attempt: RunningAttempt) -> Loss:
    return Loss("WORKER_LOST", f"worker {attempt.worker_name} is gone and its processes have ended")


def _repeat_cancel(attempt: RunningAttempt, session: WorkerSession) -> None:
    if attempt.cancel_requested:
        session.post([Cancel(attempt.instance_id, attempt.attempt_id, attempt.cancel_reason)])
