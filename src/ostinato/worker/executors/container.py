"""Runs containers at a Docker-compatible engine of this machine, over its UNIX socket.

The engine comes and goes; this looks every few seconds. While it is away the worker does not say that it can
run containers, and what has been assigned is handed back unstarted. What could not be removed meanwhile is
removed first when it is back.
"""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ostinato.clock import Clock
from ostinato.core.instants import SECOND
from ostinato.worker.engine.errors import EngineAway, EngineRefused
from ostinato.worker.engine.leftovers import mark, unmark
from ostinato.worker.engine.limits import EngineLimits
from ostinato.worker.engine.request import labels_of
from ostinato.worker.executors.protocol import AttemptFinished, AttemptStart, EventSink, StopReason
from ostinato.worker.executors.task_based import AttemptTasks, StopRequest, until_stopped_or
from ostinato.worker.guardian import Guardian
from ostinato.worker.waiting import within

if TYPE_CHECKING:
    from ostinato.worker.engine.client import Engine
    from ostinato.worker.engine.run import ContainerRun

_log = logging.getLogger("ostinato.worker")

#: How long a slot rests whose attempt was handed back, or the same one would come back at once.
_REST_US = 2 * SECOND
#: How long a worker that starts waits to learn whether there is an engine.
_FIRST_LOOK_US = 10 * SECOND


class ContainerExecutor:
    """Executor of kind ``container``. `data_dir` is the worker's own directory."""

    kind = "container"

    def __init__(
        self,
        *,
        clock: Clock,
        socket: Path,
        data_dir: Path,
        worker_id: str,
        worker_name: str,
        guardian: Guardian | None = None,
        limits: EngineLimits | None = None,
    ) -> None:
        """`guardian` ends what this does not; without one the executor has one of its own."""
        self._clock = clock
        self._socket = socket
        self._data_dir = data_dir
        self._worker_id = worker_id
        self._worker_name = worker_name
        self._guardian = guardian if guardian is not None else Guardian(clock=clock)
        self._owns_guardian = guardian is None
        self._limits = limits or EngineLimits()
        self._engine: Engine | None = None
        self._sink: EventSink | None = None
        self._attempts: AttemptTasks | None = None
        self._running: dict[str, ContainerRun] = {}
        #: Names of containers that could not be removed.
        self._left: set[str] = set()
        self._is_marked = False
        self._watching: asyncio.Task[None] | None = None
        self._on_changed: Callable[[], None] | None = None
        self._away_reason = "it has not been looked for"
        self._look_soon = asyncio.Event()
        self.is_ready = False

    async def open(self, sink: EventSink) -> None:
        await self._guardian.start()
        self._sink = sink
        self._attempts = AttemptTasks(self._run, clock=self._clock, sink=sink, kind="container")
        await self._look(limit_us=min(_FIRST_LOOK_US, self._limits.call_us))
        self._watching = asyncio.create_task(self._watch(), name="ostinato-engine")

    def on_readiness(self, changed: Callable[[], None]) -> None:
        self._on_changed = changed

    def start(self, attempts: Sequence[AttemptStart]) -> None:
        assert self._attempts is not None, "open() comes first"
        self._attempts.start(attempts)

    def stop(self, attempt_id: str, *, reason: StopReason, grace_us: int) -> None:
        assert self._attempts is not None, "open() comes first"
        self._attempts.stop(attempt_id, reason=reason, grace_us=grace_us)

    async def close(self) -> None:
        if self._attempts is not None:
            await self._attempts.close()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self._engine is not None:
            await self._remove_left()
            await self._engine.close()
        if self._is_marked and not self._left:
            unmark(self._data_dir)
            self._is_marked = False
        if self._owns_guardian:
            await self._guardian.close()

    def leases_moved(self) -> None:
        for run in self._running.values():
            run.lease_moved()

    # ── attempts ──────────────────────────────────────────────────────────────────────────────────────

    async def _run(self, start: AttemptStart, stop: StopRequest) -> AttemptFinished:
        attempt_id = start.assignment.attempt_id
        if not self.is_ready:
            return await self._refused(
                attempt_id, f"the container engine does not answer: {self._away_reason}", stop=stop
            )
        try:
            self._mark()
        except OSError as error:
            reason = f"the worker cannot write down that it runs containers: {error.strerror or error}"
            return await self._refused(attempt_id, reason, stop=stop)
        run = self._running[attempt_id] = self._new_run(start)
        try:
            finished = await run.to_end(stop)
        finally:
            del self._running[attempt_id]
        if finished.refused:
            await self._rest(stop)
        return finished

    def _new_run(self, start: AttemptStart) -> ContainerRun:
        # Not at the top, as it needs the client, and that httpx.
        from ostinato.worker.engine.run import ContainerRun

        assert self._engine is not None, "it is ready"
        assert self._sink is not None, "open() comes first"
        labels = labels_of(start.assignment, worker_id=self._worker_id, worker_name=self._worker_name)
        return ContainerRun(
            start,
            engine=self._engine,
            guardian=self._guardian,
            labels=labels,
            clock=self._clock,
            sink=self._sink,
            on_left=self._keep_left,
        )

    def _mark(self) -> None:
        if not self._is_marked:
            mark(self._data_dir, str(self._socket.absolute()))
            self._is_marked = True

    async def _refused(self, attempt_id: str, reason: str, *, stop: StopRequest) -> AttemptFinished:
        await self._rest(stop)
        now_us = self._clock.wall_us()
        return AttemptFinished(attempt_id=attempt_id, started_us=None, finished_us=now_us, refused=reason)

    async def _rest(self, stop: StopRequest) -> None:
        """Keep the slot for a moment, or the same attempt would come back at once, again and again."""
        self._look_soon.set()
        rested = asyncio.ensure_future(self._clock.sleep_until_us(self._clock.boot_us() + _REST_US))
        try:
            await until_stopped_or(stop, rested)
        finally:
            rested.cancel()

    # ── the engine ────────────────────────────────────────────────────────────────────────────────────

    async def _watch(self) -> None:
        while True:
            with suppress(TimeoutError):
                await within(self._clock, self._look_soon.wait(), limit_us=self._limits.watch_us)
            self._look_soon.clear()
            await self._look(limit_us=self._limits.call_us)

    async def _look(self, *, limit_us: int) -> None:
        """See whether the engine answers, and tell if that has changed."""
        self._away_reason = reason = await self._why_away(limit_us)
        if not reason and self._left:
            await self._remove_left()
        if bool(reason) != self.is_ready:
            return
        self.is_ready = not reason
        self._tell(reason)
        if self._on_changed is not None:
            self._on_changed()

    async def _why_away(self, limit_us: int) -> str:
        if not _is_socket(self._socket):
            return f"there is no socket {self._socket}"
        if self._engine is None:
            limits = self._limits
            self._engine = await asyncio.to_thread(_new_engine, self._socket, self._clock, limits=limits)
        try:
            await self._engine.look(limit_us=limit_us)
        except (EngineAway, EngineRefused) as error:
            return f"{self._socket}: {error}"
        return ""

    def _tell(self, reason: str) -> None:
        told = {"socket": str(self._socket)}
        if reason:
            _log.warning("container_engine_lost", extra={**told, "reason": reason})
        else:
            assert self._engine is not None, "it has answered"
            _log.info("container_engine_found", extra={**told, "version": self._engine.version})

    def _keep_left(self, name: str) -> None:
        self._left.add(name)
        self._look_soon.set()
        _log.warning("container_not_removed", extra={"container": name, "socket": str(self._socket)})

    async def _remove_left(self) -> None:
        assert self._engine is not None, "it has made them"
        for name in list(self._left):
            try:
                await self._engine.remove(name)
            except (EngineAway, EngineRefused):
                continue  # the next look may have more luck
            self._left.discard(name)
            self._guardian.container_gone(name)


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


def _new_engine(socket: Path, clock: Clock, *, limits: EngineLimits) -> Engine:
    # Not at the top: most workers never run a container, and httpx takes a fifth of a second and 5 MB.
    from ostinato.worker.engine.client import Engine

    return Engine(str(socket.absolute()), clock=clock, limits=limits)
