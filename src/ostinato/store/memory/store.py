"""``MemoryStore``: the ``Store`` protocol over the in-memory tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import islice

import msgspec

from ostinato.clock import Clock
from ostinato.core.definition import TaskDefinition, TaskRef, TaskRow
from ostinato.core.model import HistoryRow, Instance, OutputChunk
from ostinato.core.states import Hold
from ostinato.store.batches import (
    ApplyReceipt,
    ChangedTask,
    CommitBatch,
    CommitReport,
    FoundTriggers,
    FoundWork,
    HeldQuery,
    InstanceFilter,
    InstancePage,
    NodeRow,
    Proof,
    Request,
    RequestAnswer,
    Submission,
    SubmitReceipt,
    TriggerRow,
)
from ostinato.store.changes import ChangeSignal
from ostinato.store.memory import anyone, work
from ostinato.store.memory.commit import commit
from ostinato.store.memory.tables import Tables, without_payload
from ostinato.store.protocol import Capabilities
from ostinato.store.rules import require_bounded, require_partition, require_storable


class MemoryStore:
    """Rows live as long as the object, and every node of one process may share it.

    A call runs from start to end without yielding to the event loop, so each is one transaction; nothing
    depends on threads, on real time or on the order of a set.
    """

    def __init__(self, clock: Clock, partition_count: int = 64) -> None:
        """`clock` is the database's clock: ``now_us`` is its wall time."""
        self._clock = clock
        self._tables = Tables(partition_count)
        self._changes = ChangeSignal(clock)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="memory", many_nodes=True, durable=False)

    @property
    def partition_count(self) -> int:
        return len(self._tables.owners)

    async def open(self) -> None:
        """Nothing to do: the rows are there."""

    async def close(self) -> None:
        """Nothing to give back; the rows stay, so that a test can close and open again."""

    async def now_us(self) -> int:
        return self._clock.wall_us()

    async def wait_for_change(self, until_boot_us: int) -> None:
        await self._changes.wait(until_boot_us)

    # ── ownership ────────────────────────────────────────────────────────────────────────────────────

    async def register_node(self, node: NodeRow) -> None:
        self._tables.nodes[node.id] = node

    async def renew_node(self, node_id: str) -> bool:
        node = self._tables.nodes.get(node_id)
        if node is None:
            return False
        self._tables.nodes[node_id] = msgspec.structs.replace(node, renewals=node.renewals + 1)
        return True

    async def owns_by_lock(self, node_id: str) -> bool:
        """There is no lock: others judge a node by its counter."""
        return False

    async def remove_node(self, node_id: str) -> None:
        self._tables.nodes.pop(node_id, None)
        for proof in self._tables.owners:
            if proof.owner == node_id:
                self._tables.owners[proof.partition] = Proof(proof.partition, "", proof.epoch)

    async def nodes(self) -> list[NodeRow]:
        return sorted(self._tables.nodes.values(), key=lambda node: node.id)

    async def take_partitions(
        self, node_id: str, partitions: Sequence[int], *, dead_nodes: Sequence[str] = ()
    ) -> list[Proof]:
        """As the protocol says; a node whose own row is gone takes nothing and kills nobody."""
        if node_id not in self._tables.nodes:
            return []
        for dead in dead_nodes:
            if dead != node_id:
                self._tables.nodes.pop(dead, None)
        taken: list[Proof] = []
        for partition in sorted(set(partitions)):
            holder = self._tables.owners[partition]
            if holder.owner == node_id or holder.owner not in self._tables.nodes:
                self._tables.owners[partition] = Proof(partition, node_id, holder.epoch + 1)
                taken.append(self._tables.owners[partition])
        return taken

    async def partition_owners(self) -> list[Proof]:
        return list(self._tables.owners)

    # ── owner ────────────────────────────────────────────────────────────────────────────────────────

    async def commit(self, batch: CommitBatch) -> CommitReport:
        return commit(self._tables, batch)

    async def find_work(
        self, partitions: Sequence[int], *, now_us: int, limit: int, held: Sequence[HeldQuery] = ()
    ) -> FoundWork:
        return work.find_work(self._tables, partitions, now_us=now_us, limit=limit, held=held)

    async def find_overlap_ready(self, refs: Sequence[TaskRef]) -> list[Instance]:
        return work.find_overlap_ready(self._tables, refs)

    async def held_tasks(self, partitions: Sequence[int]) -> list[tuple[TaskRef, Hold]]:
        return work.held_tasks(self._tables, partitions)

    async def find_expired(self, partitions: Sequence[int], *, now_us: int, limit: int) -> list[Instance]:
        return work.find_expired(self._tables, partitions, now_us=now_us, limit=limit)

    async def next_expiry_us(self, partitions: Sequence[int]) -> int | None:
        return work.next_expiry_us(self._tables, partitions)

    async def find_due_triggers(self, partitions: Sequence[int], *, now_us: int, limit: int) -> FoundTriggers:
        return work.find_due_triggers(self._tables, partitions, now_us=now_us, limit=limit)

    async def live_instances(self, refs: Sequence[TaskRef], *, limit: int) -> dict[TaskRef, list[Instance]]:
        return work.live_instances(self._tables, refs, limit=limit)

    async def find_changed_tasks(self, partitions: Sequence[int], *, limit: int) -> list[ChangedTask]:
        return work.find_changed_tasks(self._tables, partitions, limit=limit)

    async def find_requests(self, partitions: Sequence[int], *, limit: int) -> list[Request]:
        return work.find_requests(self._tables, partitions, limit=limit)

    async def running_instances(
        self, partitions: Sequence[int], *, after_id: str, limit: int
    ) -> list[Instance]:
        return work.running_instances(self._tables, partitions, after_id=after_id, limit=limit)

    async def triggers_of(self, ref: TaskRef) -> list[TriggerRow]:
        return [row for _, row in sorted(self._tables.triggers.items()) if row.ref == ref]

    async def delete_finished(self, *, success_before_us: int, other_before_us: int, limit: int) -> int:
        anyone.delete_old_requests(self._tables, before_us=other_before_us, now_us=self._clock.wall_us())
        return anyone.delete_finished(
            self._tables, success_before_us=success_before_us, other_before_us=other_before_us, limit=limit
        )

    # ── anyone ───────────────────────────────────────────────────────────────────────────────────────

    async def submit(self, submissions: Sequence[Submission]) -> list[SubmitReceipt]:
        require_bounded(submissions, self.partition_count)
        receipts = [
            anyone.submit_one(self._tables, submission, now_us=self._clock.wall_us())
            for submission in submissions
        ]
        if receipts:
            self._changes.notify()
        return receipts

    async def apply(self, definitions: Sequence[TaskDefinition], *, now_us: int) -> list[ApplyReceipt]:
        receipts = anyone.apply(self._tables, definitions, now_us=now_us)
        self._changes.notify()
        return receipts

    async def delete_task(self, ref: TaskRef) -> bool:
        if self._tables.tasks.pop(ref, None) is None:
            return False
        for trigger in list(self._tables.triggers.values()):
            if trigger.ref == ref:
                del self._tables.triggers[trigger.id]
        self._changes.notify()
        return True

    async def load_definitions(
        self, versions: Sequence[tuple[TaskRef, int]]
    ) -> dict[tuple[TaskRef, int], TaskDefinition]:
        known = self._tables.definitions
        return {version: known[version] for version in versions if version in known}

    async def get_tasks(self, refs: Sequence[TaskRef]) -> dict[TaskRef, TaskRow]:
        return {ref: self._tables.tasks[ref] for ref in refs if ref in self._tables.tasks}

    async def list_tasks(self, namespace: str | None, *, after: TaskRef | None, limit: int) -> list[TaskRow]:
        refs = sorted(
            ref
            for ref in self._tables.tasks
            if (namespace is None or ref.namespace == namespace) and (after is None or ref > after)
        )
        return [self._tables.tasks[ref] for ref in refs[:limit]]

    async def add_requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            require_partition(request.partition, self.partition_count, subject=request.id)
            require_storable(request)
        for request in requests:
            if request.id not in self._tables.requests:
                self._tables.requests[request.id] = request
                self._tables.open_requests.add((request.created_us, request.id))
        self._changes.notify()

    async def answers(self, request_ids: Sequence[str]) -> dict[str, RequestAnswer]:
        given = self._tables.answers
        return {identifier: given[identifier] for identifier in request_ids if identifier in given}

    async def get_instances(self, ids: Sequence[str]) -> dict[str, Instance]:
        known = self._tables.instances
        return {identifier: copy(known[identifier]) for identifier in ids if identifier in known}

    async def list_instances(self, where: InstanceFilter, *, cursor: str | None, limit: int) -> InstancePage:
        found = list(islice(self._matching(where, before_id=cursor), limit + 1))
        return InstancePage(
            instances=[without_payload(instance) for instance in found[:limit]],
            cursor=found[limit - 1].id if len(found) > limit else None,
        )

    def _matching(self, where: InstanceFilter, *, before_id: str | None) -> Iterator[Instance]:
        for identifier in self._tables.by_id.before(before_id):
            instance = self._tables.instances[identifier]
            if anyone.matches(instance, where):
                yield instance

    async def count_instances(self, where: InstanceFilter) -> dict[str, int]:
        counts: dict[str, int] = {}
        for instance in self._matching(where, before_id=None):
            counts[str(instance.state)] = counts.get(str(instance.state), 0) + 1
        return dict(sorted(counts.items()))

    async def history(self, instance_id: str) -> list[HistoryRow]:
        return [copy(row) for row in self._tables.history.get(instance_id, [])]

    async def append_output(self, chunks: Sequence[OutputChunk]) -> None:
        """As the protocol says; output of an instance that has been deleted is dropped."""
        for chunk in chunks:
            require_storable(chunk)
        for chunk in chunks:
            if chunk.instance_id in self._tables.instances:
                key = (chunk.attempt, chunk.sequence, chunk.attempt_id)
                self._tables.output[chunk.instance_id].setdefault(key, copy(chunk))

    async def output(self, instance_id: str, *, after: tuple[int, int], limit: int) -> list[OutputChunk]:
        chunks = sorted(self._tables.output.get(instance_id, {}).items())
        later = (copy(chunk) for key, chunk in chunks if key[:2] > after)
        return list(islice(later, limit))
