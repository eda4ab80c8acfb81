"""Containers at an engine that dies, freezes, forgets or answers halfway: each ends in a named failure."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from support.fake_engine import FakeEngine, fake_engine

from ostinato.core.instants import MILLISECOND, MINUTE, SECOND
from ostinato.testing.contracts.executor_harness import attempt_of, opened
from ostinato.worker.engine import run as engine_run
from ostinato.worker.executors.protocol import StopReason
from tests.worker.containers import (
    QUICK,
    container_task,
    end_of,
    failure_of,
    make_executor,
    running,
    until,
)

#: An engine that is frozen is noticed soon.
IMPATIENT = msgspec.structs.replace(QUICK, call_us=500 * MILLISECOND, act_us=SECOND)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeEngine]:
    with fake_engine(tmp_path) as engine:
        yield engine


async def test_without_an_engine_nothing_is_promised_and_what_comes_is_handed_back(
    engine: FakeEngine, tmp_path: Path
) -> None:
    engine.die()
    changes: list[bool] = []
    executor = make_executor(engine, tmp_path)
    executor.on_readiness(lambda: changes.append(executor.is_ready))
    async with opened(executor) as sink:
        assert not executor.is_ready
        start = attempt_of(container_task("true"))
        executor.start([start])
        finished = await sink.end_of(start.assignment.attempt_id)
        assert "the container engine does not answer: there is no socket" in finished.refused
        assert finished.started_us is None
        engine.listen()
        await until(lambda: executor.is_ready)
        again = attempt_of(container_task("true"))
        executor.start([again])
        assert (await sink.end_of(again.assignment.attempt_id)).failure is None
        engine.die()
        await until(lambda: not executor.is_ready)
    assert changes == [True, False]


async def test_an_engine_that_is_back_in_time_has_lost_nothing(engine: FakeEngine, tmp_path: Path) -> None:
    command = f"echo before; until [ -e {tmp_path}/go ]; do sleep 0.02; done; echo after"
    limits = msgspec.structs.replace(QUICK, away_us=MINUTE)
    async with running(engine, tmp_path, container_task(command), limits=limits) as (executor, sink, start):
        attempt_id = start.assignment.attempt_id
        await sink.until(lambda: sink.text_of(attempt_id) == "before\n")
        engine.die()
        await until(lambda: not executor.is_ready)
        engine.listen()
        (tmp_path / "go").touch()
        finished = await sink.end_of(attempt_id)
    assert finished.failure is None
    assert sink.text_of(attempt_id) == "before\nafter\n", "what was read before is not read twice"


async def test_while_the_container_is_seen_to_run_it_has_not_ended_though_the_engine_has(
    engine: FakeEngine, tmp_path: Path
) -> None:
    async with running(engine, tmp_path, container_task(("sleep", "600"))) as (executor, sink, start):
        (container,) = engine.running()
        assert container.process is not None
        await until(lambda: any(request.endswith("/wait") for request in engine.requests))
        engine.die()
        limit_us = QUICK.away_us + SECOND
        await executor._clock.sleep_until_us(executor._clock.boot_us() + limit_us)
        assert start.assignment.attempt_id not in sink.ends, "it runs, whoever answers or not"
        container.process.send_signal(signal.SIGKILL)
        finished = await sink.end_of(start.assignment.attempt_id)
        engine.listen()
        await until(lambda: not engine.containers)
    failure = failure_of(finished)
    assert (failure.code, failure.category) == ("ENGINE_LOST", "lost")
    assert "its container has ended" in failure.message


async def test_a_stop_ends_a_container_whose_engine_has_died(engine: FakeEngine, tmp_path: Path) -> None:
    async with running(engine, tmp_path, container_task(("sleep", "600"))) as (executor, sink, start):
        (container,) = engine.running()
        assert container.process is not None
        process = psutil.Process(container.process.pid)
        await until(lambda: any(request.endswith("/wait") for request in engine.requests))
        engine.die()
        executor.stop(start.assignment.attempt_id, reason=StopReason.TIMEOUT, grace_us=SECOND // 5)
        finished = await sink.end_of(start.assignment.attempt_id)
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert failure_of(finished).code == "ENGINE_LOST"


async def test_an_engine_that_stays_away_ends_what_nobody_can_see(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As from within a container of the worker's own: the engine's processes are not among those seen here.
    monkeypatch.setattr(engine_run, "find_first_process", lambda *_, **__: None)
    async with running(engine, tmp_path, container_task(("sleep", "600"))) as (_, sink, start):
        engine.die()
        finished = await sink.end_of(start.assignment.attempt_id)
        engine.listen()
        await until(lambda: not engine.containers)
    assert "whether its container has ended is not known" in failure_of(finished).message


async def test_an_engine_that_is_frozen_is_as_one_that_is_away(engine: FakeEngine, tmp_path: Path) -> None:
    spec = container_task(("sleep", "600"))
    async with running(engine, tmp_path, spec, limits=IMPATIENT) as (executor, sink, start):
        await until(lambda: any(request.endswith("/wait") for request in engine.requests))
        engine.answers.clear()
        await until(lambda: not executor.is_ready)
        executor.stop(start.assignment.attempt_id, reason=StopReason.CANCELLED, grace_us=0)
        finished = await sink.end_of(start.assignment.attempt_id)
        engine.answers.set()
        await until(lambda: not engine.containers)
    assert failure_of(finished).code == "ENGINE_LOST"


async def test_a_container_that_somebody_removes_has_ended(engine: FakeEngine, tmp_path: Path) -> None:
    async with running(engine, tmp_path, container_task(("sleep", "600"))) as (_, sink, start):
        (container,) = engine.running()
        container.end()
        del engine.containers[container.id]
        finished = await sink.end_of(start.assignment.attempt_id)
    failure = failure_of(finished)
    assert (failure.code, failure.category) == ("CONTAINER_REMOVED", "transient")


async def test_a_start_that_is_not_answered_is_found_out(engine: FakeEngine, tmp_path: Path) -> None:
    engine.faults.add("start unanswered")
    finished, _, _ = await end_of(engine, tmp_path, container_task("echo ran"))
    assert json.loads(finished.result or b"")["stdout_tail"] == "ran"


async def test_a_wait_that_ends_early_is_not_taken_for_an_end(engine: FakeEngine, tmp_path: Path) -> None:
    engine.faults.add("wait ends early")
    finished, _, _ = await end_of(engine, tmp_path, container_task("sleep 0.5; exit 5"))
    assert failure_of(finished).code == "EXIT_5"


async def test_output_that_breaks_off_is_read_on_without_a_repeat(engine: FakeEngine, tmp_path: Path) -> None:
    engine.faults.add("logs break once")
    finished, sink, start = await end_of(engine, tmp_path, container_task("echo one; sleep 0.3; echo two"))
    assert finished.failure is None
    assert sink.text_of(start.assignment.attempt_id) == "one\ntwo\n"


async def test_output_that_never_ends_holds_up_no_end(engine: FakeEngine, tmp_path: Path) -> None:
    engine.faults.add("logs never end")
    finished, sink, start = await end_of(engine, tmp_path, container_task("echo one"))
    assert finished.failure is None
    text = sink.text_of(start.assignment.attempt_id)
    assert text == "one\n… [the container engine did not send the end of the output: it may be incomplete]\n"


async def test_an_engine_without_output_says_so(engine: FakeEngine, tmp_path: Path) -> None:
    engine.faults.add("no logs")
    finished, sink, start = await end_of(engine, tmp_path, container_task("echo one"))
    assert finished.failure is None
    assert "does not support reading" in sink.text_of(start.assignment.attempt_id, "log")
