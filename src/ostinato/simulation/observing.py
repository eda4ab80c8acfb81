"""Hands what processes tell their hooks to the history of the run."""

from __future__ import annotations

from ostinato.observe.records import GroupCommitted, LoopTurned, Record
from ostinato.simulation.history import History, Observed
from ostinato.simulation.process import Process

#: So many that nobody could read them; what they say is in the commits.
_UNTOLD = (LoopTurned, GroupCommitted)


class Observer:
    """The hook of one process."""

    def __init__(self, history: History, process: Process) -> None:
        self._history = history
        self._process = process

    def on(self, record: Record) -> None:
        if self._process.is_alive and not isinstance(record, _UNTOLD):
            self._history.add(
                Observed(at_us=self._history.now_us(), process=self._process.name, record=record)
            )
