"""The pure parts of a worker: what an end means, deadlines, grants, batches."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from ostinato.clock import SystemClock
from ostinato.core.definition import (
    HttpSpec,
    Isolation,
    PythonSpec,
    ShellSpec,
    TaskDefinition,
    pool_of,
)
from ostinato.core.failure.failure import safe_failure
from ostinato.core.instants import SECOND
from ostinato.core.model import OutputChunk
from ostinato.errors import UserError
from ostinato.testing.contracts.executor_harness import attempt_of, task_spec
from ostinato.wire.messages import Accepted, Outcomes, Output
from ostinato.worker.attempt import RunningAttempt, kind_of, outcome_of, refusal
from ostinato.worker.config import WorkerConfig
from ostinato.worker.deadlines import DeadlineHeap, DeadlineKind
from ostinato.worker.executors.http import HttpExecutor
from ostinato.worker.executors.protocol import AttemptFinished, StopReason
from ostinato.worker.mail import BATCH_BYTES_MAX, OUTPUT_BYTES_MAX
from ostinato.worker.outbox import Outbox
from tests.worker.one_stream import STREAM, credits_of, mail_of, reopened

FAILURE = safe_failure("EXIT_3", "the command ended with exit status 3")


def attempt(stop: StopReason | None = None, *, stopped_us: int = 0) -> RunningAttempt:
    start = attempt_of(task_spec("any", ShellSpec(command="true"), timeout_us=2 * SECOND))
    made = RunningAttempt(start, pool="process", executor=HttpExecutor(clock=SystemClock()))
    made.stop_reason, made.stopped_us = stop, stopped_us
    return made


def ended(made: RunningAttempt, **fields: object) -> AttemptFinished:
    values: dict[str, object] = {"started_us": 10, "finished_us": 100} | fields
    return AttemptFinished(attempt_id=made.assignment.attempt_id, **values)  # type: ignore[arg-type]  # as above


# ── what an end means ─────────────────────────────────────────────────────────────────────────────────────


def test_an_attempt_that_was_not_stopped_ends_as_it_reports() -> None:
    made = attempt()
    assert outcome_of(made, ended(made, result=b"1")).result == b"1"
    assert outcome_of(made, ended(made)).result == b"null"
    assert outcome_of(made, ended(made, failure=FAILURE)).failure == FAILURE


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (StopReason.TIMEOUT, "TIMEOUT"),
        (StopReason.CANCELLED, "CANCELLED"),
        (StopReason.HEARTBEAT_TIMEOUT, "HEARTBEAT_TIMEOUT"),
        (StopReason.LEASE_ENDED, "LEASE_EXPIRED"),
        (StopReason.DRAIN, "HANDED_BACK"),
    ],
)
def test_c129_a_stop_decides_unless_the_result_was_there_first(reason: StopReason, code: str) -> None:
    made = attempt(reason, stopped_us=100)
    late = outcome_of(made, ended(made, result=b"1", finished_us=101))
    assert late.result is None
    assert late.failure is not None
    assert late.failure.code == code
    first = outcome_of(made, ended(made, result=b"1", finished_us=100))
    assert (first.result, first.failure) == (b"1", None)
    died = outcome_of(made, ended(made, failure=FAILURE, finished_us=50))
    assert died.failure is not None
    assert died.failure.code == code


def test_what_never_ran_is_handed_back_unstarted_by_a_drain_and_cancelled_by_a_cancel() -> None:
    drained = attempt(StopReason.DRAIN)
    outcome = outcome_of(drained, ended(drained, started_us=None, failure=FAILURE))
    assert outcome.unstarted_reason == "the worker drains"
    assert outcome.failure is None
    cancelled = attempt(StopReason.CANCELLED)
    outcome = outcome_of(cancelled, ended(cancelled, started_us=None, failure=FAILURE))
    assert outcome.unstarted_reason == ""
    assert outcome.failure is not None
    assert outcome.failure.code == "CANCELLED"


def test_a_neighbour_of_a_kill_is_collateral_and_lost() -> None:
    made = attempt()
    outcome = outcome_of(made, ended(made, failure=FAILURE, collateral=True))
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.category) == ("COLLATERAL", "lost")


@pytest.mark.parametrize("stop", [None, StopReason.LEASE_ENDED, StopReason.DRAIN])
def test_what_was_refused_just_before_its_start_is_handed_back_unstarted(stop: StopReason | None) -> None:
    made = attempt(stop)
    outcome = outcome_of(made, ended(made, started_us=None, refused="its lease was over"))
    assert (outcome.unstarted_reason, outcome.failure, outcome.result) == ("its lease was over", None, None)


def test_a_refusal_has_no_failure_and_no_start() -> None:
    outcome = refusal(attempt().assignment, reason="no free slot", now_us=7)
    assert (outcome.unstarted_reason, outcome.started_us, outcome.finished_us) == ("no free slot", None, 7)
    assert outcome.failure is None


@pytest.mark.parametrize(
    ("executor", "isolation", "kind", "pool"),
    [
        (PythonSpec(call="m:f"), "shared", "python", "process"),
        (PythonSpec(call="m:f"), "process", "python", "process"),
        (PythonSpec(call="m:f", is_async=True), "shared", "python", "async"),
        (PythonSpec(call="m:f", is_async=True), "process", "python", "process"),
        (ShellSpec(command="true"), "shared", "shell", "process"),
        (HttpSpec(method="GET", url="http://x"), "shared", "http", "async"),
    ],
)
def test_kind_and_pool_of_an_executor(
    executor: PythonSpec | ShellSpec | HttpSpec, isolation: Isolation, kind: str, pool: str
) -> None:
    definition = TaskDefinition("default", "task", executor, isolation=isolation)
    assert (kind_of(executor), pool_of(executor, isolation)) == (kind, pool)
    assert definition.pool == pool, "what the scheduler counts is what the worker takes"


# ── deadlines, grants, batches ────────────────────────────────────────────────────────────────────────────


def test_deadlines_come_in_order_and_those_of_ended_attempts_never() -> None:
    wanted = {f"a{n}" for n in range(0, 100, 2)}
    heap = DeadlineHeap(wanted.__contains__)
    times = list(range(100))
    Random(1).shuffle(times)
    for number in times:
        heap.push(number, f"a{number}", kind=DeadlineKind.TIMEOUT)
    assert heap.next_us == 0
    assert [deadline.at_us for deadline in heap.pop_due(49)] == list(range(0, 50, 2))
    assert heap.next_us == 50
    assert heap.pop_due(49) == []


def test_the_heap_does_not_grow_with_attempts_that_have_ended() -> None:
    live: set[str] = set()
    heap = DeadlineHeap(live.__contains__)
    for number in range(100_000):
        live.add(str(number))
        heap.push(10**9 + number, str(number), kind=DeadlineKind.TIMEOUT)
        live.discard(str(number - 100))
    assert len(heap) < 3_000


def test_grants_survive_streams_and_stop_rising_with_a_drain() -> None:
    credits = credits_of({"async": 2})
    assert credits.take(STREAM, "async")
    assert credits.granted(STREAM) == {"async": 2}
    second = reopened(credits, STREAM)
    assert credits.granted(second) == {"async": 1}
    assert credits.take(second, "async")
    assert not credits.take(second, "async")
    credits.give_back("async")
    assert credits.granted(second) == {"async": 2}
    credits.stop_granting()
    credits.give_back("async")
    assert credits.granted(second) == {"async": 2}
    third = reopened(credits, second)
    assert credits.granted(third) == {"async": 0}


def chunk(text: str) -> OutputChunk:
    return OutputChunk(
        instance_id="i", attempt=1, attempt_id="a", sequence=1, at_us=0, stream="stdout", text=text
    )


async def test_output_that_nobody_takes_is_bounded_and_does_not_hold_up_outcomes() -> None:
    outbox = Outbox()
    mail = mail_of(outbox)
    for _ in range(40):
        outbox.add_output([chunk("x" * (1024 * 1024))], partition_of=lambda _: 0)
    outbox.add_outcomes([refusal(attempt().assignment, reason="full", now_us=0)])
    outbox.accept(STREAM, ["a1"])
    first = mail.take()
    assert [type(message) for message in first] == [Accepted, Output, Outcomes]
    texts: list[str] = []
    while mail.has_mail.is_set():
        for message in mail.take():
            if isinstance(message, Output):
                assert sum(len(item.text) for item in message.chunks) <= BATCH_BYTES_MAX
                texts += [item.text for item in message.chunks]
    texts += [item.text for message in first if isinstance(message, Output) for item in message.chunks]
    assert len(texts) == 40
    assert sum(len(text) for text in texts) <= OUTPUT_BYTES_MAX + 40 * 100
    assert sum("output lost" in text for text in texts) == 24


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"worker_name": ""}, "worker_name"),
        ({"scheduler": ""}, "scheduler"),
        ({"capacity": {"gpu": 1}}, "capacity"),
        ({"capacity": {"async": -1}}, "capacity"),
        ({"drain_timeout_us": -1}, "drain_timeout"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_by_its_field(
    fields: dict[str, object], field: str
) -> None:
    config = WorkerConfig(worker_name="w", scheduler="s", capacity={"async": 0}, data_dir=Path("d"))
    assert config.validate() is config
    with pytest.raises(UserError) as caught:
        msgspec.structs.replace(config, **fields).validate()
    assert caught.value.field == field
