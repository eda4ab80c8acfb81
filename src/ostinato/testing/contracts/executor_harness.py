"""An executor under test, the attempts that the suite gives it, and a sink that remembers what it said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from ostinato.core.definition import ExecutorSpec, Isolation, TaskRef
from ostinato.core.instants import MINUTE, SECOND
from ostinato.core.model import OutputChunk
from ostinato.wire.messages import Assignment, TaskSpec
from ostinato.worker.executors.protocol import AttemptBeat, AttemptFinished, AttemptStart, Executor

#: Nothing in the suite takes long; what does hangs.
DEADLINE_SECONDS = 30.0


class ExecutorCase(Protocol):
    """One kind of executor, and tasks of its kind with known behaviour."""

    def make(self) -> Executor:
        """A new executor, not open."""
        ...

    @property
    def succeeds(self) -> TaskSpec:
        """A task that ends well at once."""
        ...

    @property
    def fails(self) -> tuple[TaskSpec, str]:
        """A task that fails at once, and the code of its failure."""
        ...

    @property
    def waits(self) -> TaskSpec:
        """A task that would run for minutes, and ends when it is asked to."""
        ...

    @property
    def stubborn(self) -> TaskSpec | None:
        """A task that would run for minutes and does not end when asked; None if there can be none."""
        ...

    @property
    def broken(self) -> TaskSpec:
        """A task that can never start."""
        ...

    @property
    def talks(self) -> TaskSpec | None:
        """A task that writes the lines ``one`` and ``two``; None if the kind has no output."""
        ...


class RecordingSink:
    """Remembers events in their order, and lets a test wait for them."""

    def __init__(self) -> None:
        self.started_ids: list[str] = []
        self.ends: dict[str, AttemptFinished] = {}
        self.end_counts: dict[str, int] = {}
        self.chunks: list[OutputChunk] = []
        self.beats: list[AttemptBeat] = []
        self._changed = asyncio.Event()

    def started(self, attempt_ids: Sequence[str]) -> None:
        self.started_ids.extend(attempt_ids)
        self._changed.set()

    def finished(self, events: Sequence[AttemptFinished]) -> None:
        for event in events:
            self.ends[event.attempt_id] = event
            self.end_counts[event.attempt_id] = self.end_counts.get(event.attempt_id, 0) + 1
        self._changed.set()

    def output(self, chunks: Sequence[OutputChunk]) -> None:
        self.chunks.extend(chunks)
        self._changed.set()

    def beat(self, events: Sequence[AttemptBeat]) -> None:
        self.beats.extend(events)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds after some event."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def end_of(self, attempt_id: str) -> AttemptFinished:
        """Wait for the end of an attempt."""
        await self.until(lambda: attempt_id in self.ends)
        return self.ends[attempt_id]

    async def start_of(self, attempt_id: str) -> None:
        """Wait until an attempt runs."""
        await self.until(lambda: attempt_id in self.started_ids)

    def text_of(self, attempt_id: str, stream: str = "") -> str:
        """What an attempt has written, in order."""
        return "".join(
            chunk.text
            for chunk in self.chunks
            if chunk.attempt_id == attempt_id and stream in ("", chunk.stream)
        )


def task_spec(
    name: str,
    executor: ExecutorSpec,
    *,
    timeout_us: int | None = MINUTE,
    grace_us: int = 10 * SECOND,
    heartbeat_timeout_us: int | None = None,
    isolation: Isolation = "shared",
    memory_limit_bytes: int | None = None,
    cpu_limit: float | None = None,
) -> TaskSpec:
    """Version 1 of a task of namespace ``default``."""
    return TaskSpec(
        ref=TaskRef("default", name),
        version=1,
        executor=executor,
        timeout_us=timeout_us,
        grace_us=grace_us,
        heartbeat_timeout_us=heartbeat_timeout_us,
        exclusive="strict",
        isolation=isolation,
        memory_limit_bytes=memory_limit_bytes,
        cpu_limit=cpu_limit,
    )


_counter = iter(range(1, 10**9))


def attempt_of(spec: TaskSpec, payload: bytes = b"{}", *, attempt: int = 1) -> AttemptStart:
    """A new attempt of a task."""
    number = next(_counter)
    assignment = Assignment(
        instance_id=f"instance-{number}",
        ref=spec.ref,
        version=spec.version,
        generation=1,
        attempt=attempt,
        attempt_id=f"{number:016x}",
        retry_count=attempt - 1,
        payload=payload,
        due_us=1_767_225_600_000_000,
    )
    return AttemptStart(assignment, spec)


@asynccontextmanager
async def opened(executor: Executor) -> AsyncIterator[RecordingSink]:
    """The executor, open, with a sink; closed at the end."""
    sink = RecordingSink()
    try:
        await executor.open(sink)
        yield sink
    finally:
        await executor.close()
