"""A Python executor with an app of a test's own: the tasks' source in, the ends of attempts out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from ostinato.clock import SystemClock
from ostinato.core.definition import Isolation, PythonSpec
from ostinato.core.failure.failure import Failure
from ostinato.testing.contracts.executor_harness import (
    DEADLINE_SECONDS,
    RecordingSink,
    attempt_of,
    opened,
    task_spec,
)
from ostinato.worker.executors.protocol import AttemptFinished, AttemptStart
from ostinato.worker.executors.python import PythonExecutor, build_python_executor
from ostinato.worker.resources import Resources


class PythonWorker:
    """An open executor and what happens in it."""

    def __init__(self, executor: PythonExecutor, sink: RecordingSink) -> None:
        self.executor = executor
        self.sink = sink

    def start(
        self,
        name: str,
        *,
        isolation: Isolation = "shared",
        memory_limit_bytes: int | None = None,
        cpu_limit: float | None = None,
        **payload: object,
    ) -> AttemptStart:
        """Start an attempt of a task; one whose name begins with ``async`` is a coroutine."""
        spec = task_spec(
            name,
            PythonSpec(call="", is_async=name.startswith("async")),
            isolation=isolation,
            memory_limit_bytes=memory_limit_bytes,
            cpu_limit=cpu_limit,
        )
        start = attempt_of(spec, msgspec.json.encode(payload))
        self.executor.start([start])
        return start

    async def end(self, start: AttemptStart) -> AttemptFinished:
        """Wait for the end of an attempt."""
        return await self.sink.end_of(start.assignment.attempt_id)

    async def result(self, start: AttemptStart) -> Any:
        """What an attempt returned."""
        finished = await self.end(start)
        assert finished.failure is None, finished.failure
        assert finished.result is not None
        return msgspec.json.decode(finished.result)

    async def failure(self, start: AttemptStart) -> Failure:
        """Why an attempt failed."""
        finished = await self.end(start)
        assert finished.failure is not None, finished
        return finished.failure


@asynccontextmanager
async def python_worker(
    folder: Path, source: str, *, slots: int = 1, resources: Resources | None = None
) -> AsyncIterator[PythonWorker]:
    """An executor for the tasks in `source`, which finds ``app`` and ``Context``; its data is in `folder`."""
    app = folder / "tasks.py"
    app.write_text(f"from ostinato import App, Context, current_context\napp = App('sample')\n{source}")
    executor = build_python_executor(
        app=str(app),
        clock=SystemClock(),
        process_slots=slots,
        data_dir=folder / "data",
        resources=resources,
    )
    async with opened(executor) as sink:
        yield PythonWorker(executor, sink)


async def text_in(path: Path) -> str:
    """Wait until a task has written its note."""
    await until(lambda: _text_now(path) != "")
    return _text_now(path)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what no event tells."""
    clock = SystemClock()
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():
            await clock.sleep_until_us(clock.boot_us() + 5_000)


def _text_now(path: Path) -> str:
    return path.read_text() if path.exists() else ""
