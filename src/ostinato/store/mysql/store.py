"""``MysqlStore``: the ``Store`` protocol over MySQL 8 or MariaDB 10.6 and newer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import TypeVar

from asyncmy.errors import MySQLError
from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.clock import Clock
from ostinato.core.definition import TaskRef
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.model import Instance
from ostinato.core.states import Hold
from ostinato.errors import OstinatoError, UserError
from ostinato.store.batches import (
    FoundWork,
    HeldQuery,
    NodeRow,
    NodesSeen,
    Proof,
    Submission,
    SubmitReceipt,
    WaitingTasks,
)
from ostinato.store.migrations import SERVER_VERSION_TABLE
from ostinato.store.mysql import ownership, work
from ostinato.store.mysql.blockers import end_blockers
from ostinato.store.mysql.commit import MysqlBatchWriter
from ostinato.store.mysql.dialect import MysqlDialect
from ostinato.store.mysql.faults import fault
from ostinato.store.mysql.literals import statement
from ostinato.store.mysql.session import Driver, change, fetch
from ostinato.store.mysql.submit import (
    RepeatsError,
    refusal,
    require_submittable,
    submit_known,
    submit_new,
)
from ostinato.store.protocol import Capabilities
from ostinato.store.rules import key_time_us
from ostinato.store.server import nodes
from ostinato.store.server.database import DEADLINE_US, driver_connection
from ostinato.store.server.store import ServerStore
from ostinato.store.server.url import ServerUrl

#: How often others' commits are looked for while somebody waits: no server here tells of them by itself.
_POLL_US = 150 * MILLISECOND
#: How long a taker waits for locks before it ends whoever holds them; then how often it looks again.
_BLOCKED_US = SECOND
_BLOCKED_AGAIN_US = 200 * MILLISECOND
#: A long list of submissions is given this much more time for each.
_SUBMISSION_US = 300

Result = TypeVar("Result")

_log = logging.getLogger("ostinato.store.mysql")


class MysqlStore(ServerStore):
    """Any number of nodes share the database."""

    def __init__(
        self,
        url: ServerUrl,
        *,
        clock: Clock,
        deadline_us: int = DEADLINE_US,
        rng: Random | None = None,
    ) -> None:
        """Every call ends in `deadline_us`; `rng` spreads repetitions."""
        super().__init__(url, MysqlDialect(url), clock=clock, deadline_us=deadline_us, rng=rng)
        #: Nodes that this store has registered: their session locks are on its renewal connection.
        self._registered: set[str] = set()
        #: Whether nodes have session locks here; the server may say that it has none.
        self._has_locks = url.session_lock != "off"
        #: What the last look for others' commits has found; None before the first.
        self._newest: frozenset[tuple[str, str]] | None = None
        self._look_us = 0

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="mysql", many_nodes=True, durable=True)

    async def open(self) -> None:
        """As the protocol says. Raises ``DATABASE_UNUSABLE`` where something between counts no found rows."""
        await super().open()
        try:
            await self._require_found_rows()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await super().close()
        self._registered.clear()
        self._newest = None

    async def server_now_us(self, connection: AsyncConnection) -> int:
        ((now_us,),) = await fetch(
            await driver_connection(connection), "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"
        )
        return int(now_us)

    async def batch_writer(self, connection: AsyncConnection) -> MysqlBatchWriter:
        return MysqlBatchWriter(connection, await driver_connection(connection))

    async def wait_for_change(self, until_boot_us: int) -> None:
        """What this object commits is known at once; what others commit is looked for now and then."""
        # Who waits is known before the look, amid which other waiters may be told.
        if await self._changes.wait(0):
            return
        while True:
            now_us = self._clock.boot_us()
            if now_us >= self._look_us:
                self._look_us = now_us + _POLL_US
                await self._look_for_changes()
            if await self._changes.wait(min(until_boot_us, self._look_us)) or now_us >= until_boot_us:
                return

    async def _look_for_changes(self) -> None:
        async def look(driver: Driver) -> frozenset[tuple[str, str]]:
            return frozenset((kind, name) for kind, name in await fetch(driver, statement("newest")))

        newest = await self._work("looking for changes", look)
        # What is there no more has been answered, or is in force: that is no news.
        if self._newest is not None and newest - self._newest:
            self._changes.notify()
        self._newest = newest

    # ── ownership ────────────────────────────────────────────────────────────────────────────────────

    async def register_node(self, node: NodeRow) -> None:
        async def register(connection: AsyncConnection) -> None:
            await self._hold_lock(connection, node.id)
            await nodes.register_node(connection, node)

        await self.database.run("registering the node", register, role="renewal")
        self._registered.add(node.id)

    async def renew_node(self, node_id: str) -> bool:
        async def renew(connection: AsyncConnection) -> bool:
            if node_id in self._registered:
                await self._hold_lock(connection, node_id)
            return await nodes.renew_node(connection, node_id)

        return await self.database.run("renewing the node", renew, role="renewal")

    async def _hold_lock(self, connection: AsyncConnection, node_id: str) -> None:
        if not self._has_locks:
            return
        driver = await driver_connection(connection)
        try:
            await ownership.hold_lock(driver, ownership.lock_name(self._url.database, node_id))
        except MySQLError as error:
            found = fault(error)
            # Some clusters refuse locks by name, each with an error of its own.
            if found is None or found.kind != "ours":
                raise
            self._has_locks = False
            _log.warning("no_session_locks", extra={"reason": str(error.args[-1])})

    async def remove_node(self, node_id: str) -> None:
        await super().remove_node(node_id)
        if node_id not in self._registered:
            return
        self._registered.discard(node_id)

        async def release(connection: AsyncConnection) -> None:
            driver = await driver_connection(connection)
            await ownership.release_lock(driver, ownership.lock_name(self._url.database, node_id))

        await self.database.run("releasing the session lock", release, role="renewal")

    async def watch_nodes(self) -> NodesSeen:
        """On the renewal connection: what its session has seen held before counts, and ends with it."""

        async def watch(connection: AsyncConnection) -> NodesSeen:
            found = await nodes.nodes(connection)
            if not self._has_locks:
                return NodesSeen(tuple(found))
            others = [node for node in found if node.id not in self._registered]
            driver = await driver_connection(connection)
            freed = await ownership.freed_nodes(driver, others, database=self._url.database)
            return NodesSeen(tuple(found), freed)

        return await self.database.run("watching the nodes", watch, role="renewal")

    async def take_partitions(
        self, node_id: str, partitions: Sequence[int], *, dead_nodes: Mapping[str, int] = {}
    ) -> list[Proof]:
        async def take(driver: Driver) -> list[Proof]:
            self.floors.forget()
            ending = asyncio.create_task(self._end_blockers_of(driver.thread_id()))
            try:
                return await ownership.take_partitions(
                    driver, node_id, partitions=partitions, dead_nodes=dead_nodes
                )
            finally:
                ending.cancel()

        return await self._work("taking partitions", take, reads_only=False)

    async def _end_blockers_of(self, session: int) -> None:
        """While `session` waits for locks, end those who hold them, once it has waited for a second."""

        async def end(connection: AsyncConnection) -> None:
            await end_blockers(await driver_connection(connection), session)

        pause_us = _BLOCKED_US
        while True:
            await self._clock.sleep_until_us(self._clock.boot_us() + pause_us)
            # What cannot be reached now is tried again: the taker itself says what becomes of the take-over.
            with suppress(OstinatoError):
                await self.database.run("ending blocking sessions", end, role="people")
            pause_us = _BLOCKED_AGAIN_US

    async def identity(self) -> str:
        """The server's own identifier, and where it runs: a replica that takes over has others.

        Not when it was started: a restart loses no commit, so what is believed still holds.
        """

        async def identify(connection: AsyncConnection) -> str:
            rows = await fetch(
                await driver_connection(connection),
                "SHOW GLOBAL VARIABLES WHERE Variable_name IN"
                " ('server_uuid', 'server_uid', 'server_id', 'hostname', 'port')",
            )
            return " ".join(f"{name}={value}" for name, value in sorted(map(tuple, rows)))

        return await self.database.run("identifying the server", identify, role="renewal")

    # ── owner ────────────────────────────────────────────────────────────────────────────────────────

    async def find_work(
        self, partitions: Sequence[int], *, now_us: int, limit: int, held: Sequence[HeldQuery] = ()
    ) -> FoundWork:
        return await self._work(
            "finding work",
            lambda d: work.find_work(
                d, partitions, now_us=now_us, limit=limit, held=held, floors=self.floors
            ),
        )

    async def waiting_tasks(
        self, partitions: Sequence[int], *, now_us: int, first: TaskRef | None, limit: int
    ) -> WaitingTasks:
        return await self._work(
            "finding work",
            lambda d: work.waiting_tasks(d, partitions, now_us=now_us, first=first, limit=limit),
        )

    async def find_overlap_ready(self, refs: Sequence[TaskRef]) -> list[Instance]:
        return await self._work("finding work", lambda d: work.find_overlap_ready(d, refs))

    async def held_tasks(self, partitions: Sequence[int]) -> list[tuple[TaskRef, Hold]]:
        return await self._work("reading held tasks", lambda d: work.held_tasks(d, partitions))

    async def find_expired(self, partitions: Sequence[int], *, now_us: int, limit: int) -> list[Instance]:
        return await self._work(
            "finding expired work", lambda d: work.find_expired(d, partitions, now_us=now_us, limit=limit)
        )

    async def count_waiting(self, *, now_us: int, limit: int) -> int:
        partitions = range(self.partition_count)
        return await self._work(
            "counting what waits", lambda d: work.count_waiting(d, partitions, now_us=now_us, limit=limit)
        )

    async def next_expiry_us(self, partitions: Sequence[int]) -> int | None:
        return await self._work("finding expired work", lambda d: work.next_expiry_us(d, partitions))

    async def live_instances(self, refs: Sequence[TaskRef], *, limit: int) -> dict[TaskRef, list[Instance]]:
        return await self._work("reading live instances", lambda d: work.live_instances(d, refs, limit=limit))

    async def running_instances(
        self, partitions: Sequence[int], *, after_id: str, limit: int
    ) -> list[Instance]:
        return await self._work(
            "reading running instances",
            lambda d: work.running_instances(d, partitions, after_id=after_id, limit=limit),
        )

    async def _work(
        self,
        operation: str,
        statements: Callable[[Driver], Awaitable[Result]],
        *,
        reads_only: bool = True,
    ) -> Result:
        """What an owner asks of the driver itself."""

        async def run(connection: AsyncConnection) -> Result:
            return await statements(await driver_connection(connection))

        return await self.database.run(
            operation, run, reads_only=reads_only, stands_alone=reads_only, role="owner"
        )

    # ── anyone ───────────────────────────────────────────────────────────────────────────────────────

    async def submit(self, submissions: Sequence[Submission]) -> list[SubmitReceipt]:
        if not submissions:
            return []
        require_submittable(submissions, partition_count=self._partition_count)
        try:
            receipts = await self._submit(submissions, submit_new)
        except RepeatsError:
            receipts = await self._submit(submissions, submit_known)
        finally:
            self.floors.submitted(submissions)
        self._told()
        return receipts

    async def _submit(
        self, submissions: Sequence[Submission], insert: Callable[..., Awaitable[list[SubmitReceipt]]]
    ) -> list[SubmitReceipt]:
        has_keys = any(submission.key for submission in submissions)

        async def run(connection: AsyncConnection) -> list[SubmitReceipt]:
            driver = await driver_connection(connection)
            now_us = key_time_us(submissions, await self.server_now_us(connection)) if has_keys else 0
            try:
                return await insert(driver, submissions, now_us=now_us)
            except Exception as error:
                refused = refusal(error, submissions, partition_count=self._partition_count)
                if refused is None:
                    raise
                raise refused from error

        deadline_us = self._deadline_us + _SUBMISSION_US * len(submissions)
        return await self.database.run("submitting", run, deadline_us=deadline_us, role="people")

    async def _require_found_rows(self) -> None:
        """Raise where an UPDATE that changes nothing is said to have found nothing."""

        async def look(connection: AsyncConnection) -> int:
            driver = await driver_connection(connection)
            # A row that nobody else writes.
            return await change(driver, f"UPDATE {SERVER_VERSION_TABLE} SET version_num = version_num")

        if await self._list("opening the database", look) != 1:
            raise UserError(
                "DATABASE_UNUSABLE",
                f"{self._url.shown}: what is between here and the server does not count rows that were found",
                subject=self._url.shown,
                field="database",
                hint="let the proxy pass CLIENT_FOUND_ROWS on to the server, or connect without it",
            )
