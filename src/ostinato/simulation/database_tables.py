"""What the simulated database holds, and what each of its transactions has changed, told at its commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ostinato.core.definition import TaskRef, TaskRow
from ostinato.core.model import HistoryRow, Instance
from ostinato.simulation.history import (
    Event,
    History,
    HistoryCommitted,
    NodeRowCommitted,
    OwnerCommitted,
    RequestCommitted,
    RowCommitted,
    TaskCommitted,
    TriggerCommitted,
)
from ostinato.store.batches import NodeRow, Proof, Request, RequestAnswer, TriggerRow
from ostinato.store.memory.tables import Tables

Result = TypeVar("Result")


class ObservedTables(Tables):
    """Tables that tell the history of each change, all of one transaction together.

    Rows are told as they are kept: the tables replace a row and never change one.
    """

    def __init__(self, partition_count: int, history: History) -> None:
        super().__init__(partition_count)
        self._told_to = history
        self._transaction = 0
        self._process = ""
        self._proofs: dict[int, Proof] = {}
        self._events: list[Event] = []

    def transact(self, process: str, effect: Callable[[], Result], *, proofs: Sequence[Proof] = ()) -> Result:
        """Carry out `effect`, a whole transaction of `process`, at this instant, and tell what has changed.

        `proofs` are those that held for it. If `effect` raises, it must have changed nothing.
        """
        self._transaction += 1
        self._process = process
        self._proofs = {proof.partition: proof for proof in proofs}
        events: list[Event] = []
        self._events = events
        result = effect()
        for event in events:
            self._told_to.add(event)
        return result

    def put(self, instance: Instance) -> None:
        before = self.instances.get(instance.id)
        super().put(instance)
        self._row(before, instance, partition=instance.partition)

    def drop(self, instance: Instance) -> None:
        super().drop(instance)
        self._row(instance, None, partition=instance.partition)

    def add_history(self, row: HistoryRow) -> None:
        super().add_history(row)
        self._events.append(
            HistoryCommitted(
                at_us=self._told_to.now_us(), transaction=self._transaction, process=self._process, row=row
            )
        )

    def set_owner(self, proof: Proof) -> None:
        before = self.owners[proof.partition]
        super().set_owner(proof)
        self._events.append(
            OwnerCommitted(
                at_us=self._told_to.now_us(),
                transaction=self._transaction,
                process=self._process,
                before=before,
                after=proof,
            )
        )

    def put_node(self, node: NodeRow) -> None:
        is_new = node.id not in self.nodes
        super().put_node(node)
        if is_new:
            self._node(node.id, is_there=True)

    def drop_node(self, node_id: str) -> None:
        was_there = node_id in self.nodes
        super().drop_node(node_id)
        if was_there:
            self._node(node_id, is_there=False)

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        self._request(request, instance_id=request.instance_id, answer_code="")

    def answer_request(self, request: Request, answer: RequestAnswer) -> None:
        super().answer_request(request, answer)
        self._request(request, instance_id=answer.instance_id, answer_code=answer.code)

    def put_task(self, task: TaskRow) -> None:
        before = self.tasks.get(task.ref)
        super().put_task(task)
        self._task(before, task)

    def drop_task(self, ref: TaskRef) -> None:
        before = self.tasks[ref]
        super().drop_task(ref)
        self._task(before, None)

    def put_trigger(self, trigger: TriggerRow) -> None:
        before = self.triggers.get(trigger.id)
        super().put_trigger(trigger)
        self._trigger(before, trigger)

    def drop_trigger(self, trigger: TriggerRow) -> None:
        super().drop_trigger(trigger)
        self._trigger(trigger, None)

    def _row(self, before: Instance | None, after: Instance | None, *, partition: int) -> None:
        self._events.append(
            RowCommitted(
                at_us=self._told_to.now_us(),
                transaction=self._transaction,
                process=self._process,
                proof=self._proofs.get(partition),
                before=before,
                after=after,
            )
        )

    def _task(self, before: TaskRow | None, after: TaskRow | None) -> None:
        self._events.append(
            TaskCommitted(
                at_us=self._told_to.now_us(),
                transaction=self._transaction,
                process=self._process,
                before=before,
                after=after,
            )
        )

    def _trigger(self, before: TriggerRow | None, after: TriggerRow | None) -> None:
        self._events.append(
            TriggerCommitted(
                at_us=self._told_to.now_us(),
                transaction=self._transaction,
                process=self._process,
                before=before,
                after=after,
            )
        )

    def _node(self, node_id: str, *, is_there: bool) -> None:
        self._events.append(
            NodeRowCommitted(
                at_us=self._told_to.now_us(),
                transaction=self._transaction,
                process=self._process,
                node_id=node_id,
                is_there=is_there,
            )
        )

    def _request(self, request: Request, *, instance_id: str, answer_code: str) -> None:
        self._events.append(
            RequestCommitted(
                at_us=self._told_to.now_us(),
                transaction=self._transaction,
                process=self._process,
                request_id=request.id,
                kind=request.kind,
                instance_id=instance_id,
                namespace=request.namespace,
                task=request.task,
                answer_code=answer_code,
            )
        )
