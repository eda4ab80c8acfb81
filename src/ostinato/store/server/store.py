"""``ServerStore``: the ``Store`` protocol over a database server, as far as both servers share it.

An adapter gives the hot statements, the session lock and the hint of changes; everything else is one
transaction of ``ServerDatabase`` around a function of this folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import TypeVar

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

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
from ostinato.store.newest import submit_if_newest
from ostinato.store.paging import fold, require_filter
from ostinato.store.protocol import Capabilities
from ostinato.store.rules import require_partition
from ostinato.store.schema import partition_owner
from ostinato.store.server import apply, lists, nodes, queries, tasks, triggers, workers
from ostinato.store.server.commit import BatchWriter, RefusedDataError, commit_batch, is_empty
from ostinato.store.server.database import DEADLINE_US, Role, ServerDatabase, ServerDialect, split_pool
from ostinato.store.server.queue_floors import QueueFloors
from ostinato.store.server.revision import require_schema
from ostinato.store.server.url import ServerUrl

Result = TypeVar("Result")


class ServerStore(ABC):
    """Any number of scheduler nodes and other processes share the database."""

    #: Connections that the adapter holds outside of the pools.
    _listeners = 0

    def __init__(
        self,
        url: ServerUrl,
        dialect: ServerDialect,
        *,
        clock: Clock,
        deadline_us: int = DEADLINE_US,
        rng: Random | None = None,
    ) -> None:
        """Every call ends in `deadline_us`; `rng` spreads repetitions."""
        self._url = url
        self._clock = clock
        self._deadline_us = deadline_us
        self._changes = ChangeSignal(clock)
        self._partition_count = 0
        #: Where the waiting rows of the queues begin, as this store knows; see there.
        self.floors = QueueFloors(clock)
        self.database = ServerDatabase(
            dialect,
            clock=clock,
            subject=url.shown,
            sizes=split_pool(url.pool_size, listeners=self._listeners),
            deadline_us=deadline_us,
            rng=rng,
        )

    # ── what an adapter gives ────────────────────────────────────────────────────────────────────────

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities: ...

    @abstractmethod
    async def server_now_us(self, connection: AsyncConnection) -> int:
        """The server's clock at this moment, not that of the transaction's beginning."""

    @abstractmethod
    async def batch_writer(self, connection: AsyncConnection) -> BatchWriter:
        """The adapter's statements of ``commit`` on this connection."""

    @abstractmethod
    async def wait_for_change(self, until_boot_us: int) -> None: ...

    def take_hinted(self) -> list[Instance]:
        """Hints name nothing here."""
        return []

    def announce(self) -> None:
        """Tell other processes soon that there is something to find; nothing where the server has no way."""
        return

    @abstractmethod
    async def register_node(self, node: NodeRow) -> None: ...

    @abstractmethod
    async def renew_node(self, node_id: str) -> bool: ...

    @abstractmethod
    async def watch_nodes(self) -> NodesSeen: ...

    @abstractmethod
    async def take_partitions(
        self, node_id: str, partitions: Sequence[int], *, dead_nodes: Mapping[str, int] = {}
    ) -> list[Proof]: ...

    @abstractmethod
    async def identity(self) -> str: ...

    @abstractmethod
    async def find_work(
        self, partitions: Sequence[int], *, now_us: int, limit: int, held: Sequence[HeldQuery] = ()
    ) -> FoundWork: ...

    @abstractmethod
    async def waiting_tasks(
        self, partitions: Sequence[int], *, now_us: int, first: TaskRef | None, limit: int
    ) -> WaitingTasks: ...

    @abstractmethod
    async def find_overlap_ready(self, refs: Sequence[TaskRef]) -> list[Instance]: ...

    @abstractmethod
    async def held_tasks(self, partitions: Sequence[int]) -> list[tuple[TaskRef, Hold]]: ...

    @abstractmethod
    async def find_expired(self, partitions: Sequence[int], *, now_us: int, limit: int) -> list[Instance]: ...

    @abstractmethod
    async def next_expiry_us(self, partitions: Sequence[int]) -> int | None: ...

    @abstractmethod
    async def live_instances(
        self, refs: Sequence[TaskRef], *, limit: int
    ) -> dict[TaskRef, list[Instance]]: ...

    @abstractmethod
    async def running_instances(
        self, partitions: Sequence[int], *, after_id: str, limit: int
    ) -> list[Instance]: ...

    @abstractmethod
    async def count_waiting(self, *, now_us: int, limit: int) -> int: ...

    @abstractmethod
    async def submit(self, submissions: Sequence[Submission]) -> list[SubmitReceipt]: ...

    # ── shared ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def partition_count(self) -> int:
        return self._partition_count

    def counters(self) -> StoreCounters:
        return StoreCounters(repeats=dict(self.database.repeats))

    async def open(self) -> None:
        try:
            self._partition_count = await self._look_up("opening the database", self._look)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self.database.close()

    async def now_us(self) -> int:
        return await self._look_up("reading the time", self.server_now_us, role="owner")

    async def _look(self, connection: AsyncConnection) -> int:
        """Number of partitions of a database of the right schema."""
        await require_schema(connection, subject=self._url.shown)
        return int((await connection.scalar(select(func.count()).select_from(partition_owner))) or 0)

    def _told(self) -> None:
        """Something was committed that an owner may have to act on."""
        self._changes.notify()
        self.announce()

    async def _find(self, operation: str, read: Callable[[AsyncConnection], Awaitable[Result]]) -> Result:
        """What an owner writes."""
        return await self.database.run(operation, read, role="owner")

    async def _list(self, operation: str, read: Callable[[AsyncConnection], Awaitable[Result]]) -> Result:
        """What people and programs write."""
        return await self.database.run(operation, read, role="people")

    async def _look_up(
        self,
        operation: str,
        read: Callable[[AsyncConnection], Awaitable[Result]],
        *,
        role: Role = "people",
        stands_alone: bool = True,
    ) -> Result:
        """What nobody has to look up again when a connection is lost."""
        return await self.database.run(operation, read, reads_only=True, stands_alone=stands_alone, role=role)

    async def owns_by_lock(self, node_id: str) -> bool:
        """Others judge a node by its counter, whatever lock it holds."""
        return False

    async def note_standing(self, node_id: str, standing: Standing) -> None:
        await self._find(
            "noting the node's standing", lambda c: nodes.note_standing(c, node_id, standing=standing)
        )

    async def remove_node(self, node_id: str) -> None:
        await self._find("removing the node", lambda c: nodes.remove_node(c, node_id))

    async def nodes(self) -> list[NodeRow]:
        return await self._look_up("reading the nodes", nodes.nodes)

    async def release_partitions(self, node_id: str, partitions: Sequence[int]) -> None:
        await self._find(
            "releasing partitions", lambda c: nodes.release_partitions(c, node_id, partitions=partitions)
        )

    async def partition_owners(self) -> list[Proof]:
        return await self._look_up("reading the owners", nodes.partition_owners)

    # ── owner ────────────────────────────────────────────────────────────────────────────────────────

    async def commit(self, batch: CommitBatch) -> CommitReport:
        if is_empty(batch):
            return CommitReport()

        async def write_carefully(connection: AsyncConnection) -> CommitReport:
            return await commit_batch(await self.batch_writer(connection), batch, careful=True)

        try:
            return await self._commit_at_once(batch)
        except RefusedDataError:
            return await self._find("committing a batch", write_carefully)
        finally:
            self.floors.committed(batch)

    async def _commit_at_once(self, batch: CommitBatch) -> CommitReport:
        """Raises ``RefusedDataError`` where the server refuses a row as data; then nothing is written."""

        async def write(connection: AsyncConnection) -> CommitReport:
            return await commit_batch(await self.batch_writer(connection), batch, careful=False)

        return await self._find("committing a batch", write)

    async def find_due_triggers(self, partitions: Sequence[int], *, now_us: int, limit: int) -> FoundTriggers:
        return await self._look_up(
            "finding due triggers",
            lambda c: triggers.find_due_triggers(c, partitions, now_us=now_us, limit=limit),
            role="owner",
        )

    async def find_changed_tasks(self, partitions: Sequence[int], *, limit: int) -> list[ChangedTask]:
        return await self._look_up(
            "finding changed tasks",
            lambda c: tasks.find_changed_tasks(c, partitions, limit=limit),
            role="owner",
        )

    async def find_requests(self, partitions: Sequence[int], *, limit: int) -> list[Request]:
        return await self._look_up(
            "finding requests", lambda c: queries.find_requests(c, partitions, limit=limit), role="owner"
        )

    async def triggers_of(self, ref: TaskRef) -> list[TriggerRow]:
        return await self._look_up("reading triggers", lambda c: triggers.triggers_of(c, ref), role="owner")

    async def delete_finished(
        self, *, success_before_us: int, other_before_us: int, keys_before_us: int, limit: int
    ) -> int:
        return await self._find(
            "deleting finished instances",
            lambda c: queries.delete_finished(
                c,
                success_before_us=success_before_us,
                other_before_us=other_before_us,
                keys_before_us=keys_before_us,
                limit=limit,
            ),
        )

    async def record_workers(self, rows: Sequence[WorkerRow], *, gone_before_us: int) -> None:
        await self._find(
            "recording workers", lambda c: workers.record_workers(c, rows, gone_before_us=gone_before_us)
        )

    # ── anyone ───────────────────────────────────────────────────────────────────────────────────────

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
        receipts = await self._list(
            "applying definitions",
            lambda c: apply.apply(
                c,
                definitions,
                now_us=now_us,
                origin=origin,
                expected=expected,
                partition_count=self._partition_count,
            ),
        )
        self._told()
        return receipts

    async def load_definitions(
        self, versions: Sequence[tuple[TaskRef, int]]
    ) -> dict[tuple[TaskRef, int], TaskDefinition]:
        return await self._look_up(
            "reading definitions", lambda c: tasks.load_definitions(c, versions), role="owner"
        )

    async def get_tasks(self, refs: Sequence[TaskRef]) -> dict[TaskRef, TaskRow]:
        return await self._look_up("reading tasks", lambda c: tasks.get_tasks(c, refs), role="owner")

    async def list_tasks(
        self, namespace: str | None, *, after: TaskRef | None, limit: int, search: str = ""
    ) -> list[TaskRow]:
        wanted = fold(search)
        return await self._look_up(
            "listing tasks",
            lambda c: tasks.list_tasks(c, namespace, after=after, limit=limit, search=wanted),
        )

    async def namespaces(self, *, limit: int) -> list[str]:
        return await self._look_up("listing namespaces", lambda c: tasks.namespaces(c, limit=limit))

    async def workers(self) -> list[WorkerRow]:
        return await self._look_up("listing workers", workers.workers)

    async def add_requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            require_partition(request.partition, self._partition_count, subject=request.id)
        await self._list("adding requests", lambda c: queries.add_requests(c, requests))
        self._told()

    async def answers(self, request_ids: Sequence[str]) -> dict[str, RequestAnswer]:
        return await self._look_up("reading answers", lambda c: queries.answers(c, request_ids))

    async def get_instances(self, ids: Sequence[str]) -> dict[str, Instance]:
        return await self._look_up("reading instances", lambda c: queries.get_instances(c, ids), role="owner")

    async def list_instances(self, where: InstanceFilter, *, cursor: str | None, limit: int) -> InstancePage:
        require_filter(where)
        return await self._look_up(
            "listing instances",
            lambda c: lists.list_instances(c, where, cursor=cursor, limit=limit),
            stands_alone=False,
        )

    async def count_instances(self, where: InstanceFilter, *, limit: int) -> InstanceCounts:
        require_filter(where)
        return await self._look_up(
            "counting instances",
            lambda c: lists.count_instances(c, where, limit=limit),
            stands_alone=False,
        )

    async def history(
        self, instance_id: str, *, after: int = 0, limit: int | None = None
    ) -> list[HistoryRow]:
        return await self._look_up(
            "reading history", lambda c: queries.history(c, instance_id, after=after, limit=limit)
        )

    async def count_history(self, instance_id: str) -> int:
        return await self._look_up("counting history", lambda c: queries.count_history(c, instance_id))

    async def append_output(self, chunks: Sequence[OutputChunk]) -> None:
        """As the protocol says; output of an instance that has been deleted is dropped."""
        await self._find("storing output", lambda c: queries.append_output(c, chunks))

    async def output(self, instance_id: str, *, after: tuple[int, int], limit: int) -> list[OutputChunk]:
        return await self._look_up(
            "reading output", lambda c: queries.output(c, instance_id, after=after, limit=limit)
        )
