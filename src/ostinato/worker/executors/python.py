"""Runs Python functions: ``def`` in slot processes, ``async def`` in the loop process.

The supervisor never imports what users wrote; which tasks there are is read in the first process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ostinato.clock import Clock
from ostinato.core.definition import PythonSpec
from ostinato.worker.executors.protocol import AttemptStart, EventSink, StopReason
from ostinato.worker.known_tasks import KnownTasks
from ostinato.worker.loop_process import LoopHost
from ostinato.worker.python_process import PythonSettings
from ostinato.worker.slots import SlotPool


class PythonExecutor:
    """Executor of kind ``python``."""

    kind = "python"

    def __init__(self, *, settings: PythonSettings, clock: Clock, process_slots: int) -> None:
        self._settings = settings
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
        self._slots = SlotPool(
            size=self._process_slots, settings=self._settings, clock=self._clock, sink=sink
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
            if attempt.spec.executor.is_async:
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

    async def close(self) -> None:
        if self._slots is not None and self._loop_host is not None:
            await asyncio.gather(self._slots.close(), self._loop_host.close())


def build_python_executor(*, app: str, clock: Clock, process_slots: int) -> PythonExecutor:
    """Executor for the tasks of `app`: ``module[:attr]`` or ``path.py[:attr]``, several with commas."""
    settings = PythonSettings.of(app=app, clock=clock)
    return PythonExecutor(settings=settings, clock=clock, process_slots=process_slots)
