"""The guardian ends containers: at the end of a lease, and when the supervisor is dead or frozen (I1)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from support.fake_engine import VERSION, FakeContainer, FakeEngine, fake_engine
from support.processes_of import is_living

from ostinato.clock import SystemClock
from ostinato.core.instants import MINUTE, SECOND
from ostinato.testing.contracts.executor_harness import attempt_of, opened
from ostinato.worker.engine.request import create_body
from ostinato.worker.guardian import Guardian
from ostinato.worker.guardian_containers import CONTAINER_MARGIN_US
from ostinato.worker.guardian_messages import Container
from tests.worker.containers import container_task, failure_of, make_executor, until


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeEngine]:
    with fake_engine(tmp_path) as engine:
        yield engine


@asynccontextmanager
async def guarded(clock: SystemClock) -> AsyncIterator[Guardian]:
    guardian = Guardian(clock=clock)
    await guardian.start()
    try:
        yield guardian
    finally:
        await guardian.close()


def sleeper(engine: FakeEngine, name: str) -> FakeContainer:
    """A container that runs, whoever has made it."""
    start = attempt_of(container_task(("sleep", "600")))
    body = create_body(start.assignment, start.spec, deadline_us=None, labels={})
    container = engine.create(name, body)
    assert container.start() == ""
    return container


def told(engine: FakeEngine, name: str, lease_ends_us: int | None) -> Container:
    return Container(name, str(engine.socket), VERSION, lease_ends_us)


async def test_a_lease_that_nobody_extends_ends_its_container_before_its_end(engine: FakeEngine) -> None:
    clock = SystemClock()
    async with guarded(clock) as guardian:
        ends_us = clock.boot_us() + 4 * SECOND
        for name in ("strict", "extended", "relaxed"):
            sleeper(engine, name)
        guardian.guard_container(told(engine, "strict", ends_us))
        guardian.guard_container(told(engine, "extended", ends_us))
        guardian.guard_container(told(engine, "relaxed", None))
        guardian.guard_container(told(engine, "extended", ends_us + MINUTE))
        await until(lambda: guardian.has_ended_container("strict"))
        assert ends_us - CONTAINER_MARGIN_US <= clock.boot_us() < ends_us
        assert engine.find("strict") is None
        assert not guardian.has_ended_container("extended")
        assert [container.name for container in engine.running()] == ["extended", "relaxed"]
        guardian.container_gone("strict")
        assert not guardian.has_ended_container("strict")


async def test_one_that_the_engine_does_not_know_has_ended(engine: FakeEngine) -> None:
    clock = SystemClock()
    async with guarded(clock) as guardian:
        guardian.guard_container(told(engine, "never-made", clock.boot_us()))
        await until(lambda: guardian.has_ended_container("never-made"))
        assert engine.requests == ["DELETE /containers/never-made"]


async def test_an_engine_that_is_away_is_asked_until_it_answers(engine: FakeEngine) -> None:
    clock = SystemClock()
    async with guarded(clock) as guardian:
        container = sleeper(engine, "strict")
        engine.die()
        guardian.guard_container(told(engine, "strict", clock.boot_us()))
        await clock.sleep_until_us(clock.boot_us() + SECOND)
        assert container.is_running
        assert not guardian.has_ended_container("strict")
        engine.listen()
        await until(lambda: guardian.has_ended_container("strict"))
        assert not container.is_running


async def test_a_frozen_engine_freezes_no_guardian(engine: FakeEngine) -> None:
    clock = SystemClock()
    async with guarded(clock) as guardian:
        sleeper(engine, "strict")
        engine.answers.clear()
        guardian.guard_container(told(engine, "strict", clock.boot_us()))
        await until(lambda: "DELETE /containers/strict" in engine.requests)
        child = await guardian.spawn(["/bin/sleep", "600"], env={}, marker="m", stdout=2, stderr=2)
        await child.kill_tree()
        assert guardian.start_count == 1
        engine.answers.set()
        await until(lambda: guardian.has_ended_container("strict"))


async def test_a_guardian_that_takes_anothers_place_knows_the_containers(engine: FakeEngine) -> None:
    clock = SystemClock()
    async with guarded(clock) as guardian:
        container = sleeper(engine, "strict")
        guardian.guard_container(told(engine, "strict", clock.boot_us() + 6 * SECOND))
        os.kill(guardian.pid, signal.SIGKILL)
        await until(lambda: guardian.start_count == 2)
        assert container.is_running, "it is nobody's child, and the supervisor lives"
        await until(lambda: guardian.has_ended_container("strict"))


async def test_the_attempt_of_a_container_that_the_guardian_ended_is_lost_with_its_lease(
    engine: FakeEngine, tmp_path: Path
) -> None:
    clock = SystemClock()
    async with guarded(clock) as guardian:
        executor = make_executor(engine, tmp_path, guardian=guardian, clock=clock)
        async with opened(executor) as sink:
            start = attempt_of(container_task(("sleep", "600")))
            start.lease_ends_us = clock.boot_us() + 8 * SECOND
            executor.start([start])
            finished = await sink.end_of(start.assignment.attempt_id)
            assert clock.boot_us() < start.lease_ends_us
    assert failure_of(finished).code in ("LEASE_EXPIRED", "CONTAINER_REMOVED")
    assert finished.started_us is not None


async def test_an_attempt_whose_lease_is_extended_goes_on(engine: FakeEngine, tmp_path: Path) -> None:
    clock = SystemClock()
    async with guarded(clock) as guardian:
        executor = make_executor(engine, tmp_path, guardian=guardian, clock=clock)
        async with opened(executor) as sink:
            start = attempt_of(container_task("sleep 4"))
            start.lease_ends_us = clock.boot_us() + 5 * SECOND
            executor.start([start])
            await sink.start_of(start.assignment.attempt_id)
            start.lease_ends_us += MINUTE
            executor.leases_moved()
            finished = await sink.end_of(start.assignment.attempt_id)
    assert finished.failure is None


SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from ostinato.clock import SystemClock
from ostinato.testing.contracts.executor_harness import RecordingSink, attempt_of
from ostinato.worker.executors.container import ContainerExecutor
from ostinato.worker.guardian import Guardian
from tests.worker.containers import container_task

async def main(socket, folder):
    clock = SystemClock()
    guardian = Guardian(clock=clock)
    await guardian.start()
    guardian.lease(1, worker_lease_us=6_000_000, last_end_us=0)
    executor = ContainerExecutor(clock=clock, socket=Path(socket), data_dir=Path(folder), worker_id="w",
                                 worker_name="w", guardian=guardian)
    sink = RecordingSink()
    await executor.open(sink)
    strict, relaxed = (attempt_of(container_task(("sleep", "600"))) for _ in range(2))
    strict.lease_ends_us = clock.boot_us() + 8_000_000
    executor.start([strict, relaxed])
    for start in (strict, relaxed):
        await sink.start_of(start.assignment.attempt_id)
    print(guardian.pid, f"ostinato-{strict.assignment.attempt_id}", flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


@asynccontextmanager
async def supervisor_process(
    engine: FakeEngine, folder: Path
) -> AsyncIterator[tuple[subprocess.Popen[str], psutil.Process, str]]:
    """A process of its own with two containers; its guardian, and the name of the strict one."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", SUPERVISOR, str(engine.socket), str(folder)]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'tests'}"}
    with subprocess.Popen(  # noqa: ASYNC220 - at once
        command, stdout=subprocess.PIPE, text=True, cwd=root, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            guardian, name = process.stdout.readline().split()
            yield process, psutil.Process(int(guardian)), name
        finally:
            process.kill()


async def test_a_killed_supervisor_leaves_no_container(engine: FakeEngine, tmp_path: Path) -> None:
    async with supervisor_process(engine, tmp_path) as (process, guardian, _):
        assert len(engine.running()) == 2
        process.kill()
        process.wait()
        await until(lambda: not engine.containers)
        await until(lambda: not is_living(guardian))


async def test_c075_a_frozen_supervisor_loses_its_strict_container_at_the_end_of_its_lease(
    engine: FakeEngine, tmp_path: Path
) -> None:
    async with supervisor_process(engine, tmp_path) as (process, guardian, strict):
        process.send_signal(signal.SIGSTOP)
        await until(lambda: engine.find(strict) is None)
        assert len(engine.running()) == 1, "a relaxed one may go on"
        assert is_living(guardian)
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        await until(lambda: not engine.containers)
        await until(lambda: not is_living(guardian))


async def test_the_guardian_of_a_dead_supervisor_waits_for_its_engine(
    engine: FakeEngine, tmp_path: Path
) -> None:
    async with supervisor_process(engine, tmp_path) as (process, guardian, _):
        engine.die()
        process.kill()
        process.wait()
        clock = SystemClock()
        await clock.sleep_until_us(clock.boot_us() + SECOND)
        assert is_living(guardian)
        engine.listen()
        await until(lambda: not engine.containers)
        await until(lambda: not is_living(guardian))
