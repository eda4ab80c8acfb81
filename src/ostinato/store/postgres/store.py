"""``PostgresStore``: the ``Store`` protocol over PostgreSQL.

Hot statements go to asyncpg with one array a column; session lock and LISTEN/NOTIFY are used where sessions
are ours, and missed where a proxy pools transactions (``dialect``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.clock import Clock
from ostinato.core.definition import TaskRef, TaskRow
from ostinato.core.model import Instance
from ostinato.core.states import Hold
from ostinato.errors import OstinatoError, UnavailableError, UserError
from ostinato.store.batches import (
    CommitBatch,
    CommitReport,
    FoundWork,
    HeldQuery,
    NodeRow,
    NodesSeen,
    Proof,
    StoreCounters,
    Submission,
    SubmitReceipt,
    WaitingTasks,
)
from ostinato.store.hints import Hints, encode_hint, named_by
from ostinato.store.postgres import ownership, tasks, work
from ostinato.store.postgres.blockers import ending_blockers
from ostinato.store.postgres.changes import Listener
from ostinato.store.postgres.commit import PostgresBatchWriter
from ostinato.store.postgres.commit_alone import commit_alone, lone_move
from ostinato.store.postgres.dialect import PostgresDialect
from ostinato.store.postgres.faults import data_problem
from ostinato.store.postgres.statements import statement
from ostinato.store.postgres.submit import (
    SomeKnownError,
    refused_data,
    submit_if_newest,
    submit_new,
    submit_some,
)
from ostinato.store.protocol import Capabilities
from ostinato.store.rules import key_time_us, require_bounded, require_partition, submission_problem
from ostinato.store.server import nodes
from ostinato.store.server.channel import CHANGE_CHANNEL
from ostinato.store.server.commit import BatchWriter, RefusedDataError
from ostinato.store.server.database import DEADLINE_US, DriverConnection, driver_connection
from ostinato.store.server.faults import error_of
from ostinato.store.server.store import ServerStore
from ostinato.store.server.url import ServerUrl

#: What a row of a long list of submissions may take beyond the deadline of every call.
_ROW_US = 100
#: Tries of a list of submissions while others insert the same ones.
_SUBMIT_TRIES_MAX = 8
#: What a hint may take: the server refuses 8,000 bytes, and the name of who has committed stands before it.
_HINT_BYTES_MAX = 7_900
#: Connections that opening may lose.
_LOOKS_MAX = 6

Result = TypeVar("Result")
Receipts = TypeVar("Receipts", bound=Sequence[SubmitReceipt | None])


class PostgresStore(ServerStore):
    """One database of a PostgreSQL server, for any number of scheduler nodes."""

    _listeners = 1

    def __init__(
        self,
        url: ServerUrl,
        *,
        clock: Clock,
        deadline_us: int = DEADLINE_US,
        rng: Random | None = None,
    ) -> None:
        """Every call ends in `deadline_us`; `rng` spreads repetitions and names this store to the others."""
        rng = rng or Random()
        self._dialect = PostgresDialect(url)
        super().__init__(url, self._dialect, clock=clock, deadline_us=deadline_us, rng=rng)
        self._name = f"{rng.getrandbits(64):016x}"
        self._queue_shape = work.QueueShape()
        self._hints = Hints()
        self.listener = Listener(
            self._dialect, self._changes, name=self._name, clock=clock, rng=rng, hints=self._hints
        )
        self._announcing: asyncio.Task[None] | None = None
        self._has_news = False
        #: New instances that the next announcement names.
        self._to_name = Hints()
        self._knows_cluster = True

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="postgres", many_nodes=True, durable=True)

    async def open(self) -> None:
        try:
            async with asyncio.timeout(self._deadline_us / 1e6):
                await self._find_proxy()
        except Exception as error:
            fault = self._dialect.fault(error)
            if fault is None:
                raise
            raise error_of(fault, operation="opening the database", subject=self._url.shown) from error
        await super().open()

    async def _find_proxy(self) -> None:
        """Again where the connection is lost: a proxy may hand out one that has ended behind its back."""
        for _ in range(_LOOKS_MAX - 1):
            try:
                return await self._dialect.look()
            except Exception as error:
                fault = self._dialect.fault(error)
                if fault is None or fault.kind != "lost":
                    raise
        return await self._dialect.look()

    async def close(self) -> None:
        if self._announcing is not None:
            # A process that submits and ends tells of it first.
            await asyncio.wait((self._announcing,), timeout=1)
            self._announcing.cancel()
            self._announcing = None
        await self.listener.close()
        await super().close()

    async def server_now_us(self, connection: AsyncConnection) -> int:
        driver = await driver_connection(connection)
        return int(await driver.fetchval("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"))

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────

    async def wait_for_change(self, until_boot_us: int) -> None:
        """Commits of this object are known at once, those of others by NOTIFY; without it by nothing."""
        if self._dialect.has_sessions:
            self.listener.start()
        await self._changes.wait(until_boot_us)

    def take_hinted(self) -> list[Instance]:
        return self._hints.take()

    def announce(self) -> None:
        """Not within the transaction that changes something, where it would make all of them queue."""
        self._has_news = True
        if self._announcing is None or self._announcing.done():
            self._announcing = asyncio.create_task(self._announce())

    async def _announce(self) -> None:
        async def notify(connection: AsyncConnection) -> None:
            # One message, which is a transaction of its own, and waits for no disk.
            driver = await driver_connection(connection)
            await driver.fetchrow(statement("announce"), CHANGE_CHANNEL, f"{self._name} {hint}".rstrip())

        while self._has_news:
            self._has_news = False
            hint = encode_hint(self._to_name.take(), bytes_max=_HINT_BYTES_MAX)
            try:
                await self.database.run(
                    "announcing", notify, reads_only=True, stands_alone=True, role="people"
                )
            except OstinatoError:
                # A hint that is lost; whoever waits looks by itself after a while.
                return

    # ── ownership ────────────────────────────────────────────────────────────────────────────────────

    def counters(self) -> StoreCounters:
        return StoreCounters(super().counters().repeats, self.listener.losses)

    async def register_node(self, node: NodeRow) -> None:
        if self._dialect.has_sessions:
            # Before the node's loops look for the first time, so that nothing falls between look and wait.
            self.listener.start()

        async def register(connection: AsyncConnection) -> None:
            await nodes.register_node(connection, node)
            if self._dialect.has_sessions:
                await ownership.hold_lock(connection, node.id)

        await self.database.run("registering the node", register, role="renewal")

    async def renew_node(self, node_id: str) -> bool:
        """As the protocol says; takes the session lock again where the session that held it was lost."""

        async def renew(connection: AsyncConnection) -> bool:
            renewed = await nodes.renew_node(connection, node_id)
            if renewed and self._dialect.has_sessions:
                await ownership.hold_lock(connection, node_id)
            return renewed

        return await self.database.run("renewing the node", renew, role="renewal")

    async def remove_node(self, node_id: str) -> None:
        await super().remove_node(node_id)
        if self._dialect.has_sessions:
            await self.database.run(
                "removing the node", lambda c: ownership.free_lock(c, node_id), role="renewal"
            )

    async def watch_nodes(self) -> NodesSeen:
        if not self._dialect.has_sessions:
            return NodesSeen(tuple(await self.nodes()))
        return await self.database.run("watching the nodes", ownership.watch_nodes, role="renewal")

    async def take_partitions(
        self, node_id: str, partitions: Sequence[int], *, dead_nodes: Mapping[str, int] = {}
    ) -> list[Proof]:
        async def take(driver: DriverConnection) -> list[Proof]:
            self.floors.forget()
            async with ending_blockers(driver, self._dialect, clock=self._clock):
                return await ownership.take_partitions(
                    driver, node_id, partitions=partitions, dead_nodes=dead_nodes
                )

        return await self._hot("taking partitions", take, reads_only=False, stands_alone=False)

    async def identity(self) -> str:
        """System identifier, timeline, database; where these may not be read, its start and address."""
        if self._knows_cluster:
            try:
                return await self._identity("identity")
            except OstinatoError as error:
                if error.code not in ("DATABASE_UNUSABLE", "INTERNAL"):
                    raise
                self._knows_cluster = False
        return await self._identity("identity_by_start")

    async def _identity(self, name: str) -> str:
        async def read(connection: AsyncConnection) -> str:
            return str(await (await driver_connection(connection)).fetchval(statement(name)))

        # A renewal waits for it, and so must not wait for commits.
        return await self.database.run(
            "reading the server's identity", read, reads_only=True, stands_alone=True, role="renewal"
        )

    # ── owner ────────────────────────────────────────────────────────────────────────────────────────

    async def _hot(
        self,
        operation: str,
        statements: Callable[[DriverConnection], Awaitable[Result]],
        *,
        reads_only: bool = True,
        stands_alone: bool = True,
    ) -> Result:
        """An owner's transaction of statements that go to asyncpg itself."""

        async def run(connection: AsyncConnection) -> Result:
            return await statements(await driver_connection(connection))

        return await self.database.run(
            operation, run, reads_only=reads_only, stands_alone=stands_alone, role="owner"
        )

    async def batch_writer(self, connection: AsyncConnection) -> BatchWriter:
        return PostgresBatchWriter(connection, await driver_connection(connection))

    async def _commit_at_once(self, batch: CommitBatch) -> CommitReport:
        move = lone_move(batch)
        if move is None:
            return await super()._commit_at_once(batch)
        return await self._hot(
            "committing a batch",
            lambda driver: commit_alone(driver, batch, move=move),
            reads_only=False,
            stands_alone=True,
        )

    async def find_work(
        self, partitions: Sequence[int], *, now_us: int, limit: int, held: Sequence[HeldQuery] = ()
    ) -> FoundWork:
        return await self._hot(
            "finding work",
            lambda driver: work.find_work(
                driver,
                partitions,
                now_us=now_us,
                limit=limit,
                held=held,
                floors=self.floors,
                shape=self._queue_shape,
            ),
        )

    async def waiting_tasks(
        self, partitions: Sequence[int], *, now_us: int, first: TaskRef | None, limit: int
    ) -> WaitingTasks:
        return await self._hot(
            "finding work",
            lambda driver: work.waiting_tasks(driver, partitions, now_us=now_us, first=first, limit=limit),
        )

    async def find_overlap_ready(self, refs: Sequence[TaskRef]) -> list[Instance]:
        return await self._hot("finding work", lambda driver: work.find_overlap_ready(driver, refs))

    async def held_tasks(self, partitions: Sequence[int]) -> list[tuple[TaskRef, Hold]]:
        return await self._hot("reading held tasks", lambda driver: work.held_tasks(driver, partitions))

    async def find_expired(self, partitions: Sequence[int], *, now_us: int, limit: int) -> list[Instance]:
        return await self._hot(
            "finding expired work",
            lambda driver: work.find_expired(driver, partitions, now_us=now_us, limit=limit),
        )

    async def count_waiting(self, *, now_us: int, limit: int) -> int:
        partitions = range(self.partition_count)
        return await self._hot(
            "counting what waits",
            lambda driver: work.count_waiting(driver, partitions, now_us=now_us, limit=limit),
        )

    async def next_expiry_us(self, partitions: Sequence[int]) -> int | None:
        return await self._hot("finding expired work", lambda driver: work.next_expiry_us(driver, partitions))

    async def live_instances(self, refs: Sequence[TaskRef], *, limit: int) -> dict[TaskRef, list[Instance]]:
        return await self._hot(
            "reading live instances", lambda driver: work.live_instances(driver, refs, limit=limit)
        )

    async def running_instances(
        self, partitions: Sequence[int], *, after_id: str, limit: int
    ) -> list[Instance]:
        return await self._hot(
            "reading running instances",
            lambda driver: work.running_instances(driver, partitions, after_id=after_id, limit=limit),
        )

    # ── anyone ───────────────────────────────────────────────────────────────────────────────────────

    async def get_tasks(self, refs: Sequence[TaskRef]) -> dict[TaskRef, TaskRow]:
        return await self._hot("reading tasks", lambda driver: tasks.get_tasks(driver, refs))

    async def submit(self, submissions: Sequence[Submission]) -> list[SubmitReceipt]:
        return await self._submitted(submissions, self._submit) if submissions else []

    async def submit_if_newest(self, submission: Submission) -> SubmitReceipt | None:
        """One message, which is a transaction of its own."""

        async def insert(submissions: Sequence[Submission]) -> list[SubmitReceipt | None]:
            return [await self._submit_alone(submissions[0])]

        try:
            return (await self._submitted([submission], insert))[0]
        except SomeKnownError:
            return (await self.submit([submission]))[0]

    async def _submitted(
        self, submissions: Sequence[Submission], insert: Callable[[Sequence[Submission]], Awaitable[Receipts]]
    ) -> Receipts:
        """What `insert` returns, around which is what all submissions have in common."""
        for submission in submissions:
            instance = submission.instance
            require_partition(instance.partition, self._partition_count, subject=instance.id)
            if submission_problem(submission) is not None:
                require_bounded((submission,), self._partition_count)
        try:
            receipts = await insert(submissions)
        except RefusedDataError as error:
            # Looks for the offender only now: the check costs more than the insertion.
            require_bounded(submissions, self._partition_count)
            problem = data_problem(error.__cause__ or error)
            raise UserError("INVALID_VALUE", f"instances cannot be stored: {problem}") from error
        finally:
            self.floors.submitted(submissions)
        if len(submissions) == 1:
            hinted = named_by(submissions[0], receipts[0])
            self._hints.add(hinted)
            self._to_name.add(hinted)
        self._told()
        return receipts

    async def _submit_alone(self, submission: Submission) -> SubmitReceipt | None:
        async def insert(connection: AsyncConnection) -> SubmitReceipt | None:
            with refused_data():
                return await submit_if_newest(await driver_connection(connection), submission)

        return await self.database.run("submitting", insert, role="people", stands_alone=True)

    async def _submit(self, submissions: Sequence[Submission]) -> list[SubmitReceipt]:
        has_keys = any(submission.key for submission in submissions)
        write = submit_new
        # A list of any length is one transaction (C121), so that long ones need more than others' time.
        deadline_us = self._deadline_us + len(submissions) * _ROW_US

        async def insert(connection: AsyncConnection) -> list[SubmitReceipt]:
            driver = await driver_connection(connection)
            now_us = key_time_us(submissions, await self.server_now_us(connection)) if has_keys else 0
            with refused_data():
                return await write(driver, submissions, now_us=now_us)

        for _ in range(_SUBMIT_TRIES_MAX):
            try:
                return await self.database.run("submitting", insert, deadline_us=deadline_us, role="people")
            except SomeKnownError:
                write = submit_some
        raise UnavailableError(
            "DATABASE_UNAVAILABLE",
            "submitting did not succeed: others submit the same instances or keys all the time",
            subject=self._url.shown,
            hint="try again later",
        )
