"""What a retry decision costs: CPU time of ``core.retry.verdict.decide``, and of the whole step around it.

Run ``python bench/decision.py [--count 20000] [--runs 5]``. Pure, on one core: no database, no clock. A
decision takes policy, failure and counters, and says when to retry or why not, in words. The last row is the
step that the owner of a partition takes for a failed attempt: the failure made safe, the decision, and the
rows of its transaction. Printed are medians of runs taken in turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from random import Random

from kit.rounds import in_turn, median
from kit.tables import table

from ostinato.core.definition import ShellSpec, TaskDefinition
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.model import Outcome
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.ended import end_attempt
from ostinato.core.partition.running import RunningAttempt
from ostinato.core.retry.counters import Counters
from ostinato.core.retry.policy import DEFAULT_POLICY, RetryPolicy, RetryRule
from ostinato.core.retry.verdict import decide

_NOW_US = 1_767_225_600_000_000
_SECOND_US = 1_000_000
_BOUND = "10"
_ONCE = Counters(failures=1, window_opened_us=_NOW_US - 5 * _SECOND_US, previous_delay_us=5 * _SECOND_US)

_REFUSED = safe_failure("ECONNREFUSED", "connection refused", category="transient")
_UNAVAILABLE = safe_failure("HTTP_503", "service unavailable", category="transient")
_ASKING = safe_failure("HTTP_503", "busy", category="transient", retry_after_us=30 * _SECOND_US)
_LOST = safe_failure("WORKER_LOST", "the lease has ended", category="lost")
_RULES = (
    RetryRule(("HTTP_404", "HTTP_410"), action="fail"),
    RetryRule(("ETIMEDOUT",), backoff="fixed", interval_us=_SECOND_US),
    RetryRule(("HTTP_5*",), backoff="linear", interval_us=2 * _SECOND_US, max_retry=2),
)

#: By what the row is called.
_CASES: dict[str, tuple[RetryPolicy, Failure, Counters]] = {
    "nothing said: exponential, ±10 %": (DEFAULT_POLICY, _REFUSED, _ONCE),
    "fixed, HTTP_5* on retry_on": (RetryPolicy("fixed", retry_on=("HTTP_5*",)), _UNAVAILABLE, _ONCE),
    "decorrelated jitter, window": (
        RetryPolicy(jitter="decorrelated", window_us=3600 * _SECOND_US),
        _REFUSED,
        _ONCE,
    ),
    "the third of three rules": (RetryPolicy(rules=_RULES), _UNAVAILABLE, _ONCE),
    "Retry-After": (DEFAULT_POLICY, _ASKING, _ONCE),
    "lost worker": (DEFAULT_POLICY, _LOST, _ONCE),
    "given up: retries used up": (DEFAULT_POLICY, _REFUSED, Counters(failures=3, window_opened_us=_NOW_US)),
}
_STEP = "the owner's step for a failed attempt"


def microseconds(call: Callable[[], object], count: int) -> float:
    """CPU time of one call, over `count` of them."""
    began = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - began) / count * 1e6


def step() -> Callable[[], object]:
    """A failed attempt's end, into effects of its own."""
    attempt = RunningAttempt(
        instance_id="0" * 26,
        partition=0,
        definition=TaskDefinition("default", "failing", ShellSpec(command="false")),
        task_version=1,
        generation=1,
        attempt=2,
        attempt_id="a",
        worker_id="w",
        worker_name="worker",
        assigned_us=_NOW_US - _SECOND_US,
        due_us=_NOW_US - _SECOND_US,
        counters=_ONCE,
    )
    outcome = Outcome(
        instance_id=attempt.instance_id,
        attempt=attempt.attempt,
        attempt_id=attempt.attempt_id,
        started_us=_NOW_US - _SECOND_US,
        finished_us=_NOW_US,
        failure=_REFUSED,
    )
    rng = Random(1)
    return lambda: end_attempt(attempt, outcome, now_us=_NOW_US, rng=rng, into=Effects())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    rng = Random(1)
    calls: dict[str, Callable[[], object]] = {
        name: partial(decide, policy, failure, counters, now_us=_NOW_US, rng=rng)
        for name, (policy, failure, counters) in _CASES.items()
    }
    calls[_STEP] = step()
    series = in_turn(
        {name: partial(microseconds, call, options.count) for name, call in calls.items()}, runs=options.runs
    )
    rows = [
        [name, f"{median(each) or 0.0:.1f}", _BOUND if name in _CASES else "-"]
        for name, each in series.items()
    ]
    print(table(["decision", "CPU µs", "bound"], rows))


if __name__ == "__main__":
    main()
