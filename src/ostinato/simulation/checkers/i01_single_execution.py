"""I1: at every moment at most one worker executes a strict instance, and no attempt begins twice.

Stronger, and seen earlier: no strict attempt is over in the database while it executes.

There are two allowances. The design's own: a machine that was frozen whole and wakes after its lease runs on
until its guard acts. While it is frozen it executes nothing. And where supervisor and guardian are frozen at
once, each of which would have acted for the other, nobody ends what runs beside them (docs/worker.md). Either
way what had begun there before must end within ``WAKING_US`` of the waking; nothing begins there any more,
since that is checked just before user code.
"""

from __future__ import annotations

from ostinato.core.instants import MILLISECOND
from ostinato.core.states import State
from ostinato.simulation.checkers.checker import Checker, Known, Report, Transaction
from ostinato.simulation.checkers.remembered import Remembered
from ostinato.simulation.history import Event, ExecutionBegan, ExecutionEnded, Fault, RowCommitted

#: Between two looks of a guardian at the leases (``worker/guardian_main.py``), and as much for the kill.
WAKING_US = 500 * MILLISECOND
#: During this nothing runs on a machine.
_FROZEN = "machine_frozen"
#: During both of these nobody on a machine can act.
_GUARDS = frozenset({"supervisor_frozen", "guardian_frozen"})


class SingleExecution(Checker):
    """Knows what executes where."""

    invariant = "I1"
    listens = (Transaction, ExecutionBegan, ExecutionEnded, Fault)

    def __init__(self, known: Known, report: Report) -> None:
        super().__init__(known, report)
        self._begun: Remembered[str, None] = Remembered()
        #: By attempt id, and of each instance the attempts that execute.
        self._executing: dict[str, ExecutionBegan] = {}
        self._by_instance: dict[str, list[str]] = {}
        #: By machine: what is frozen there.
        self._frozen: dict[str, set[str]] = {}
        self._woken_us: dict[str, int] = {}
        #: Executions that another attempt has overtaken while their machine was frozen.
        self._overtaken: set[str] = set()

    def on(self, event: Event) -> None:
        match event:
            case Transaction():
                for row in event.rows:
                    self._take(row)
            case ExecutionBegan():
                self._begin(event)
            case ExecutionEnded():
                self._end(event)
            case Fault() if event.kind == _FROZEN or event.kind in _GUARDS:
                was_unguarded = self._is_unguarded(event.target)
                kinds = self._frozen.setdefault(event.target, set())
                (kinds.discard if event.ends else kinds.add)(event.kind)
                if was_unguarded and not self._is_unguarded(event.target):
                    self._woken_us[event.target] = event.at_us

    def finish(self, at_us: int) -> None:
        for attempt_id in sorted(self._overtaken):
            self._require_end(self._executing[attempt_id], at_us)

    def _take(self, row: RowCommitted) -> None:
        before, after = row.before, row.after
        if before is None or after is None or before.state is not State.RUNNING:
            return
        began = self._executing.get(before.attempt_id)
        if began is None or not began.is_strict:
            return
        if after.state is State.RUNNING and after.attempt_id == before.attempt_id:
            return
        if self._may_run_on(began, row.at_us):
            self._overtaken.add(began.attempt_id)
        else:
            self.violate(
                row.at_us,
                before.id,
                f"attempt {before.attempt} is over ({after.state}: {after.reason}) while it executes on "
                f"{began.machine}, since {began.at_us}",
            )

    def _begin(self, event: ExecutionBegan) -> None:
        if event.attempt_id in self._begun:
            self.violate(event.at_us, event.instance_id, f"attempt {event.attempt_id} has begun twice")
        self._begun.put(event.attempt_id, None, at_us=event.at_us)
        others = self._by_instance.setdefault(event.instance_id, [])
        for attempt_id in others:
            other = self._executing[attempt_id]
            if not (event.is_strict and other.is_strict):
                continue
            if self._may_run_on(other, event.at_us):
                self._overtaken.add(attempt_id)
            else:
                self.violate(
                    event.at_us,
                    event.instance_id,
                    f"attempt {event.attempt} begins on {event.machine} while attempt {other.attempt} "
                    f"executes on {other.machine}, since {other.at_us}",
                )
        others.append(event.attempt_id)
        self._executing[event.attempt_id] = event

    def _end(self, event: ExecutionEnded) -> None:
        began = self._executing.pop(event.attempt_id, None)
        if began is None:
            return
        attempts = self._by_instance[began.instance_id]
        attempts.remove(event.attempt_id)
        if not attempts:
            del self._by_instance[began.instance_id]
        if event.attempt_id in self._overtaken:
            self._overtaken.discard(event.attempt_id)
            self._require_end(began, event.at_us)

    def _is_unguarded(self, machine: str) -> bool:
        kinds = self._frozen.get(machine, set())
        return _FROZEN in kinds or kinds >= _GUARDS

    def _may_run_on(self, began: ExecutionBegan, at_us: int) -> bool:
        if self._is_unguarded(began.machine):
            return True
        woken_us = self._woken_us.get(began.machine)
        return woken_us is not None and began.at_us <= woken_us and at_us <= woken_us + WAKING_US

    def _require_end(self, began: ExecutionBegan, at_us: int) -> None:
        if not self._may_run_on(began, at_us):
            self.violate(
                at_us,
                began.instance_id,
                f"attempt {began.attempt} went on for more than {WAKING_US} us after its machine "
                f"{began.machine} woke, though another attempt had begun",
            )
