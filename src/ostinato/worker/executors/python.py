"""Runs Python functions: ``def`` and isolated ones in slot processes, ``async def`` in the loop process.

The supervisor never imports what users wrote; which tasks there are is read in the first process.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ostinato.clock import Clock
from ostinato.core.definition import PythonSpec
from ostinato.worker.executors.protocol import AttemptStart, EventSink, StopReason
from ostinato.worker.guardian import Guardian
from ostinato.worker.known_tasks import KnownTasks
from ostinato.worker.loop_process import LoopHost
from ostinato.worker.python_process import PythonSettings
from ostinato.worker.resources import Resources, RlimitResources
from ostinato.worker.slots import SlotPool, is_isolated


class PythonExecutor:
    """Executor of kind ``python``."""

    kind = "python"

    def __init__(
        self,
        *,
        settings: PythonSettings,
        resources: Resources,
        clock: Clock,
        process_slots: int,
        owns_guardian: bool,
    ) -> None:
        self._settings = settings
        self._resources = resources
        self._owns_guardian = owns_guardian
        self._clock = clock
        self._process_slots = process_slots
        self._slots: SlotPool | None = None
        self._loop_host: LoopHost | None = None
        self._known = KnownTasks()

    @property
    def known_tasks(self) -> KnownTasks:
        """What the app declares; complete once `open` has returned."""
        return self._known

    @property
    def slot_process_ids(self) -> list[int]:
        """Processes of ``def`` tasks, for whoever watches or kills them."""
        return [] if self._slots is None else self._slots.process_ids

    @property
    def loop_process_id(self) -> int:
        """Process of ``async def`` tasks; 0 when there is none."""
        return 0 if self._loop_host is None else self._loop_host.process_id

    async def open(self, sink: EventSink) -> None:
        """Import the app in a process of each sort that there will be, and wait for both."""
        await self._settings.guardian.start()
        self._slots = SlotPool(
            size=self._process_slots,
            settings=self._settings,
            resources=self._resources,
            clock=self._clock,
            sink=sink,
        )
        self._loop_host = LoopHost(settings=self._settings, clock=self._clock, sink=sink)
        self._loop_host.warm_up()
        if self._process_slots:
            self._slots.warm_up()
            await asyncio.wait([self._slots.known])
        self._known = await self._loop_host.known

    def start(self, attempts: Sequence[AttemptStart]) -> None:
        assert self._slots is not None, "open() comes first"
        assert self._loop_host is not None, "open() comes first"
        shared: list[AttemptStart] = []
        for attempt in attempts:
            assert isinstance(attempt.spec.executor, PythonSpec)
            if attempt.spec.executor.is_async and not is_isolated(attempt):
                shared.append(attempt)
            else:
                self._slots.start(attempt)
        if shared:
            self._loop_host.start(shared)

    def stop(self, attempt_id: str, *, reason: StopReason, grace_us: int) -> None:
        assert self._slots is not None, "open() comes first"
        assert self._loop_host is not None, "open() comes first"
        if not self._slots.stop(attempt_id, reason=reason, grace_us=grace_us):
            self._loop_host.stop(attempt_id, reason=reason, grace_us=grace_us)

    def leases_moved(self) -> None:
        if self._slots is not None and self._loop_host is not None:
            self._slots.leases_moved()
            self._loop_host.leases_moved()

    async def close(self) -> None:
        if self._slots is not None and self._loop_host is not None:
            await asyncio.gather(self._slots.close(), self._loop_host.close())
        if self._owns_guardian:
            await self._settings.guardian.close()


def build_python_executor(
    *,
    app: str,
    clock: Clock,
    process_slots: int,
    guardian: Guardian | None = None,
    data_dir: Path | None = None,
    resources: Resources | None = None,
) -> PythonExecutor:
    """Executor for the tasks of `app`: ``module[:attr]`` or ``path.py[:attr]``, several with commas.

    `guardian` starts the processes; without one the executor has one of its own. `data_dir` holds scratch
    directories (the system's folder for temporary files by default); `resources` enforces limits.
    """
    settings = PythonSettings.of(
        app=app,
        clock=clock,
        guardian=guardian or Guardian(clock=clock),
        data_dir=data_dir or Path(tempfile.gettempdir()),
    )
    return PythonExecutor(
        settings=settings,
        resources=resources or RlimitResources("no control group was looked for"),
        clock=clock,
        process_slots=process_slots,
        owns_guardian=guardian is None,
    )
