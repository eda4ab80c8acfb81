"""What tests of containers share: an executor at the fake engine, and its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.fake_engine import IMAGE, FakeEngine

from ostinato.clock import SystemClock
from ostinato.core.definition import ContainerSpec
from ostinato.core.failure.failure import Failure
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.testing.contracts.executor_harness import RecordingSink, attempt_of, opened, task_spec
from ostinato.wire.messages import TaskSpec
from ostinato.worker.engine.limits import EngineLimits
from ostinato.worker.executors.container import ContainerExecutor
from ostinato.worker.executors.protocol import AttemptFinished, AttemptStart
from ostinato.worker.guardian import Guardian

WORKER_ID = "worker-process-1"

#: Nothing here is slow by itself, so that what does not answer is given up soon.
QUICK = EngineLimits(
    call_us=10 * SECOND,
    act_us=5 * SECOND,
    look_us=300 * MILLISECOND,
    away_us=SECOND,
    pull_silence_us=300 * MILLISECOND,
    output_us=500 * MILLISECOND,
    watch_us=50 * MILLISECOND,
)


def container_task(command: str | tuple[str, ...] | None = None, **said: Any) -> TaskSpec:
    """A task of the image that the engine has. Options of the task as those of ``task_spec``."""
    options = {
        name: said.pop(name) for name in ("grace_us", "memory_limit_bytes", "cpu_limit") if name in said
    }
    return task_spec("boxed", ContainerSpec(said.pop("image", IMAGE), command, **said), **options)


def make_executor(
    engine: FakeEngine,
    folder: Path,
    *,
    guardian: Guardian | None = None,
    limits: EngineLimits = QUICK,
    worker_id: str = WORKER_ID,
    clock: SystemClock | None = None,
) -> ContainerExecutor:
    return ContainerExecutor(
        clock=clock or SystemClock(),
        socket=engine.socket,
        data_dir=folder / "workers" / worker_id,
        worker_id=worker_id,
        worker_name="build-1",
        guardian=guardian,
        limits=limits,
    )


async def end_of(
    engine: FakeEngine, folder: Path, spec: TaskSpec, payload: bytes = b"{}"
) -> tuple[AttemptFinished, RecordingSink, AttemptStart]:
    """Run one attempt to its end."""
    executor = make_executor(engine, folder)
    async with opened(executor) as sink:
        start = attempt_of(spec, payload)
        executor.start([start])
        return await sink.end_of(start.assignment.attempt_id), sink, start


@asynccontextmanager
async def running(
    engine: FakeEngine, folder: Path, spec: TaskSpec, **made: Any
) -> AsyncIterator[tuple[ContainerExecutor, RecordingSink, AttemptStart]]:
    """An attempt that has started."""
    executor = make_executor(engine, folder, **made)
    async with opened(executor) as sink:
        start = attempt_of(spec)
        executor.start([start])
        await sink.start_of(start.assignment.attempt_id)
        yield executor, sink, start


def failure_of(finished: AttemptFinished) -> Failure:
    assert finished.failure is not None
    assert finished.result is None
    return finished.failure


async def until(condition: Callable[[], object], *, within_seconds: float = 30.0) -> None:
    async with asyncio.timeout(within_seconds):
        while not condition():  # noqa: ASYNC110 - an engine has no events for us
            await asyncio.sleep(0.01)
