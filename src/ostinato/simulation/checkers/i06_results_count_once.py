"""I6: an attempt ends in the database once, by what it did; a late or repeated result has no effect.

A success needs an execution of exactly that attempt that returned, and what it returned. A result that was
safe on the worker's disk counts in the end, or stands in the history as refused.
"""

from __future__ import annotations

from collections import deque

from ostinato.core.instants import SECOND
from ostinato.core.model import HistoryKind, Instance
from ostinato.core.states import State
from ostinato.simulation.checkers.checker import Checker, Known, Report, Transaction, changed
from ostinato.simulation.checkers.remembered import Remembered
from ostinato.simulation.history import Event, ExecutionBegan, ExecutionEnded, Fault

#: A result is on the disk of a worker that works no later than this after the end of its execution.
SPOOLED_US = 5 * SECOND
#: Faults with which what a machine has not synced yet may be lost.
LOSSES = frozenset({"worker_killed", "machine_lost", "machine_frozen"})
#: While these last a result may wait, on no disk, for whatever comes next.
WAITS = frozenset({"disk_full", "disk_slow", "supervisor_frozen", "machine_replaced"})


class ResultsCountOnce(Checker):
    """Knows how every execution ended, and which attempts have ended in the database."""

    invariant = "I6"
    listens = (Transaction, ExecutionBegan, ExecutionEnded, Fault)

    def __init__(self, known: Known, report: Report) -> None:
        super().__init__(known, report)
        self._began: Remembered[str, ExecutionBegan] = Remembered()
        self._ended: Remembered[str, str] = Remembered()
        self._counted: Remembered[str, None] = Remembered()
        self._running: dict[str, str] = {}
        self._gone: Remembered[str, None] = Remembered()
        #: Results that no loss of a disk excuses: attempt id and machine, while they may not be synced yet.
        self._fresh: deque[tuple[int, str, str]] = deque()
        #: By attempt id: the instance, and the machine that has the result.
        self._owed: dict[str, tuple[str, str]] = {}
        #: What holds up a machine's results, each with the machine: several may at once.
        self._waiting: set[tuple[str, str]] = set()

    def on(self, event: Event) -> None:
        match event:
            case Transaction():
                self._take(event)
            case ExecutionBegan():
                self._began.put(event.attempt_id, event, at_us=event.at_us)
            case ExecutionEnded():
                self._end(event)
            case Fault():
                self._fault(event)

    def finish(self, at_us: int) -> None:
        # What ended at the very end may still be on its way.
        newest = {attempt_id for ended_us, attempt_id, _ in self._fresh if ended_us >= at_us - SPOOLED_US}
        for attempt_id, (instance_id, _) in self._owed.items():
            if attempt_id not in newest:
                self._require_result(at_us, instance_id, attempt_id=attempt_id)

    def _require_result(self, at_us: int, instance_id: str, *, attempt_id: str) -> None:
        self.violate(
            at_us,
            instance_id,
            f"attempt {attempt_id} ended and was safe on its worker's disk, and its result "
            "neither counts nor stands in the history as refused",
        )

    def _take(self, event: Transaction) -> None:
        for row in event.rows:
            both = changed(row)
            if both is None:
                if row.before is not None:
                    self._forget(event.at_us, row.before.id)
                continue
            before, after = both
            if after.state is State.RUNNING:
                self._running[after.id] = after.attempt_id
            if before.state is State.RUNNING and after.state is not State.RUNNING:
                self._running.pop(after.id, None)
                self._count(event, before, after)
        for told in event.history:
            if told.kind is HistoryKind.LATE_RESULT:
                self._owed.pop(told.attempt_id, None)
                if self._running.get(told.instance_id) == told.attempt_id:
                    sentence = f"the result of attempt {told.attempt}, which is running, was refused as late"
                    self.violate(event.at_us, told.instance_id, sentence)

    def _forget(self, at_us: int, instance_id: str) -> None:
        """It is deleted, long after it had ended: whatever of it was owed should be there."""
        self._gone.put(instance_id, None, at_us=at_us)
        for attempt_id in [known for known, owed in self._owed.items() if owed[0] == instance_id]:
            del self._owed[attempt_id]
            self._require_result(at_us, instance_id, attempt_id=attempt_id)

    def _count(self, event: Transaction, before: Instance, after: Instance) -> None:
        attempt_id = before.attempt_id
        if attempt_id in self._counted:
            self.violate(event.at_us, after.id, f"attempt {attempt_id} has ended twice")
        self._counted.put(attempt_id, None, at_us=event.at_us)
        told = [row for row in event.told_of(after.id) if row.attempt_id == attempt_id]
        if after.state is State.SUCCESS:
            self._owed.pop(attempt_id, None)
            if self._ended.get(attempt_id) != "returned":
                how = self._ended.get(attempt_id) or "did not end"
                sentence = f"attempt {before.attempt} counts as a success, and its execution {how}"
                self.violate(event.at_us, after.id, sentence)
            elif after.result is not None and attempt_id.encode() not in after.result:
                self.violate(event.at_us, after.id, f"its result is not that of attempt {attempt_id}")
        elif told and told[0].category != "lost":
            self._owed.pop(attempt_id, None)
            if told[0].category != "cancelled" and attempt_id not in self._began:
                sentence = f"attempt {before.attempt} failed with {told[0].code} and was never executed"
                self.violate(event.at_us, after.id, sentence)
        elif told and told[0].code in ("LEASE_EXPIRED", "HANDED_BACK", "COLLATERAL", "REFUSED"):
            # Its worker has said so itself: that is what became of the result.
            self._owed.pop(attempt_id, None)

    def _end(self, event: ExecutionEnded) -> None:
        if event.attempt_id in self._ended:
            return
        self._ended.put(event.attempt_id, event.how, at_us=event.at_us)
        began = self._began.get(event.attempt_id)
        if began is None or event.how == "killed":
            return
        if any(machine == began.machine for _, machine in self._waiting):
            return
        while self._fresh and self._fresh[0][0] < event.at_us - SPOOLED_US:
            self._fresh.popleft()
        self._fresh.append((event.at_us, event.attempt_id, began.machine))
        if began.instance_id not in self._gone:
            self._owed[event.attempt_id] = began.instance_id, began.machine

    def _fault(self, event: Fault) -> None:
        if event.kind in WAITS:
            (self._waiting.discard if event.ends else self._waiting.add)((event.kind, event.target))
        if event.ends:
            return
        if event.kind == "machine_replaced":
            self._owed = {
                attempt_id: owed for attempt_id, owed in self._owed.items() if owed[1] != event.target
            }
        elif event.kind in LOSSES | WAITS:
            for ended_us, attempt_id, machine in self._fresh:
                if machine == event.target and ended_us >= event.at_us - SPOOLED_US:
                    self._owed.pop(attempt_id, None)
