"""Histories made by hand, for the checkers: a lawful course of events from which a test departs."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import msgspec

from ostinato.control.submit import KEY_LIFETIME_US
from ostinato.core.changes import Proof, TriggerRow
from ostinato.core.definition import PythonSpec, TaskDefinition, TaskRef, TaskRow
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.instants import SECOND
from ostinato.core.model import HistoryKind, HistoryRow, Instance
from ostinato.core.retry.counters import Counters
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.schedule.trigger import IntervalTrigger
from ostinato.core.states import State
from ostinato.simulation.checkers.checker import Checker
from ostinato.simulation.checkers.judge import Judge
from ostinato.simulation.history import (
    Event,
    ExecutionBegan,
    ExecutionEnded,
    Fault,
    HistoryCommitted,
    OwnerCommitted,
    Phase,
    RequestCommitted,
    RowCommitted,
    TaskCommitted,
    Tick,
    TriggerCommitted,
)

START_US = 1_767_225_600_000_000
REF = TaskRef("default", "t")
POLICY = RetryPolicy(backoff="fixed", interval_us=5 * SECOND, max_retry=2, max_lost=1)
EVERY_US = 10 * SECOND


class Story:
    """Partition 0 belongs to node ``a`` at epoch 1; every method is one transaction or one event."""

    ownership_lease_us = 3 * SECOND
    worker_lease_us = 6 * SECOND
    time_tolerance_us = SECOND // 10
    key_lifetime_us = KEY_LIFETIME_US
    slot_count = 2
    has_session_locks = False
    #: How far off the database's clock was a moment ago, both ways.
    left_us = 0
    #: By how much the database's clock has been put back.
    put_back_us = 0

    def __init__(
        self, *checkers: type[Checker], policy: RetryPolicy = POLICY, misfire: str = "fire_all"
    ) -> None:
        self.at_us = 0
        self.task = TaskDefinition("default", "t", PythonSpec("m:t"), retry=policy)
        self.judge = Judge(self, checkers)
        self.rows: dict[str, Instance] = {}
        #: What nodes decide about at this moment.
        self.believes: list[Proof] = []
        self._number = 0
        self.task_row = TaskRow(self.task, 1, 0, False, False, 1, START_US, START_US)
        self.trigger = TriggerRow(
            id="g",
            namespace="default",
            task="t",
            partition=0,
            task_version=1,
            spec=IntervalTrigger(every_us=EVERY_US, misfire=misfire),
            created_us=START_US,
            next_us=START_US + EVERY_US,
        )
        self.owner = Proof(0, "a", 1)
        self.own(self.owner, before=Proof(0, "", 0))

    # ── Known ────────────────────────────────────────────────────────────────────────────────────────

    def shared_us(self, at_us: int | None = None) -> int:
        return START_US + (self.at_us if at_us is None else at_us) - self.put_back_us

    def believed(self) -> list[Proof]:
        return self.believes

    def labels_of(self, worker_name: str) -> Mapping[str, str]:
        return {"zone": "a"} if worker_name == "w" else {}

    def believed_us(self, at_us: int) -> tuple[int, int]:
        now_us = self.shared_us(at_us)
        return now_us - self.left_us, now_us + self.left_us

    def definition(self, ref: TaskRef, version: int) -> TaskDefinition | None:
        return self.task if (ref, version) == (REF, 1) else None

    # ── events ───────────────────────────────────────────────────────────────────────────────────────

    def wait(self, duration_us: int) -> Story:
        self.at_us += duration_us
        return self

    def commit(self, *events: Event) -> None:
        """Events of one transaction; their time and its number are filled in."""
        self._number += 1
        for event in events:
            self.judge(msgspec.structs.replace(event, at_us=self.at_us, transaction=self._number))

    def own(self, after: Proof, *, before: Proof) -> None:
        self.commit(OwnerCommitted(at_us=0, transaction=0, process="p", before=before, after=after))

    def row(
        self, before: Instance | None, after: Instance | None, proof: Proof | None = None
    ) -> RowCommitted:
        return RowCommitted(
            at_us=0, transaction=0, process="p", proof=proof or self.owner, before=before, after=after
        )

    def submit(self, name: str = "i", **fields: Any) -> Instance:
        """A new instance, by anyone."""
        instance = self.instance(name, **fields)
        event = RowCommitted(at_us=0, transaction=0, process="c", proof=None, before=None, after=instance)
        self.rows[name] = instance
        self.commit(event)
        return instance

    def instance(self, name: str = "i", **fields: Any) -> Instance:
        now_us = self.shared_us()
        values: dict[str, Any] = {
            "id": name,
            "namespace": "default",
            "task": "t",
            "task_version": 1,
            "partition": 0,
            "state": State.PENDING,
            "priority": 5,
            "due_us": now_us,
            "created_us": now_us,
            **fields,
        }
        return Instance(**values)

    def change(
        self,
        name: str,
        *told: HistoryRow,
        events: tuple[Event, ...] = (),
        proof: Proof | None = None,
        **fields: Any,
    ) -> Instance:
        """The owner changes a row, with the rows of the history that belong to it."""
        before = self.rows[name]
        after = copy(before)
        for field, value in fields.items():
            setattr(after, field, value)
        self.rows[name] = after
        history = [HistoryCommitted(at_us=0, transaction=0, process="p", row=row) for row in told]
        self.commit(self.row(before, after, proof), *history, *events)
        return after

    def assign(self, name: str = "i", **fields: Any) -> Instance:
        attempt = self.rows[name].attempt + 1
        values: dict[str, Any] = {
            "state": State.RUNNING,
            "attempt": attempt,
            "attempt_id": f"{name}{attempt}",
            "assigned_us": self.shared_us(),
            "worker_name": "w",
            "hold": None,
            **fields,
        }
        return self.change(name, **values)

    def begin(self, attempt_id: str = "i1", *, machine: str = "m", **fields: Any) -> None:
        values: dict[str, Any] = {
            "machine": machine,
            "worker": "w",
            "namespace": "default",
            "task": "t",
            "instance_id": attempt_id[:-1],
            "attempt": int(attempt_id[-1]),
            "attempt_id": attempt_id,
            "partition": 0,
            **fields,
        }
        self.judge(ExecutionBegan(at_us=self.at_us, **values))

    def end(self, attempt_id: str = "i1", *, how: str = "returned") -> None:
        self.judge(ExecutionEnded(at_us=self.at_us, attempt_id=attempt_id, how=how))  # type: ignore[arg-type]  # one of its words

    def succeed(self, name: str = "i", **fields: Any) -> Instance:
        result = f'"{self.rows[name].attempt_id}"'.encode()
        values = {"state": State.SUCCESS, "result": result, "finished_us": self.shared_us(), **fields}
        return self.change(name, **values)

    def told(self, name: str, kind: HistoryKind, **fields: Any) -> HistoryRow:
        row = self.rows[name]
        values: dict[str, Any] = {
            "instance_id": name,
            "partition": 0,
            "at_us": self.shared_us(),
            "kind": kind,
            "sentence": "because",
            "attempt": row.attempt,
            "attempt_id": row.attempt_id,
            **fields,
        }
        return HistoryRow(**values)

    def fail(
        self,
        name: str = "i",
        *,
        code: str = "ECONNRESET",
        category: str = "transient",
        wait_us: int = 5 * SECOND,
        state: State = State.RETRY_WAITING,
        counters: Counters | None = None,
        failure: Failure | None = None,
    ) -> Instance:
        """An attempt has ended badly; what is not said is as the policy wants it."""
        row = self.rows[name]
        now_us = self.shared_us()
        is_lost = category == "lost"
        if counters is None:
            counters = msgspec.structs.replace(
                row.counters,
                failures=row.counters.failures + (not is_lost),
                lost=row.counters.lost + is_lost,
                window_opened_us=row.counters.window_opened_us or (None if is_lost else now_us),
            )
        due_us = now_us + wait_us
        failure = failure or safe_failure(code, "said so", category=category)
        kind = HistoryKind.RETRY if state is State.RETRY_WAITING else HistoryKind.GAVE_UP
        told = self.told(name, kind, code=code, category=category, failure=failure, due_us=due_us)
        is_terminal = state is not State.RETRY_WAITING
        return self.change(
            name,
            told,
            state=state,
            counters=counters,
            due_us=due_us,
            failure=failure,
            finished_us=now_us if is_terminal else None,
        )

    def fault(self, kind: str, target: str = "m", *, ends: bool = False) -> None:
        self.judge(Fault(at_us=self.at_us, kind=kind, target=target, ends=ends))

    def healed(self) -> None:
        self.judge(Phase(at_us=self.at_us, name="healed"))

    def tick(self) -> None:
        self.judge(Tick(at_us=self.at_us))

    def request(self, kind: str, *, answer: str = "", name: str = "") -> RequestCommitted:
        """A request about an instance or the task; `answer` not empty: its answer."""
        return RequestCommitted(
            at_us=0,
            transaction=0,
            process="p",
            request_id=f"{kind}-{name}",
            kind=kind,
            instance_id=name,
            namespace="default",
            task="t",
            answer_code=answer,
        )

    def flag(self, **flags: bool) -> TaskCommitted:
        before = self.task_row
        self.task_row = msgspec.structs.replace(before, **flags)
        return TaskCommitted(at_us=0, transaction=0, process="p", before=before, after=self.task_row)

    def advance(self, next_us: int | None) -> TriggerCommitted:
        before = self.trigger
        self.trigger = msgspec.structs.replace(before, next_us=next_us)
        return TriggerCommitted(at_us=0, transaction=0, process="p", before=before, after=self.trigger)

    def fired(self, *instants_us: int) -> list[RowCommitted]:
        return [
            self.row(
                None,
                self.instance(f"f{instant_us}", due_us=instant_us, fire_us=instant_us, fire_trigger="g"),
            )
            for instant_us in instants_us
        ]

    def known_task(self) -> None:
        """The task and its trigger come into force."""
        self.commit(
            TaskCommitted(at_us=0, transaction=0, process="p", before=None, after=self.task_row),
            TriggerCommitted(at_us=0, transaction=0, process="p", before=None, after=self.trigger),
        )

    # ── verdict ──────────────────────────────────────────────────────────────────────────────────────

    def verdict(self) -> list[str]:
        """Sentences of what was violated."""
        return [violation.sentence for violation in self.judge.finish(self.at_us)]
