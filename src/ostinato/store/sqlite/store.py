"""``SqliteStore``: the ``Store`` protocol over one SQLite file.

Three lanes: all writes go through one, since SQLite lets in one writer anyway; the owner's reads have
another, and people's lists a third, so that neither a long list nor a commit delays the next round of work.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ostinato.clock import Clock
from ostinato.core.definition import Origin, TaskDefinition, TaskRef, TaskRow
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.model import HistoryRow, Instance, OutputChunk
from ostinato.core.partition.standing import Standing
from ostinato.core.states import Hold
from ostinato.errors import UnavailableError
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
from ostinato.store.sqlite import lists, ownership, queries, tasks, work, workers
from ostinato.store.sqlite.commit import commit
from ostinato.store.sqlite.database import connect, connect_writer
from ostinato.store.sqlite.failures import unusable
from ostinato.store.sqlite.lane import Lane
from ostinato.store.sqlite.lock_file import LockFile
from ostinato.store.sqlite.statements import owned
from ostinato.store.sqlite.submit import submit

DEADLINE_US = 10 * SECOND
#: How often other processes' commits are looked for while somebody waits.
_POLL_US = 20 * MILLISECOND

Result = TypeVar("Result")


class SqliteStore:
    """One file; one scheduler node at a time (``LockFile``), any number of processes that submit."""

    def __init__(
        self, path: str, *, clock: Clock, partition_count: int = 64, deadline_us: int = DEADLINE_US
    ) -> None:
        """`partition_count` is for a database that does not exist yet; every call ends in `deadline_us`."""
        self._path = path
        self._clock = clock
        self._partition_count = partition_count
        self._deadline_us = deadline_us
        self._changes = ChangeSignal(clock)
        self._data_version: int | None = None
        self._lock = LockFile(path)
        self._node_id = ""
        self._identity: tuple[int, int] | None = None
        self._new_lanes()

    def _new_lanes(self) -> None:
        def writer() -> sqlite3.Connection:
            return connect_writer(
                self._path, deadline_us=self._deadline_us, partition_count=self._partition_count
            )

        def reader() -> sqlite3.Connection:
            return connect(self._path, deadline_us=self._deadline_us, read_only=True)

        self._writer = Lane(self._path, writer, deadline_us=self._deadline_us)
        self._work_reader = Lane(self._path, reader, deadline_us=self._deadline_us)
        self._list_reader = Lane(self._path, reader, deadline_us=self._deadline_us)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="sqlite", many_nodes=False, durable=True)

    @property
    def partition_count(self) -> int:
        return self._partition_count

    def counters(self) -> StoreCounters:
        """Nothing is repeated here."""
        return StoreCounters()

    async def open(self) -> None:
        try:
            owners = await self._writer.run("opening the database", ownership.partition_owners)
            # All that they open is opened now: later there may be no descriptor left.
            await self._work_reader.run("opening the database", _data_version)
            await self._list_reader.run("opening the database", _data_version)
        except BaseException:
            await self.close()
            raise
        self._partition_count = len(owners)
        self._identity = _file_identity(self._path)

    async def close(self) -> None:
        self._lock.release()
        self._identity = None
        for lane in (self._list_reader, self._work_reader, self._writer):
            await lane.close()
        self._new_lanes()

    async def now_us(self) -> int:
        """The machine's wall clock: all who share the file are on one machine."""
        return self._clock.wall_us()

    def take_hinted(self) -> list[Instance]:
        """Hints name nothing here."""
        return []

    async def wait_for_change(self, until_boot_us: int) -> None:
        """Commits of this object are known at once; those of others show in ``PRAGMA data_version``.

        The writing connection is asked, since only there the owner's own commits do not count.
        """
        while True:
            if self._writer.is_idle:
                version = await self._writer.run("looking for changes", _data_version)
                if self._data_version not in (None, version):
                    self._changes.notify()
                self._data_version = version
            now_us = self._clock.boot_us()
            if await self._changes.wait(min(until_boot_us, now_us + _POLL_US)) or now_us >= until_boot_us:
                return

    # ── ownership ────────────────────────────────────────────────────────────────────────────────────

    async def register_node(self, node: NodeRow) -> None:
        def register(connection: sqlite3.Connection) -> None:
            self._lock.acquire()
            ownership.register_node(connection, node)

        await self._write("registering the node", register)
        self._node_id = node.id

    async def renew_node(self, node_id: str) -> bool:
        return await self._write("renewing the node", lambda c: ownership.renew_node(c, node_id))

    async def note_standing(self, node_id: str, standing: Standing) -> None:
        await self._write(
            "noting the node's standing", lambda c: ownership.note_standing(c, node_id, standing=standing)
        )

    async def owns_by_lock(self, node_id: str) -> bool:
        """As the protocol says; reads only, so a disk that takes no writes does not matter.

        Safe because a node that takes over must first have the lock file, which the kernel gives to one
        process at a time for as long as it lives, and must then delete this node's row in this very file.
        While the lock is ours under its name, and the row is there in the file under its name, nobody has
        taken over, and nobody can begin to.
        """
        if not self._lock.is_held() or _file_identity(self._path) != self._identity:
            return False
        return any(node.id == node_id for node in await self.nodes())

    async def remove_node(self, node_id: str) -> None:
        await self._writer.run("removing the node", lambda c: ownership.remove_node(c, node_id))
        if node_id == self._node_id:
            self._lock.release()

    async def nodes(self) -> list[NodeRow]:
        return await self._list("reading the nodes", ownership.nodes)

    async def watch_nodes(self) -> NodesSeen:
        """The lock file keeps a second node away, so nobody's lock is watched."""
        return NodesSeen(tuple(await self.nodes()))

    async def take_partitions(
        self, node_id: str, partitions: Sequence[int], *, dead_nodes: Mapping[str, int] = {}
    ) -> list[Proof]:
        return await self._write(
            "taking partitions",
            lambda c: ownership.take_partitions(c, node_id, partitions=partitions, dead_nodes=dead_nodes),
        )

    async def release_partitions(self, node_id: str, partitions: Sequence[int]) -> None:
        await self._write(
            "releasing partitions", lambda c: ownership.release_partitions(c, node_id, partitions=partitions)
        )

    async def identity(self) -> str:
        """Empty: what answers is the file, and every write looks whether it is still the same."""
        return ""

    async def partition_owners(self) -> list[Proof]:
        return await self._list("reading the owners", ownership.partition_owners)

    # ── owner ────────────────────────────────────────────────────────────────────────────────────────

    async def commit(self, batch: CommitBatch) -> CommitReport:
        return await self._write("committing a batch", lambda c: commit(c, batch))

    async def find_work(
        self, partitions: Sequence[int], *, now_us: int, limit: int, held: Sequence[HeldQuery] = ()
    ) -> FoundWork:
        mine = self._owned(partitions)
        return await self._find(
            "finding work", lambda c: work.find_work(c, mine, now_us=now_us, limit=limit, held=held)
        )

    async def waiting_tasks(
        self, partitions: Sequence[int], *, now_us: int, first: TaskRef | None, limit: int
    ) -> WaitingTasks:
        mine = self._owned(partitions)
        return await self._find(
            "finding work",
            lambda c: work.waiting_tasks(c, mine, now_us=now_us, first=first, limit=limit),
        )

    async def find_overlap_ready(self, refs: Sequence[TaskRef]) -> list[Instance]:
        return await self._find("finding work", lambda c: work.find_overlap_ready(c, refs))

    async def held_tasks(self, partitions: Sequence[int]) -> list[tuple[TaskRef, Hold]]:
        mine = self._owned(partitions)
        return await self._find("reading held tasks", lambda c: work.held_tasks(c, mine))

    async def find_expired(self, partitions: Sequence[int], *, now_us: int, limit: int) -> list[Instance]:
        mine = self._owned(partitions)
        return await self._find(
            "finding expired work", lambda c: work.find_expired(c, mine, now_us=now_us, limit=limit)
        )

    async def next_expiry_us(self, partitions: Sequence[int]) -> int | None:
        mine = self._owned(partitions)
        return await self._find("finding expired work", lambda c: work.next_expiry_us(c, mine))

    async def find_due_triggers(self, partitions: Sequence[int], *, now_us: int, limit: int) -> FoundTriggers:
        mine = self._owned(partitions, column="task_trigger.partition")
        return await self._find(
            "finding due triggers", lambda c: tasks.find_due_triggers(c, mine, now_us=now_us, limit=limit)
        )

    async def live_instances(self, refs: Sequence[TaskRef], *, limit: int) -> dict[TaskRef, list[Instance]]:
        return await self._find("reading live instances", lambda c: work.live_instances(c, refs, limit=limit))

    async def find_changed_tasks(self, partitions: Sequence[int], *, limit: int) -> list[ChangedTask]:
        mine = self._owned(partitions)
        return await self._find(
            "finding changed tasks", lambda c: tasks.find_changed_tasks(c, mine, limit=limit)
        )

    async def find_requests(self, partitions: Sequence[int], *, limit: int) -> list[Request]:
        mine = self._owned(partitions)
        return await self._find("finding requests", lambda c: work.find_requests(c, mine, limit=limit))

    async def running_instances(
        self, partitions: Sequence[int], *, after_id: str, limit: int
    ) -> list[Instance]:
        mine = self._owned(partitions)
        return await self._find(
            "reading running instances",
            lambda c: work.running_instances(c, mine, after_id=after_id, limit=limit),
        )

    async def triggers_of(self, ref: TaskRef) -> list[TriggerRow]:
        return await self._find("reading triggers", lambda c: tasks.triggers_of(c, ref))

    async def delete_finished(
        self, *, success_before_us: int, other_before_us: int, keys_before_us: int, limit: int
    ) -> int:
        return await self._write(
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
        await self._write(
            "recording workers", lambda c: workers.record_workers(c, rows, gone_before_us=gone_before_us)
        )

    def _owned(self, partitions: Sequence[int], *, column: str = "partition") -> str:
        return owned(partitions, self._partition_count, column=column)

    async def _write(self, operation: str, write: Callable[[sqlite3.Connection], Result]) -> Result:
        """What every write goes through. Raises ``DATABASE_UNUSABLE`` if the file is not the one opened.

        SQLite would go on writing into a deleted file, where nobody finds it. So it is looked for before,
        and again before anything is acknowledged.
        """

        def write_into_own_file(connection: sqlite3.Connection) -> Result:
            if not self._is_own_file():
                raise unusable(
                    self._path,
                    "the file has been removed or replaced while it was in use",
                    hint="stop the scheduler, put the file back, start again",
                )
            result = write(connection)
            if not self._is_own_file():
                # Written, but perhaps where nobody finds it; if the file comes back, so does this.
                raise UnavailableError(
                    "DATABASE_UNAVAILABLE",
                    f"{operation}: the file was removed or replaced meanwhile; what was written may be lost",
                    subject=self._path,
                    hint="stop the scheduler, put the file back, start again",
                )
            return result

        return await self._writer.run(operation, write_into_own_file)

    def _is_own_file(self) -> bool:
        return self._identity is None or _file_identity(self._path) == self._identity

    async def _find(self, operation: str, read: Callable[[sqlite3.Connection], Result]) -> Result:
        return await self._work_reader.run(operation, read)

    async def _list(self, operation: str, read: Callable[[sqlite3.Connection], Result]) -> Result:
        return await self._list_reader.run(operation, read)

    # ── anyone ───────────────────────────────────────────────────────────────────────────────────────

    async def submit(self, submissions: Sequence[Submission]) -> list[SubmitReceipt]:
        receipts = await self._write(
            "submitting",
            lambda c: submit(
                c, submissions, now_us=self._clock.wall_us(), partition_count=self._partition_count
            ),
        )
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
        receipts = await self._write(
            "applying definitions",
            lambda c: tasks.apply(
                c,
                definitions,
                now_us=now_us,
                origin=origin,
                expected=expected,
                partition_count=self._partition_count,
            ),
        )
        self._changes.notify()
        return receipts

    async def load_definitions(
        self, versions: Sequence[tuple[TaskRef, int]]
    ) -> dict[tuple[TaskRef, int], TaskDefinition]:
        return await self._find("reading definitions", lambda c: tasks.load_definitions(c, versions))

    async def get_tasks(self, refs: Sequence[TaskRef]) -> dict[TaskRef, TaskRow]:
        return await self._find("reading tasks", lambda c: tasks.get_tasks(c, refs))

    async def list_tasks(
        self, namespace: str | None, *, after: TaskRef | None, limit: int, search: str = ""
    ) -> list[TaskRow]:
        wanted = fold(search)
        return await self._list(
            "listing tasks",
            lambda c: tasks.list_tasks(c, namespace, after=after, limit=limit, search=wanted),
        )

    async def namespaces(self, *, limit: int) -> list[str]:
        return await self._list("listing namespaces", lambda c: tasks.namespaces(c, limit=limit))

    async def workers(self) -> list[WorkerRow]:
        return await self._list("listing workers", workers.workers)

    async def add_requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            require_partition(request.partition, self._partition_count, subject=request.id)
        await self._write("adding requests", lambda c: queries.add_requests(c, requests))
        self._changes.notify()

    async def answers(self, request_ids: Sequence[str]) -> dict[str, RequestAnswer]:
        return await self._list("reading answers", lambda c: queries.answers(c, request_ids))

    async def get_instances(self, ids: Sequence[str]) -> dict[str, Instance]:
        return await self._find("reading instances", lambda c: queries.get_instances(c, ids))

    async def list_instances(self, where: InstanceFilter, *, cursor: str | None, limit: int) -> InstancePage:
        require_filter(where)
        return await self._list(
            "listing instances", lambda c: lists.list_instances(c, where, cursor=cursor, limit=limit)
        )

    async def count_instances(self, where: InstanceFilter, *, limit: int) -> InstanceCounts:
        require_filter(where)
        return await self._list("counting instances", lambda c: lists.count_instances(c, where, limit=limit))

    async def count_waiting(self, *, now_us: int, limit: int) -> int:
        return await self._list(
            "counting what waits", lambda c: work.count_waiting(c, now_us=now_us, limit=limit)
        )

    async def history(
        self, instance_id: str, *, after: int = 0, limit: int | None = None
    ) -> list[HistoryRow]:
        return await self._list(
            "reading history", lambda c: queries.history(c, instance_id, after=after, limit=limit)
        )

    async def count_history(self, instance_id: str) -> int:
        return await self._list("counting history", lambda c: queries.count_history(c, instance_id))

    async def append_output(self, chunks: Sequence[OutputChunk]) -> None:
        """As the protocol says; output of an instance that has been deleted is dropped."""
        await self._write("storing output", lambda c: queries.append_output(c, chunks))

    async def output(self, instance_id: str, *, after: tuple[int, int], limit: int) -> list[OutputChunk]:
        return await self._list(
            "reading output", lambda c: queries.output(c, instance_id, after=after, limit=limit)
        )


def _data_version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return version


def _file_identity(path: str) -> tuple[int, int] | None:
    """Device and inode; None where no file is found."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
