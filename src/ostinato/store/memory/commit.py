"""One transaction of an owner on the in-memory tables."""

from __future__ import annotations

from copy import copy

import msgspec

from ostinato.core.definition import TaskRef
from ostinato.store.batches import CommitBatch, CommitReport, DeleteTask, SetTaskFlags, SwitchVersion
from ostinato.store.memory.moves import apply_move, is_expected
from ostinato.store.memory.tables import Tables, fire_key
from ostinato.store.rules import Move, birth_problem, data_problem, move_problem, moves_of


def proven_partitions(tables: Tables, batch: CommitBatch) -> frozenset[int]:
    """Partitions whose proof in `batch` holds now."""
    return frozenset(proof.partition for proof in batch.proofs if tables.owners[proof.partition] == proof)


def commit(tables: Tables, batch: CommitBatch, *, proven: frozenset[int] | None = None) -> CommitReport:
    """Write `batch`; what is left out, and why, is the report.

    `proven` is what the transaction has found proven and keeps locked since; None: proofs are checked now.
    """
    if proven is None:
        proven = proven_partitions(tables, batch)
    return _Transaction(tables, batch, proven=proven).run()


class _Transaction:
    def __init__(self, tables: Tables, batch: CommitBatch, *, proven: frozenset[int]) -> None:
        self.tables = tables
        self.batch = batch
        self.proven = proven
        self.lost: set[int] = {proof.partition for proof in batch.proofs} - self.proven
        self.unmatched: set[str] = set()
        self.rejected: dict[str, str] = {}

    def run(self) -> CommitReport:
        self._find_rejected()
        stale_triggers = self._advance()
        for move in moves_of(self.batch):
            if self._writable(move.partition, move.instance_id) and not self._move(move):
                self.unmatched.add(move.instance_id)
        unborn = self._insert(stale_triggers)
        self._append_history(unborn)
        self._answer()
        for switch in self.batch.switches:
            if self._writable(switch.partition, f"{switch.namespace}/{switch.task}"):
                self._switch(switch)
        self._set_flags()
        # Last, so that nothing of the same batch puts a trigger of the task in force again.
        for deletion in self.batch.deletions:
            if self._writable(deletion.partition, f"{deletion.namespace}/{deletion.task}"):
                self._delete(deletion)
        return CommitReport(frozenset(self.lost), frozenset(self.unmatched), self.rejected, self._payloads())

    def _payloads(self) -> dict[str, bytes]:
        return {
            move.instance_id: self.tables.instances[move.instance_id].payload
            for move in self.batch.assigns
            if move.wants_payload
            and self._writable(move.partition, move.instance_id)
            and move.instance_id not in self.unmatched
        }

    def _writable(self, partition: int, *names: str) -> bool:
        if partition not in self.proven:
            self.lost.add(partition)
            return False
        return not any(name in self.rejected for name in names)

    def _find_rejected(self) -> None:
        """All rows of one instance stand or fall together, so problems are looked for before any write."""
        batch = self.batch
        for move in moves_of(batch):
            self._reject(move.partition, move.instance_id, problem=data_problem(move) or move_problem(move))
        for instance in batch.inserts:
            self._reject(
                instance.partition, instance.id, problem=data_problem(instance) or birth_problem(instance)
            )
        for row in batch.history:
            self._reject(row.partition, row.instance_id, problem=data_problem(row))
        for answer in batch.answers:
            self._reject(
                answer.partition, answer.instance_id or answer.request_id, problem=data_problem(answer)
            )
        for advance in batch.advances:
            self._reject(advance.partition, advance.trigger_id, problem=data_problem(advance))
        for switch in batch.switches:
            problems = (data_problem(trigger) for trigger in switch.triggers)
            name = f"{switch.namespace}/{switch.task}"
            self._reject(switch.partition, name, problem=next(filter(None, problems), None))
        told: list[SetTaskFlags | DeleteTask] = [*batch.flags, *batch.deletions]
        for change in told:
            self._reject(change.partition, f"{change.namespace}/{change.task}", problem=data_problem(change))

    def _reject(self, partition: int, name: str, *, problem: str | None) -> None:
        if problem is not None and partition in self.proven:
            self.rejected.setdefault(name, problem)

    def _advance(self) -> set[str]:
        stale: set[str] = set()
        for advance in self.batch.advances:
            if not self._writable(advance.partition, advance.trigger_id):
                stale.add(advance.trigger_id)
                continue
            row = self.tables.triggers.get(advance.trigger_id)
            if row is None or (row.partition, row.next_us) != (advance.partition, advance.expected_next_us):
                stale.add(advance.trigger_id)
                continue
            self.tables.put_trigger(
                msgspec.structs.replace(row, next_us=advance.next_us, last_us=advance.last_us)
            )
        return stale

    def _move(self, move: Move) -> bool:
        found = self.tables.instances.get(move.instance_id)
        if found is None or found.partition != move.partition or not is_expected(found, move):
            return False
        moved = copy(found)
        apply_move(moved, move)
        self.tables.put(moved)
        return True

    def _insert(self, stale_triggers: set[str]) -> set[str]:
        """Insert the new instances; returns those of stale triggers, which leave no trace at all."""
        unborn: set[str] = set()
        for instance in self.batch.inserts:
            if not self._writable(instance.partition, instance.id):
                continue
            if instance.fire_trigger in stale_triggers:
                unborn.add(instance.id)
                self.unmatched.add(instance.id)
            elif instance.id in self.tables.instances or (
                instance.fire_us is not None and fire_key(instance) in self.tables.fires
            ):
                self.unmatched.add(instance.id)
            else:
                self.tables.put(copy(instance))
        return unborn

    def _append_history(self, unborn: set[str]) -> None:
        for row in self.batch.history:
            if not self._writable(row.partition, row.instance_id) or row.instance_id in unborn:
                continue
            if row.unconditional or row.instance_id not in self.unmatched:
                self.tables.add_history(copy(row))

    def _answer(self) -> None:
        for answer in self.batch.answers:
            request = self.tables.requests.get(answer.request_id)
            if not self._writable(answer.partition, answer.instance_id or answer.request_id):
                continue
            if answer.instance_id in self.unmatched or request is None:
                continue
            if answer.request_id not in self.tables.answers:
                self.tables.answer_request(request, answer)

    def _switch(self, switch: SwitchVersion) -> None:
        ref = TaskRef(switch.namespace, switch.task)
        task = self.tables.tasks.get(ref)
        if task is None or task.partition != switch.partition:
            return
        kept = {trigger.id for trigger in switch.triggers}
        for trigger in self.tables.triggers_of(ref):
            if trigger.id not in kept:
                self.tables.drop_trigger(trigger)
        for trigger in switch.triggers:
            self.tables.put_trigger(trigger)
        self.tables.put_task(msgspec.structs.replace(task, scheduled_version=switch.version))

    def _set_flags(self) -> None:
        for flags in self.batch.flags:
            task = self.tables.tasks.get(TaskRef(flags.namespace, flags.task))
            name = f"{flags.namespace}/{flags.task}"
            if not self._writable(flags.partition, name) or task is None or task.partition != flags.partition:
                continue
            self.tables.put_task(
                msgspec.structs.replace(
                    task,
                    paused=task.paused if flags.paused is None else flags.paused,
                    disabled=task.disabled if flags.disabled is None else flags.disabled,
                )
            )

    def _delete(self, deletion: DeleteTask) -> None:
        ref = TaskRef(deletion.namespace, deletion.task)
        task = self.tables.tasks.get(ref)
        if task is None or task.partition != deletion.partition:
            return
        self.tables.drop_task(ref)
        for trigger in self.tables.triggers_of(ref):
            self.tables.drop_trigger(trigger)
        # A task of that name that comes back must not answer with instances of this one.
        for name in [name for name in self.tables.keys if name[:2] == (ref.namespace, ref.name)]:
            del self.tables.keys[name]
