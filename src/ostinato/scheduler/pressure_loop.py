"""Measures what waits once a second, so that a level ends and is told also while nobody submits."""

from __future__ import annotations

from ostinato.control.pressure import PressureGate
from ostinato.core.instants import SECOND
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts

ROUND_US = SECOND


class PressureLoop(Loop):
    """Of every node whose settings name a limit, as each has a gate of its own."""

    name = "pressure"

    def __init__(self, parts: NodeParts, gate: PressureGate) -> None:
        super().__init__(parts.clock, parts.hooks)
        self._gate = gate

    async def run_once(self) -> int | None:
        """Measure once."""
        next_us = self._clock.boot_us() + ROUND_US
        await self._gate.measure()
        return next_us
