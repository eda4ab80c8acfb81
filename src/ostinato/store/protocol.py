"""The ``Store`` protocol: what the scheduler and its clients ask of a database.

Guarantees that every adapter gives, and that the contract suite checks on each:

* **Proof.** ``commit`` checks every proof inside its own transaction and holds the partition rows locked
  against a change of owner until the transaction ends. Rows of a partition whose proof fails are not
  written; the other partitions' rows are.
* **Expected state.** A move is written only if the row is in the expected state and attempt. History,
  inserts and answers that depend on an unmatched move are not written.
* **All or nothing** per partition and batch, durable when the call returns.
* **Bounded calls.** Every call ends within the deadline that the adapter was built with, or raises
  ``UnavailableError``: ``DATABASE_UNAVAILABLE`` (unknown whether a write happened: read again before
  deciding), ``DATABASE_FULL`` (it did not happen).
* **Order of reads.** Work is found by state and due time, never by a cursor over ids or times.
* **Texts** hold no NUL and no lone surrogates: callers make them safe first.

Anyone may call the methods under "anyone"; only the owner calls those under "owner".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

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


class Capabilities(msgspec.Struct, frozen=True):
    """What an adapter can do, asked rather than assumed."""

    name: str
    #: More than one scheduler node may share the database.
    many_nodes: bool
    #: Survives the end of the process.
    durable: bool


class Store(Protocol):
    """A database of tasks, instances and their history. Times are UTC instants in microseconds."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def partition_count(self) -> int:
        """Fixed when the database was created; known once open."""
        ...

    def counters(self) -> StoreCounters:
        """How often this object has had to repeat something; asked for metrics, at any time."""
        ...

    async def open(self) -> None:
        """Connect; create or migrate the schema where the adapter does so by itself.

        Raises ``SCHEMA_VERSION``, ``DATABASE_UNUSABLE``, ``DATABASE_UNAVAILABLE``.
        """
        ...

    async def close(self) -> None:
        """Give back every resource; idempotent."""
        ...

    async def now_us(self) -> int:
        """The database's time, on which everyone who shares it agrees."""
        ...

    async def wait_for_change(self, until_boot_us: int) -> None:
        """Return when someone else may have committed work, or at `until_boot_us`; may return early."""
        ...

    def take_hinted(self) -> list[Instance]:
        """New instances that hints have named since the last call, without payload; see ``store.hints``.

        Any may be missing, and may have moved since.
        """
        ...

    # ── ownership ────────────────────────────────────────────────────────────────────────────────────

    async def register_node(self, node: NodeRow) -> None:
        """Insert the row of a node. Raises ``NODE_ALREADY_RUNNING`` where only one may share the database."""
        ...

    async def renew_node(self, node_id: str) -> bool:
        """Raise the node's counter; False when its row is gone (it has been declared dead)."""
        ...

    async def note_standing(self, node_id: str, standing: Standing) -> None:
        """Write down whether workers reach the node; nothing where its row is gone."""
        ...

    async def owns_by_lock(self, node_id: str) -> bool:
        """Whether the node owns its partitions whatever becomes of its renewals; asked when one has failed.

        True only where a lock that no other node can take while this process lives says so, together with
        a read of the node's row. Always False where others judge a node by its counter.
        """
        ...

    async def remove_node(self, node_id: str) -> None:
        """Clean stop: delete the row and release its partitions in one transaction; idempotent."""
        ...

    async def nodes(self) -> list[NodeRow]:
        """Every node that has a row, by id."""
        ...

    async def watch_nodes(self) -> NodesSeen:
        """The nodes, with those whose session lock has become free; for the watch of a node over the others.

        A lock counts as freed only if this store has seen it held before, and its own session with the
        database has lasted unbroken since: after a restart of the database all locks are free, and only the
        counters tell who lives.
        """
        ...

    async def take_partitions(
        self, node_id: str, partitions: Sequence[int], *, dead_nodes: Mapping[str, int] = {}
    ) -> list[Proof]:
        """Own `partitions` with their epoch + 1, deleting the rows of `dead_nodes`, in one transaction.

        `dead_nodes` names the counter (``NodeRow.renewals``) with which each was found dead: one that has
        renewed itself since then lives, and keeps row and partitions. Takes partitions that are free or
        belong to a dead node, `node_id` or a node without a row; leaves out the others. A node whose own row
        is gone takes nothing and kills nobody. Waits for the former owner's open transaction; one that blocks
        it for a second is ended (design section 3).
        """
        ...

    async def release_partitions(self, node_id: str, partitions: Sequence[int]) -> None:
        """Free those of `partitions` that belong to the node, epochs as they are: a voluntary hand-over."""
        ...

    async def identity(self) -> str:
        """Names the server and its timeline; another text than before means another database answers.

        Then nothing that was believed of the former one holds. Always empty where there is one file.
        """
        ...

    async def partition_owners(self) -> list[Proof]:
        """Every partition with its owner (empty text: nobody) and epoch, by partition."""
        ...

    # ── owner ────────────────────────────────────────────────────────────────────────────────────────

    async def commit(self, batch: CommitBatch) -> CommitReport:
        """Write one batch in one transaction; see ``CommitBatch`` and the guarantees above."""
        ...

    async def find_work(
        self, partitions: Sequence[int], *, now_us: int, limit: int, held: Sequence[HeldQuery] = ()
    ) -> FoundWork:
        """Due waiting instances (pending and retry_waiting, ``due_us <= now_us``).

        Unheld rows: up to `limit`, by priority falling with age (``due_us - priority * 60 s``), then id.
        To these the held rows asked for by `held` are added, each query by the same order up to its limit,
        those too whose time is not there yet, since the clock by which they were held was put back.
        Cost does not grow with future, held or finished rows. What others commit long after it was due may be
        found by a later look only; ``next_due_us`` says when that is.
        """
        ...

    async def waiting_tasks(
        self, partitions: Sequence[int], *, now_us: int, first: TaskRef | None, limit: int
    ) -> WaitingTasks:
        """Tasks that have due, unheld work, however much of others stands before it in the queue.

        Looked at are up to `limit` tasks with non-terminal instances, in an order of the store's own, from
        `first` on (None: from the beginning). Of each its newest instances tell, at most `TOLD_COUNT`: one
        that has more of them, none of which waits, may have such work behind them and is given too.
        Cost grows with the tasks looked at, not with their instances.
        """
        ...

    async def find_overlap_ready(self, refs: Sequence[TaskRef]) -> list[Instance]:
        """For each task at most one instance held as ``overlap`` that may start now, or one fire's shards.

        That is the earliest (fire_us, created_us, id), and only where no other live instance of the task
        that is not itself held as ``overlap`` stands before it (`core.schedule.overlap.stands_before`); with
        it come the shards of its fire that are held as it is.
        """
        ...

    async def held_tasks(self, partitions: Sequence[int]) -> list[tuple[TaskRef, Hold]]:
        """Distinct tasks that have held instances, for the warm-up."""
        ...

    async def find_expired(self, partitions: Sequence[int], *, now_us: int, limit: int) -> list[Instance]:
        """Waiting instances with ``expires_us < now_us``, earliest first."""
        ...

    async def next_expiry_us(self, partitions: Sequence[int]) -> int | None:
        """Earliest ``expires_us`` of waiting instances."""
        ...

    async def find_due_triggers(self, partitions: Sequence[int], *, now_us: int, limit: int) -> FoundTriggers:
        """Triggers with ``next_us <= now_us`` whose task is neither paused nor disabled, earliest first.

        Those of tasks whose newest version is not in force are left out: they become due with their switch.
        """
        ...

    async def live_instances(self, refs: Sequence[TaskRef], *, limit: int) -> dict[TaskRef, list[Instance]]:
        """Non-terminal instances of each task, oldest first, at most `limit` each, without payload."""
        ...

    async def find_changed_tasks(self, partitions: Sequence[int], *, limit: int) -> list[ChangedTask]:
        """Tasks whose newest version is not in force (``scheduled_version <> version``), oldest edit first.

        Those changed at the same instant come in an order that stays the same. Cost does not grow with the
        number of changed tasks beyond `limit`.
        """
        ...

    async def find_requests(self, partitions: Sequence[int], *, limit: int) -> list[Request]:
        """Unanswered requests, oldest first."""
        ...

    async def running_instances(
        self, partitions: Sequence[int], *, after_id: str, limit: int
    ) -> list[Instance]:
        """Instances in ``running`` by id, for the warm-up; continue with the last id. Without payload."""
        ...

    async def triggers_of(self, ref: TaskRef) -> list[TriggerRow]:
        """Triggers in force of a task."""
        ...

    async def delete_finished(
        self, *, success_before_us: int, other_before_us: int, keys_before_us: int, limit: int
    ) -> int:
        """Delete terminal instances that finished before, with history and output; returns how many.

        Answered requests go with those that did not succeed, and idempotency keys that have ended by
        `keys_before_us`, whatever the database's own clock says.
        """
        ...

    async def record_workers(self, rows: Sequence[WorkerRow], *, gone_before_us: int) -> None:
        """Insert or replace rows of workers; delete ``gone`` ones last seen before `gone_before_us`.

        Rows of nodes that have no row of their own any more become ``gone``.
        """
        ...

    # ── anyone ───────────────────────────────────────────────────────────────────────────────────────

    async def submit(self, submissions: Sequence[Submission]) -> list[SubmitReceipt]:
        """Insert new instances, all or none; a repeated id counts as created before (not an error).

        A live key: with the same request hash its instance is the answer, with another the receipt says
        conflict; a key that had expired when the submission was made is replaced atomically. No limit on
        the number but memory.
        """
        ...

    async def submit_if_newest(self, submission: Submission) -> SubmitReceipt | None:
        """As `submit` of one, without a key, if the instance pins the newest version of its task.

        None where it does not, or the task is gone or disabled: then nothing was inserted.
        """
        ...

    async def apply(
        self,
        definitions: Sequence[TaskDefinition],
        *,
        now_us: int,
        origin: Origin = "app",
        expected: Mapping[TaskRef, int] = {},
    ) -> list[ApplyReceipt]:
        """Store definitions, all or none: equal content makes no new version.

        The origin is that of the newest version; equal content from an app makes the task the app's, which
        it stays when a document says the same.

        `expected` names the newest version that a task must have, 0 for one that must not exist. If any has
        another, nothing is written; the receipts of those say ``conflict``, of the others ``unchanged``.
        A task named by `expected` alone has a receipt only in a conflict, behind those of the definitions.
        """
        ...

    async def load_definitions(
        self, versions: Sequence[tuple[TaskRef, int]]
    ) -> dict[tuple[TaskRef, int], TaskDefinition]:
        """Pinned definitions; missing ones are left out."""
        ...

    async def get_tasks(self, refs: Sequence[TaskRef]) -> dict[TaskRef, TaskRow]:
        """Live rows of tasks; missing ones are left out."""
        ...

    async def list_tasks(
        self, namespace: str | None, *, after: TaskRef | None, limit: int, search: str = ""
    ) -> list[TaskRow]:
        """Tasks by (namespace, name); `search` is a part of the name, upper and lower case alike."""
        ...

    async def namespaces(self, *, limit: int) -> list[str]:
        """Namespaces that have tasks, by name; the cost grows with their number, not with that of tasks."""
        ...

    async def workers(self) -> list[WorkerRow]:
        """Every recorded worker, by (name, id, node)."""
        ...

    async def add_requests(self, requests: Sequence[Request]) -> None:
        """Insert requests for the owners; a repeated id changes nothing."""
        ...

    async def answers(self, request_ids: Sequence[str]) -> dict[str, RequestAnswer]:
        """Answers given so far."""
        ...

    async def get_instances(self, ids: Sequence[str]) -> dict[str, Instance]:
        """Whole rows; missing ones are left out."""
        ...

    async def list_instances(self, where: InstanceFilter, *, cursor: str | None, limit: int) -> InstancePage:
        """A page of instances, newest first, payload and result left out (empty).

        Its cost is bounded, whatever the filter and the number of rows; see `InstancePage`.
        """
        ...

    async def count_instances(self, where: InstanceFilter, *, limit: int) -> InstanceCounts:
        """Number of instances by state, counting at most `limit` rows where an index alone does not tell."""
        ...

    async def count_waiting(self, *, now_us: int, limit: int) -> int:
        """Due instances that have not started (first attempts and retries, held ones too), at most `limit`.

        Cost grows with what is counted, not with running, finished or future rows. For backpressure.
        """
        ...

    async def history(
        self, instance_id: str, *, after: int = 0, limit: int | None = None
    ) -> list[HistoryRow]:
        """History of an instance in the order written: at most `limit` rows behind the first `after`."""
        ...

    async def count_history(self, instance_id: str) -> int:
        """Rows of the history of an instance; 0 for an instance that is unknown."""
        ...

    async def append_output(self, chunks: Sequence[OutputChunk]) -> None:
        """Store output; a repeated (attempt id, sequence) changes nothing."""
        ...

    async def output(self, instance_id: str, *, after: tuple[int, int], limit: int) -> list[OutputChunk]:
        """Output by (attempt, sequence), strictly after the given pair."""
        ...
