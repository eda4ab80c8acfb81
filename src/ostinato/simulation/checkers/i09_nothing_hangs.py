"""I9: after the last fault nothing stays ``running`` for 2·OL + WL + 2 s, unless a live worker has it."""

from __future__ import annotations

from typing import NamedTuple

from ostinato.core.instants import SECOND
from ostinato.core.states import State
from ostinato.simulation.checkers.checker import Checker, Known, Report, Transaction
from ostinato.simulation.checkers.remembered import Remembered
from ostinato.simulation.history import Event, ExecutionBegan, ExecutionEnded, Phase, Tick


class _Running(NamedTuple):
    attempt_id: str
    since_us: int
    worker: str


class NothingHangs(Checker):
    """Looks about once a second at what is running, once everything is mended."""

    invariant = "I9"
    listens = (Transaction, ExecutionBegan, ExecutionEnded, Phase, Tick)

    def __init__(self, known: Known, report: Report) -> None:
        super().__init__(known, report)
        self._running: dict[str, _Running] = {}
        self._executing: set[str] = set()
        #: When an execution has ended: from then on its result is awaited.
        self._ended_us: Remembered[str, int] = Remembered()
        self._healed_us: int | None = None
        self._told: set[str] = set()

    @property
    def bound_us(self) -> int:
        """How long an attempt without a worker may stand as running."""
        return 2 * self.known.ownership_lease_us + self.known.worker_lease_us + 2 * SECOND

    def on(self, event: Event) -> None:
        match event:
            case Transaction():
                self._take(event)
            case ExecutionBegan():
                self._executing.add(event.attempt_id)
            case ExecutionEnded():
                self._executing.discard(event.attempt_id)
                self._ended_us.put(event.attempt_id, event.at_us, at_us=event.at_us)
            case Phase() if event.name == "healed":
                self._healed_us = event.at_us
            case Tick() if self._healed_us is not None:
                self._look(event.at_us, self._healed_us)

    def finish(self, at_us: int) -> None:
        if self._healed_us is not None:
            self._look(at_us, self._healed_us)

    def _take(self, event: Transaction) -> None:
        for row in event.rows:
            after = row.after
            if after is not None and after.state is State.RUNNING:
                known = self._running.get(after.id)
                if known is None or known.attempt_id != after.attempt_id:
                    self._running[after.id] = _Running(after.attempt_id, event.at_us, after.worker_name)
            elif row.before is not None and row.before.state is State.RUNNING:
                gone = self._running.pop(row.before.id, None)
                if gone is not None:
                    self._ended_us.pop(gone.attempt_id)

    def _look(self, at_us: int, healed_us: int) -> None:
        for instance_id, running in self._running.items():
            if running.attempt_id in self._executing or running.attempt_id in self._told:
                continue
            since_us = max(running.since_us, healed_us, self._ended_us.get(running.attempt_id) or 0)
            if at_us - since_us > self.bound_us:
                self._told.add(running.attempt_id)
                self.violate(
                    at_us,
                    instance_id,
                    f"attempt {running.attempt_id} of {running.worker} stands as running for "
                    f"{at_us - since_us} us, and no worker has it",
                )
