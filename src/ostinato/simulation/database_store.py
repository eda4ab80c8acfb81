"""``SimulatedStore``: the ``Store`` protocol of one process over the simulated server.

Calls are the in-memory store's, carried out at the server; ``database_writes`` says what each transaction
that writes does there.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import msgspec

from ostinato.clock import Clock
from ostinato.core.definition import Origin, TaskDefinition, TaskRef
from ostinato.core.model import Instance
from ostinato.simulation import database_ownership as ownership
from ostinato.simulation import database_writes as writes
from ostinato.simulation.database_calls import Calls, run_at_once
from ostinato.store.batches import (
    ApplyReceipt,
    CommitBatch,
    CommitReport,
    NodeRow,
    NodesSeen,
    Proof,
    Request,
    StoreCounters,
    Submission,
    SubmitReceipt,
)
from ostinato.store.changes import ChangeSignal
from ostinato.store.hints import Hints, named_by
from ostinato.store.memory import MemoryStore
from ostinato.store.newest import submit_if_newest
from ostinato.store.protocol import Capabilities
from ostinato.store.server.database import Role

if TYPE_CHECKING:
    from ostinato.simulation.database import DatabaseServer
    from ostinato.simulation.database_wire import Wire

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
#: Any, twice: what a coroutine yields and is sent, which is nothing here.
Method = Callable[Concatenate[MemoryStore, Arguments], Coroutine[Any, Any, Result]]
Call = Callable[Concatenate["SimulatedStore", Arguments], Coroutine[Any, Any, Result]]


def _reads(operation: str, role: Role, method: Method[Arguments, Result]) -> Call[Arguments, Result]:
    """A call that reads at one instant; repeated where its answer is lost."""

    def call(
        store: SimulatedStore, /, *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Coroutine[Any, Any, Result]:
        memory = store.server.memory
        return store.calls.read(
            operation, lambda _: run_at_once(method(memory, *arguments, **named)), role=role
        )

    return call


def _writes(operation: str, role: Role, method: Method[Arguments, Result]) -> Call[Arguments, Result]:
    """A transaction of a statement that waits for nobody, and its COMMIT."""

    def call(
        store: SimulatedStore, /, *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Coroutine[Any, Any, Result]:
        memory = store.server.memory
        return writes.write(
            store.calls, operation, role=role, effect=lambda: run_at_once(method(memory, *arguments, **named))
        )

    return call


class SimulatedStore:
    """One process's connections to the simulated server."""

    def __init__(self, server: DatabaseServer, wire: Wire, *, process: str, clock: Clock) -> None:
        self.server = server
        self.wire = wire
        self.calls = Calls(server, wire, process=process, clock=clock)
        self._changes = ChangeSignal(clock)
        self._hints = Hints()
        #: Hears of what others have committed; begins when somebody first waits for it.
        self.is_listening = False
        #: A node's, which asks for the time about once a second and goes by what it is told.
        self.keeps_time = False
        self._process = process

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="simulated", many_nodes=True, durable=True)

    @property
    def partition_count(self) -> int:
        return self.server.memory.partition_count

    def counters(self) -> StoreCounters:
        """Repetitions are not counted here."""
        return StoreCounters()

    async def open(self) -> None:
        """As the servers' adapters do, ask once whether the database is there."""
        await self.nodes()

    async def close(self) -> None:
        self.is_listening = False
        self.server.forget(self)
        self.calls.close()

    def crash(self) -> None:
        """The process is dead: the server is told, or finds out when nobody answers any more."""
        self.is_listening = False
        self.server.forget(self)
        self.calls.crash()

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────

    async def wait_for_change(self, until_boot_us: int) -> None:
        """Commits of this store are known at once, those of others by a hint that may be lost."""
        self.is_listening = True
        await self._changes.wait(until_boot_us)

    def hear(self, hinted: Sequence[Instance] = ()) -> None:
        """A hint has come, which names these."""
        self._hints.add(hinted)
        self._changes.notify()

    def take_hinted(self) -> list[Instance]:
        return self._hints.take()

    def _told(self, hinted: Sequence[Instance] = ()) -> None:
        self.hear(hinted)
        self.server.announce(self, hinted)

    # ── ownership ────────────────────────────────────────────────────────────────────────────────────

    async def register_node(self, node: NodeRow) -> None:
        self.is_listening = True
        await ownership.register_node(self.calls, node)

    async def renew_node(self, node_id: str) -> bool:
        return await ownership.renew_node(self.calls, node_id)

    note_standing = _writes("noting the node's standing", "owner", MemoryStore.note_standing)

    async def owns_by_lock(self, node_id: str) -> bool:
        """Others judge a node by its counter, whatever lock it holds."""
        return False

    async def remove_node(self, node_id: str) -> None:
        await ownership.remove_node(self.calls, node_id)

    async def watch_nodes(self) -> NodesSeen:
        return await ownership.watch_nodes(self.calls)

    async def take_partitions(
        self, node_id: str, partitions: Sequence[int], *, dead_nodes: Mapping[str, int] = {}
    ) -> list[Proof]:
        return await ownership.take_partitions(
            self.calls, node_id, partitions=partitions, dead_nodes=dead_nodes
        )

    async def release_partitions(self, node_id: str, partitions: Sequence[int]) -> None:
        await ownership.release_partitions(self.calls, node_id, partitions=partitions)

    async def identity(self) -> str:
        server = self.server
        name: str = await self.calls.read(
            "reading the server's identity", lambda _: f"simulated-{server.identity_number}", role="renewal"
        )
        return name

    async def commit(self, batch: CommitBatch) -> CommitReport:
        return await writes.commit(self.calls, batch)

    # ── written by anyone ────────────────────────────────────────────────────────────────────────────

    async def submit(self, submissions: Sequence[Submission]) -> list[SubmitReceipt]:
        receipts = await writes.submit(self.calls, [self._short_lived(each) for each in submissions])
        if receipts:
            self._told(named_by(submissions[0], receipts[0]))
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
        receipts = await writes.apply(
            self.calls, definitions, now_us=now_us, origin=origin, expected=expected
        )
        self._told()
        return receipts

    async def add_requests(self, requests: Sequence[Request]) -> None:
        await writes.add_requests(self.calls, requests)
        self._told()

    delete_finished = _writes("deleting finished instances", "owner", MemoryStore.delete_finished)
    record_workers = _writes("recording workers", "owner", MemoryStore.record_workers)
    append_output = _writes("storing output", "owner", MemoryStore.append_output)

    def _short_lived(self, submission: Submission) -> Submission:
        """No run lasts a day: a key ends as early as the run says."""
        lifetime_us = self.server.key_lifetime_us
        if lifetime_us is None or not submission.key:
            return submission
        ends_us = submission.instance.created_us + lifetime_us
        return msgspec.structs.replace(submission, key_expires_us=ends_us)

    # ── read by owners ───────────────────────────────────────────────────────────────────────────────

    async def now_us(self) -> int:
        clock = self.server.clock
        if self.keeps_time:
            clock.asks(self._process)
        now_us = await self._read_time()
        if self.keeps_time:
            clock.is_told(self._process)
        return now_us

    _read_time = _reads("reading the time", "owner", MemoryStore.now_us)
    nodes = _reads("reading the nodes", "people", MemoryStore.nodes)
    partition_owners = _reads("reading the owners", "people", MemoryStore.partition_owners)
    find_work = _reads("finding work", "owner", MemoryStore.find_work)
    waiting_tasks = _reads("finding work", "owner", MemoryStore.waiting_tasks)
    find_overlap_ready = _reads("finding work", "owner", MemoryStore.find_overlap_ready)
    held_tasks = _reads("reading held tasks", "owner", MemoryStore.held_tasks)
    find_expired = _reads("finding expired work", "owner", MemoryStore.find_expired)
    next_expiry_us = _reads("finding expired work", "owner", MemoryStore.next_expiry_us)
    find_due_triggers = _reads("finding due triggers", "owner", MemoryStore.find_due_triggers)
    live_instances = _reads("reading live instances", "owner", MemoryStore.live_instances)
    find_changed_tasks = _reads("finding changed tasks", "owner", MemoryStore.find_changed_tasks)
    find_requests = _reads("finding requests", "owner", MemoryStore.find_requests)
    running_instances = _reads("reading running instances", "owner", MemoryStore.running_instances)
    triggers_of = _reads("reading triggers", "owner", MemoryStore.triggers_of)
    load_definitions = _reads("reading definitions", "owner", MemoryStore.load_definitions)
    get_tasks = _reads("reading tasks", "owner", MemoryStore.get_tasks)
    get_instances = _reads("reading instances", "owner", MemoryStore.get_instances)

    # ── read by people ───────────────────────────────────────────────────────────────────────────────

    list_tasks = _reads("listing tasks", "people", MemoryStore.list_tasks)
    namespaces = _reads("listing namespaces", "people", MemoryStore.namespaces)
    workers = _reads("listing workers", "people", MemoryStore.workers)
    answers = _reads("reading answers", "people", MemoryStore.answers)
    list_instances = _reads("listing instances", "people", MemoryStore.list_instances)
    count_instances = _reads("counting instances", "people", MemoryStore.count_instances)
    count_waiting = _reads("counting what waits", "owner", MemoryStore.count_waiting)
    history = _reads("reading history", "people", MemoryStore.history)
    count_history = _reads("counting history", "people", MemoryStore.count_history)
    output = _reads("reading output", "people", MemoryStore.output)
