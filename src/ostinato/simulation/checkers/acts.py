"""What people ask for is done: cancel, replay, pause, disable, each answered once, by what is then true.

Design section 11: a cancel is on record before it is answered, and no retry follows it; a paused or disabled
task starts nothing once its owner has confirmed it.
"""

from __future__ import annotations

from ostinato.core.definition import TaskRef
from ostinato.core.instants import SECOND
from ostinato.core.model import Instance
from ostinato.core.states import TERMINAL_STATES, State
from ostinato.simulation.checkers.checker import Checker, Known, Report, Transaction
from ostinato.simulation.checkers.remembered import Remembered
from ostinato.simulation.history import (
    Event,
    ExecutionBegan,
    ExecutionEnded,
    Phase,
    RequestAnswered,
    RequestCommitted,
    RowCommitted,
    Tick,
)

#: A round that had begun when a flag was set goes on by what it knows: it decides so long after it at most.
FLAG_US = 5 * SECOND
#: So long after the healing every stream is a living one.
SETTLED_US = 16 * SECOND
#: What a wish to cancel may take to the worker, and its kill, beyond the grace.
CANCEL_US = 3 * SECOND


class Acts(Checker):
    """Knows the open requests, the flags of tasks, and which wishes to cancel are on record."""

    invariant = "acts"
    listens = (Transaction, RequestAnswered, ExecutionBegan, ExecutionEnded, Phase, Tick)

    def __init__(self, known: Known, report: Report) -> None:
        super().__init__(known, report)
        self._open: dict[str, RequestCommitted] = {}
        self._answers: Remembered[str, str] = Remembered()
        self._rows: dict[str, Instance] = {}
        #: Since when a task may start nothing, in shared time.
        self._resting_us: dict[TaskRef, int] = {}
        self._executing: dict[str, str] = {}
        #: Wishes to cancel what runs, in true time.
        self._wished_us: dict[str, int] = {}
        self._healed_us: int | None = None

    def on(self, event: Event) -> None:
        match event:
            case Transaction():
                self._take(event)
            case RequestAnswered() if event.request_id:
                said = self._answers.get(event.request_id) or "nothing"
                if said != event.answer_code:
                    sentence = f"the client read {event.answer_code}, and the owner had written {said}"
                    self.violate(event.at_us, event.request_id, sentence)
            case ExecutionBegan():
                self._executing[event.attempt_id] = event.instance_id
            case ExecutionEnded():
                self._wished_us.pop(self._executing.pop(event.attempt_id, ""), None)
            case Phase():
                self._healed_us = event.at_us if event.name == "healed" else self._healed_us
            case Tick():
                self._look_for_cancels(event.at_us)

    def finish(self, at_us: int) -> None:
        if self._healed_us is None:
            return
        for request in self._open.values():
            if request.at_us <= self._healed_us:
                subject = request.instance_id or request.task
                self.violate(at_us, subject, f"the {request.kind} {request.request_id} was never answered")

    def _take(self, event: Transaction) -> None:
        for row in event.rows:
            self._take_row(row)
        for change in event.tasks:
            task = change.after
            if task is not None and (task.paused or task.disabled):
                self._resting_us.setdefault(task.ref, self.known.shared_us(event.at_us))
            elif change.before is not None:
                self._resting_us.pop(change.before.ref, None)
        for request in event.requests:
            if not request.answer_code:
                self._open[request.request_id] = request
            elif self._open.pop(request.request_id, None) is None:
                self.violate(event.at_us, request.request_id, f"the {request.kind} was answered twice")
            else:
                self._answers.put(request.request_id, request.answer_code, at_us=event.at_us)
                self._check_answer(event, request)

    def _take_row(self, row: RowCommitted) -> None:
        before, after = row.before, row.after
        if after is None:
            if before is not None:
                self._rows.pop(before.id, None)
            return
        self._rows[after.id] = after
        if before is None:
            if after.fire_us is not None:
                self._check_rest(row.at_us, after, decided_us=after.created_us)
            return
        if before.state is not State.RUNNING and after.state is State.RUNNING:
            self._check_rest(row.at_us, after, decided_us=after.assigned_us or 0)
            if before.cancel_requested_us is not None:
                self.violate(row.at_us, after.id, "it is assigned, though its cancel is on record")
        if before.cancel_requested_us is None and after.cancel_requested_us is not None:
            self._wished_us[after.id] = row.at_us
        was_wished = before.state is State.RUNNING and before.cancel_requested_us is not None
        if was_wished and after.state in (State.RETRY_WAITING, State.FAILED):
            self.violate(row.at_us, after.id, f"it is {after.state}, though its cancel was on record")
        if after.state is not State.RUNNING:
            self._wished_us.pop(after.id, None)

    def _check_rest(self, at_us: int, instance: Instance, *, decided_us: int) -> None:
        since_us = self._resting_us.get(instance.ref)
        if since_us is not None and decided_us - since_us > FLAG_US:
            what = "assigned" if instance.state is State.RUNNING else "fired"
            self.violate(
                at_us,
                instance.id,
                f"{what} {decided_us - since_us} us after its task {instance.ref} was paused or disabled",
            )

    def _check_answer(self, event: Transaction, request: RequestCommitted) -> None:
        row = self._rows.get(request.instance_id)
        code = request.answer_code
        if request.kind == "cancel" and row is not None:
            is_done = row.state is State.CANCELLED or row.cancel_requested_us is not None
            if code == "OK" and not is_done:
                self.violate(event.at_us, row.id, f"its cancel was answered OK, and it is {row.state}")
            if code == "INSTANCE_TERMINAL" and row.state not in TERMINAL_STATES:
                self.violate(
                    event.at_us, row.id, f"its cancel was refused as too late, and it is {row.state}"
                )
        elif request.kind == "replay" and code == "OK":
            if not any(
                moved.after is not None and moved.after.id == request.instance_id for moved in event.rows
            ):
                self.violate(
                    event.at_us, request.instance_id, "its replay was answered OK, and nothing moved"
                )
        elif request.kind in ("pause", "disable") and code == "OK":
            ref = TaskRef(request.namespace, request.task)
            if ref not in self._resting_us:
                sentence = f"its {request.kind} was answered OK and is not in force"
                self.violate(event.at_us, str(ref), sentence)

    def _look_for_cancels(self, at_us: int) -> None:
        """Once all is well, a wish to cancel reaches the worker, and the attempt ends within its grace."""
        if self._healed_us is None:
            return
        executing = set(self._executing.values())
        for instance_id, wished_us in list(self._wished_us.items()):
            row = self._rows.get(instance_id)
            if row is None or instance_id not in executing:
                continue
            definition = self.known.definition(row.ref, row.task_version)
            grace_us = 0 if definition is None else definition.grace_us
            if wished_us < self._healed_us + SETTLED_US:
                # Until then an owner may believe in a stream that is broken.
                wished_us = self._healed_us + SETTLED_US + self.known.worker_lease_us
            if at_us - wished_us > grace_us + CANCEL_US:
                del self._wished_us[instance_id]
                self.violate(at_us, instance_id, f"it executes {at_us - wished_us} us after its cancel")
