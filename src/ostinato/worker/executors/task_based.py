"""What executors share that run each attempt as a coroutine of the supervisor's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ostinato.clock import Clock
from ostinato.core.failure.failure import safe_failure
from ostinato.worker.executors.protocol import AttemptFinished, AttemptStart, EventSink, StopReason


class StopRequest:
    """That an attempt must end: cooperatively now, hard at `kill_us` (boot time)."""

    def __init__(self) -> None:
        self.reason: StopReason | None = None
        self.kill_us = 0
        self.changed = asyncio.Event()

    def ask(self, reason: StopReason, kill_us: int) -> None:
        """Ask for the end; a second call may only bring the kill forward."""
        if self.reason is None or kill_us < self.kill_us:
            self.reason, self.kill_us = reason, kill_us
            self.changed.set()


#: Runs one attempt to its end, whatever that is; raises only on a bug of the executor.
Runner = Callable[[AttemptStart, StopRequest], Awaitable[AttemptFinished]]


class AttemptTasks:
    """One asyncio task per attempt; each ends in exactly one ``AttemptFinished``."""

    def __init__(self, run: Runner, *, clock: Clock, sink: EventSink, kind: str) -> None:
        self._run = run
        self._clock = clock
        self._sink = sink
        self._kind = kind
        self._tasks: dict[str, tuple[asyncio.Task[None], StopRequest]] = {}
        self._is_closed = False

    def start(self, attempts: Sequence[AttemptStart]) -> None:
        """Begin attempts; after `close` each ends at once, unstarted."""
        for start in attempts:
            stop = StopRequest()
            if self._is_closed:
                self._sink.finished([unstarted(start, "the worker is closing", now_us=self._clock.wall_us())])
                continue
            task = asyncio.create_task(self._run_to_end(start, stop))
            self._tasks[start.assignment.attempt_id] = (task, stop)

    def stop(self, attempt_id: str, *, reason: StopReason, grace_us: int) -> None:
        """Ask an attempt to end; unknown and ended ones are ignored."""
        entry = self._tasks.get(attempt_id)
        if entry is not None:
            entry[1].ask(reason, self._clock.boot_us() + grace_us)

    async def close(self) -> None:
        """End all attempts without grace and wait for them; idempotent."""
        self._is_closed = True
        for _, stop in self._tasks.values():
            stop.ask(StopReason.DRAIN, self._clock.boot_us())
        if self._tasks:
            await asyncio.wait([task for task, _ in self._tasks.values()])

    async def _run_to_end(self, start: AttemptStart, stop: StopRequest) -> None:
        attempt_id = start.assignment.attempt_id
        try:
            finished = await self._run(start, stop)
        except Exception as error:  # noqa: BLE001 - our bug must not leave it running
            finished = unstarted(
                start, f"{type(error).__name__}: {error}", now_us=self._clock.wall_us(), what=self._kind
            )
        finally:
            del self._tasks[attempt_id]
        self._sink.finished([finished])


def unstarted(start: AttemptStart, message: str, *, now_us: int, what: str = "attempt") -> AttemptFinished:
    """End of an attempt that its executor could not run."""
    return AttemptFinished(
        attempt_id=start.assignment.attempt_id,
        started_us=None,
        finished_us=now_us,
        failure=safe_failure("EXECUTOR_ERROR", f"the {what} could not be run: {message}"),
    )


async def until_stopped_or(stop: StopRequest, *awaited: asyncio.Future[int] | asyncio.Task[object]) -> bool:
    """Wait until one of `awaited` is done or a stop is asked for or brought forward; True if it is."""
    waiting = asyncio.ensure_future(stop.changed.wait())
    try:
        await asyncio.wait([waiting, *awaited], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return stop.changed.is_set()
