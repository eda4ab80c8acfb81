"""``MemoryStore``: the ``Store`` protocol over the in-memory tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import islice

import msgspec

from ostinato.clock import Clock
from ostinato.core.definition import Origin, TaskDefinition, TaskRef, TaskRow
from ostinato.core.model import HistoryRow, Instance, OutputChunk
from ostinato.core.partition.standing import Standing
from ostinato.core.states import Hold
from ostinato.store.batches import (
    ApplyReceipt,
    ChangedTask,
    CommitBatch,
    CommitReport,
    FoundTriggers,
    FoundWork,
    HeldQuery,
    InstanceCounts,
    InstanceFilter,
    InstancePage,
    NodeRow,
    NodesSeen,
    Proof,
    Request,
    RequestAnswer,
    StoreCounters,
    Submission,
    SubmitReceipt,
    TriggerRow,
    WaitingTasks,
    WorkerRow,
)
from ostinato.store.changes import ChangeSignal
from ostinato.store.memory import anyone, lists, work
from ostinato.store.memory.commit import commit
from ostinato.store.memory.tables import Tables
from ostinato.store.newest import submit_if_newest
from ostinato.store.paging import fold, require_filter
from ostinato.store.protocol import Capabilities
from ostinato.store.rules import require_bounded, require_partition, require_storable


class MemoryStore:
    """Rows live as long as the object, and every node of one process may share it.

    A call runs from start to end without yielding to the event loop, so each is one transaction; nothing
    depends on threads, on real time or on the order of a set.
    """

    def __init__(self, clock: Clock, partition_count: int = 64, *, tables: Tables | None = None) -> None:
        """`clock` is the database's clock: ``now_us`` is its wall time. `tables`: those of somebody else."""
        self._clock = clock
        self._tables = Tables(partition_count) if tables is None else tables
        self._changes = ChangeSignal(clock)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="memory", many_nodes=True, durable=False)

    @property
    def partition_count(self) -> int:
        return len(self._tables.owners)

    def counters(self) -> StoreCounters:
        """Nothing is repeated here."""
        return StoreCounters()

    async def open(self) -> None:
        """Nothing to do: the rows are there."""

    async def close(self) -> None:
        """Nothing to give back; the rows stay, so that a test can close and open again."""

    async def now_us(self) -> int:
        return self._clock.wall_us()

    def take_hinted(self) -> list[Instance]:
        """Hints name nothing here."""
        return []

    async def wait_for_change(self, until_boot_us: int) -> None:
        await self._changes.wait(until_boot_us)

    # ── ownership ────────────────────────────────────────────────────────────────────────────────────

    async def register_node(self, node: NodeRow) -> None:
        self._tables.put_node(node)

    async def renew_node(self, node_id: str) -> bool:
        node = self._tables.nodes.get(node_id)
        if node is None:
            return False
        self._tables.put_node(msgspec.structs.replace(node, renewals=node.renewals + 1))
        return True

    async def note_standing(self, node_id: str, standing: Standing) -> None:
        node = self._tables.nodes.get(node_id)
        if node is not None:
            self._tables.nodes[node_id] = msgspec.structs.replace(node, standing=standing)

    async def owns_by_lock(self, node_id: str) -> bool:
        """There is no lock: others judge a node by its counter."""
        return False

    async def remove_node(self, node_id: str) -> None:
        self._tables.drop_node(node_id)
        for proof in self._tables.owners:
            if proof.owner == node_id:
                self._tables.set_owner(Proof(proof.partition, "", proof.epoch))

    async def nodes(self) -> list[NodeRow]:
        return sorted(self._tables.nodes.values(), key=lambda node: node.id)

    async def watch_nodes(self) -> NodesSeen:
        """There is no session lock, so the counters alone tell who lives."""
        return NodesSeen(tuple(await self.nodes()))

    async def take_partitions(
        self, node_id: str, partitions: Sequence[int], *, dead_nodes: Mapping[str, int] = {}
    ) -> list[Proof]:
        """As the protocol says; a node whose own row is gone takes nothing and kills nobody."""
        if node_id not in self._tables.nodes:
            return []
        for dead, renewals in dead_nodes.items():
            row = self._tables.nodes.get(dead)
            if dead != node_id and row is not None and row.renewals == renewals:
                self._tables.drop_node(dead)
        taken: list[Proof] = []
        for partition in sorted(set(partitions)):
            holder = self._tables.owners[partition]
            if holder.owner == node_id or holder.owner not in self._tables.nodes:
                taken.append(Proof(partition, node_id, holder.epoch + 1))
                self._tables.set_owner(taken[-1])
        return taken

    async def release_partitions(self, node_id: str, partitions: Sequence[int]) -> None:
        for partition in partitions:
            holder = self._tables.owners[partition]
            if holder.owner == node_id:
                self._tables.set_owner(Proof(partition, "", holder.epoch))

    async def identity(self) -> str:
        return ""

    async def partition_owners(self) -> list[Proof]:
        return list(self._tables.owners)

    # ── owner ────────────────────────────────────────────────────────────────────────────────────────

    async def commit(self, batch: CommitBatch) -> CommitReport:
        return commit(self._tables, batch)

    async def find_work(
        self, partitions: Sequence[int], *, now_us: int, limit: int, held: Sequence[HeldQuery] = ()
    ) -> FoundWork:
        return work.find_work(self._tables, partitions, now_us=now_us, limit=limit, held=held)

    async def waiting_tasks(
        self, partitions: Sequence[int], *, now_us: int, first: TaskRef | None, limit: int
    ) -> WaitingTasks:
        return work.waiting_tasks(self._tables, partitions, now_us=now_us, first=first, limit=limit)

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
        return self._tables.triggers_of(ref)

    async def delete_finished(
        self, *, success_before_us: int, other_before_us: int, keys_before_us: int, limit: int
    ) -> int:
        anyone.delete_old_requests(self._tables, before_us=other_before_us, keys_before_us=keys_before_us)
        return anyone.delete_finished(
            self._tables, success_before_us=success_before_us, other_before_us=other_before_us, limit=limit
        )

    async def record_workers(self, rows: Sequence[WorkerRow], *, gone_before_us: int) -> None:
        for row in rows:
            require_storable(row)
        anyone.record_workers(self._tables, rows, gone_before_us=gone_before_us)

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

    async def submit_if_newest(self, submission: Submission) -> SubmitReceipt | None:
        return await submit_if_newest(self, submission)

    async def apply(
        self,
        definitions: Sequence[TaskDefinition],
        *,
        now_us: int,
        origin: Origin = "app",
        expected: Mapping[TaskRef, int] = {},
    ) -> list[ApplyReceipt]:
        receipts = anyone.apply(self._tables, definitions, now_us=now_us, origin=origin, expected=expected)
        self._changes.notify()
        return receipts

    async def load_definitions(
        self, versions: Sequence[tuple[TaskRef, int]]
    ) -> dict[tuple[TaskRef, int], TaskDefinition]:
        known = self._tables.definitions
        return {version: known[version] for version in versions if version in known}

    async def get_tasks(self, refs: Sequence[TaskRef]) -> dict[TaskRef, TaskRow]:
        return {ref: self._tables.tasks[ref] for ref in refs if ref in self._tables.tasks}

    async def list_tasks(
        self, namespace: str | None, *, after: TaskRef | None, limit: int, search: str = ""
    ) -> list[TaskRow]:
        wanted = fold(search)
        refs = sorted(
            ref
            for ref in self._tables.tasks
            if (namespace is None or ref.namespace == namespace)
            and (after is None or ref > after)
            and wanted in fold(ref.name)
        )
        return [self._tables.tasks[ref] for ref in refs[:limit]]

    async def namespaces(self, *, limit: int) -> list[str]:
        return sorted({ref.namespace for ref in self._tables.tasks})[:limit]

    async def workers(self) -> list[WorkerRow]:
        return sorted(
            self._tables.workers.values(), key=lambda row: (row.worker_name, row.worker_id, row.node_id)
        )

    async def add_requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            require_partition(request.partition, self.partition_count, subject=request.id)
            require_storable(request)
        for request in requests:
            if request.id not in self._tables.requests:
                self._tables.add_request(request)
        self._changes.notify()

    async def answers(self, request_ids: Sequence[str]) -> dict[str, RequestAnswer]:
        given = self._tables.answers
        return {identifier: given[identifier] for identifier in request_ids if identifier in given}

    async def get_instances(self, ids: Sequence[str]) -> dict[str, Instance]:
        known = self._tables.instances
        return {identifier: copy(known[identifier]) for identifier in ids if identifier in known}

    async def list_instances(self, where: InstanceFilter, *, cursor: str | None, limit: int) -> InstancePage:
        require_filter(where)
        return lists.list_instances(self._tables, where, cursor=cursor, limit=limit)

    async def count_instances(self, where: InstanceFilter, *, limit: int) -> InstanceCounts:
        require_filter(where)
        return lists.count_instances(self._tables, where, limit=limit)

    async def count_waiting(self, *, now_us: int, limit: int) -> int:
        return work.count_waiting(self._tables, now_us=now_us, limit=limit)

    async def history(
        self, instance_id: str, *, after: int = 0, limit: int | None = None
    ) -> list[HistoryRow]:
        rows = self._tables.history.get(instance_id, [])
        return [copy(row) for row in rows[after : None if limit is None else after + limit]]

    async def count_history(self, instance_id: str) -> int:
        return len(self._tables.history.get(instance_id, []))

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
