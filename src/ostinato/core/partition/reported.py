"""What a worker reports, made fit to be recorded: its clock may be wrong, and it may not be ours."""

from __future__ import annotations

import msgspec

from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.model import Outcome
from ostinato.core.partition.running import RunningAttempt
from ostinato.core.payload import RESULT_BYTES_MAX

_json = msgspec.json.Decoder(msgspec.Raw)


def checked(outcome: Outcome, attempt: RunningAttempt, *, now_us: int) -> Outcome:
    """The outcome with instants between the assignment and now, and a result that can be kept.

    How long the attempt ran is the worker's to say; when, on a clock that is off by years, is not, as the
    end decides how long the instance is kept. A result that is no JSON or too large becomes ``BAD_RESULT``.
    """
    finished_us = min(max(outcome.finished_us, attempt.assigned_us), now_us)
    started_us = outcome.started_us
    if started_us is not None:
        ran_us = min(max(0, outcome.finished_us - started_us), max(0, finished_us - attempt.assigned_us))
        started_us = finished_us - ran_us
    failure, result = outcome.failure, outcome.result
    if failure is None and result is not None and (bad := _problem(result)) is not None:
        failure, result = bad, None
    elif started_us == outcome.started_us and finished_us == outcome.finished_us:
        return outcome
    return msgspec.structs.replace(
        outcome, started_us=started_us, finished_us=finished_us, failure=failure, result=result
    )


def plausible_us(instant_us: int | None, *, now_us: int) -> int | None:
    """An instant that a stale report names, which must be in the past and after 1970."""
    return None if instant_us is None else min(max(0, instant_us), now_us)


def _problem(result: bytes) -> Failure | None:
    if len(result) > RESULT_BYTES_MAX:
        said = f"the worker reported a result of {len(result)} bytes; at most {RESULT_BYTES_MAX} are stored"
        return safe_failure("BAD_RESULT", said)
    try:
        _json.decode(result)
        result.decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return safe_failure("BAD_RESULT", f"the worker reported a result that is no JSON: {error}")
    return None
