"""Transactions on a database server: connections by role, one deadline for it all, repetition, translation.

One transaction is one coroutine over one connection. It runs in an asyncio task of its own, so that the
caller's deadline ends the call even where giving the connection back takes longer.

Engines are in SQLAlchemy's ``AUTOCOMMIT``, and the transaction is begun and ended here, through the driver:
so the statements of SQLAlchemy and those given to the driver itself are in the same transaction, and it is
known exactly whether COMMIT has been sent, on which depends what a lost connection means.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ostinato.clock import Clock
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.errors import OstinatoError, UnavailableError, UserError
from ostinato.store.server.connections import DriverConnection, Kept, RoleConnections, driver_of
from ostinato.store.server.faults import Fault, error_of, timed_out, unknown_commit

__all__ = ["DriverConnection", "ServerDatabase", "driver_connection"]

DEADLINE_US = 10 * SECOND
#: A renewal that takes longer is worth nothing: the owner's belief ends before.
RENEWAL_DEADLINE_US = 2 * SECOND
#: Runs of one transaction that meets the same kind of fault, the first included.
_CONFLICT_RUNS_MAX = 12
_OUTAGE_RUNS_MAX = 6
_BACK_OFF_FIRST_US = 10 * MILLISECOND
_BACK_OFF_LAST_US = 500 * MILLISECOND
#: How long closing waits for transactions that were given up.
_ENDING_US = 3 * SECOND

#: ``owner``: commits and an owner's reads. ``renewal``: one connection, for counter and session lock.
#: ``people``: submissions, requests, lists.
Role: TypeAlias = Literal["owner", "renewal", "people"]
ROLES: tuple[Role, ...] = ("owner", "renewal", "people")

Result = TypeVar("Result")


class PoolSizes(NamedTuple):
    """Connections by role, so that no role takes another's; the listener has one besides."""

    owner: int
    renewal: int
    people: int


def split_pool(pool_size: int, *, listeners: int = 1) -> PoolSizes:
    """Divide `pool_size` connections, at least four, of which `listeners` are outside of the pools."""
    rest = pool_size - 1 - listeners
    return PoolSizes(owner=(rest + 1) // 2, renewal=1, people=rest // 2)


class ServerDialect(Protocol):
    """What differs between the servers: engines, statements around a transaction, meaning of errors."""

    def new_engine(self, role: Role, *, size: int) -> AsyncEngine:
        """Engine of at most `size` connections without overflow, in ``AUTOCOMMIT``, without reset on return.

        Nothing is connected yet.
        """
        ...

    def limits_alone(self, driver: DriverConnection, *, role: Role, left_us: int) -> bool:
        """Whether the server ends a statement in about `left_us` that no transaction of ours is around."""
        ...

    def is_closed(self, driver: DriverConnection) -> bool:
        """Whether the connection is known to have ended."""
        ...

    async def begin(self, driver: DriverConnection, *, role: Role, left_us: int) -> None:
        """Begin a transaction at READ COMMITTED, whose statements the server ends after `left_us` at most."""
        ...

    async def commit(self, driver: DriverConnection) -> None:
        """Send COMMIT and wait for the answer; raises if the server has rolled back instead."""
        ...

    async def rollback(self, driver: DriverConnection) -> None: ...

    async def discard(self, driver: DriverConnection) -> None:
        """Cancel on the server what still runs on this connection and close it, within about 2 s.

        Raises nothing: what it cannot reach ends by the server's own time-outs.
        """
        ...

    def fault(self, error: BaseException) -> Fault | None:
        """What `error` means, wrapped by SQLAlchemy or not; None for what comes from no database driver."""
        ...


class _Transaction:
    """How far one run of a transaction has come."""

    def __init__(self, *, is_needed: bool) -> None:
        self.is_needed = is_needed
        self.has_begun = False
        self.is_committing = False
        #: A statement without BEGIN and COMMIT around it is under way.
        self.is_alone = False
        #: The connection can be used again.
        self.is_clean = False

    def leaves_open(self, fault: Fault) -> bool:
        """Whether what was written may have been committed all the same."""
        if self.is_alone:
            # What the server has refused is undone: the statement was all of the transaction.
            return fault.kind == "lost"
        return self.is_committing and not fault.is_certain


class ServerDatabase:
    """The connections of one store to one server. Connects with the first call; reconnects by itself."""

    def __init__(
        self,
        dialect: ServerDialect,
        *,
        clock: Clock,
        subject: str,
        sizes: PoolSizes,
        deadline_us: int = DEADLINE_US,
        rng: Random | None = None,
    ) -> None:
        """`subject` names the server in errors, without its password; every call ends in `deadline_us`."""
        self.dialect = dialect
        self.subject = subject
        self.deadline_us = deadline_us
        #: Transactions that were repeated, by cause; a metric reads it.
        self.repeats: Counter[str] = Counter()
        self._clock = clock
        self._sizes = sizes
        self._rng = rng or Random()
        self._roles: dict[Role, RoleConnections] = {}
        self._ending: set[asyncio.Task[Any]] = set()
        self._pid = 0

    def engine(self, role: Role) -> AsyncEngine:
        """Engine of `role`, made at its first use; for what is not a transaction of ours, such as tests."""
        return self._connections(role).engine

    def _connections(self, role: Role) -> RoleConnections:
        if not self._roles:
            self._pid = os.getpid()
        elif self._pid != os.getpid():
            raise UserError(
                "DATABASE_UNUSABLE",
                f"{self.subject}: the store was opened before this process was forked",
                subject=self.subject,
                hint="open a store of its own in each process",
            )
        if role not in self._roles:
            size: int = getattr(self._sizes, role)
            self._roles[role] = RoleConnections(self.dialect.new_engine(role, size=size), size=size)
        return self._roles[role]

    def _lose(self, role: Role) -> None:
        if role in self._roles:
            self._roles[role].lose()

    async def close(self) -> None:
        """Close every connection, those of transactions under way too; idempotent."""
        roles, self._roles = self._roles, {}
        if self._pid != os.getpid():
            return
        for task in self._ending:
            task.cancel()
        if self._ending:
            await asyncio.wait(self._ending, timeout=_ENDING_US / SECOND)
        for connections in roles.values():
            await connections.close()

    async def run(
        self,
        operation: str,
        work: Callable[[AsyncConnection], Awaitable[Result]],
        *,
        role: Role,
        repeatable: bool = True,
        reads_only: bool = False,
        stands_alone: bool = False,
        deadline_us: int | None = None,
    ) -> Result:
        """Result of `work` in one transaction at READ COMMITTED, committed when it returns.

        A deadlock, a serialization failure or a lock time-out rolls back and calls `work` again, and so does
        a connection that is lost before COMMIT was sent, or at any time where `work` `reads_only`. With
        `repeatable` false only what happens before `work` was called is repeated. An error that `work` raises
        itself rolls back and is raised.

        `stands_alone`: there may be no transaction around `work`, which is one statement, or only reads what
        need not be of one moment. A statement that writes then counts as COMMIT.

        Ends within `deadline_us`, waiting for a connection included; the store's own where None. Raises
        ``DATABASE_UNAVAILABLE`` (after COMMIT: unknown whether written), ``DATABASE_FULL``,
        ``DATABASE_UNUSABLE``, ``INVALID_VALUE`` (a row that the server refuses), ``INTERNAL``.
        """
        limit_us = self._deadline_us(role, deadline_us)
        ends_us = self._clock.boot_us() + limit_us
        runs = 0
        while True:
            runs += 1
            transaction = _Transaction(is_needed=not stands_alone)
            once = self._once(role, work, transaction=transaction, ends_us=ends_us)
            try:
                return await self._within(once, role, operation=operation, limit_us=limit_us, ends_us=ends_us)
            except Exception as error:
                fault = self.dialect.fault(error)
                if fault is None:
                    raise
                if not fault.is_certain:
                    self._lose(role)
                if transaction.leaves_open(fault) and not reads_only:
                    raise unknown_commit(fault.reason, operation=operation, subject=self.subject) from error
                pause_us = self._pause_us(fault, runs)
                is_repeatable = repeatable or not transaction.has_begun
                if not is_repeatable or pause_us is None or self._clock.boot_us() + pause_us >= ends_us:
                    raise error_of(fault, operation=operation, subject=self.subject) from error
            self.repeats[fault.counter] += 1
            await self._clock.sleep_until_us(self._clock.boot_us() + pause_us)

    def _deadline_us(self, role: Role, deadline_us: int | None) -> int:
        limit_us = self.deadline_us if deadline_us is None else deadline_us
        return min(limit_us, RENEWAL_DEADLINE_US) if role == "renewal" else limit_us

    def _pause_us(self, fault: Fault, runs: int) -> int | None:
        """Back-off before the next run, half of it drawn; None when there is to be none."""
        if fault.kind == "conflict":
            runs_max = _CONFLICT_RUNS_MAX
        elif fault.kind in ("lost", "refused"):
            runs_max = _OUTAGE_RUNS_MAX
        else:
            return None
        if runs >= runs_max:
            return None
        longest_us = min(_BACK_OFF_FIRST_US << (runs - 1), _BACK_OFF_LAST_US)
        return longest_us // 2 + self._rng.randrange(longest_us // 2)

    # ── one run ──────────────────────────────────────────────────────────────────────────────────────

    async def _within(
        self,
        once: Coroutine[Any, Any, Result],
        role: Role,
        *,
        operation: str,
        limit_us: int,
        ends_us: int,
    ) -> Result:
        """Result of `once`; at `ends_us`, or when the caller gives up, it is left to end by itself."""
        task = asyncio.ensure_future(once)
        self._ending.add(task)
        task.add_done_callback(self._ended)
        try:
            left_us = max(0, ends_us - self._clock.boot_us())
            await asyncio.wait((task,), timeout=left_us / SECOND)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.done():
            task.cancel()
            # It may be the network that is silent: then no idle connection is any better.
            self._lose(role)
            raise timed_out(operation, deadline_us=limit_us, subject=self.subject)
        if task.cancelled():
            raise UnavailableError("DATABASE_UNAVAILABLE", "the store was closed", subject=self.subject)
        return task.result()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            # Looked at, so that asyncio does not report one that was given up as never retrieved.
            task.exception()

    async def _once(
        self,
        role: Role,
        work: Callable[[AsyncConnection], Awaitable[Result]],
        *,
        transaction: _Transaction,
        ends_us: int,
    ) -> Result:
        connections = self._connections(role)
        kept = await connections.take()
        while self.dialect.is_closed(kept.driver):
            # Before anything is sent on it, of which nobody would know what became.
            connections.lose()
            await connections.drop(kept)
            kept = await connections.take()
        try:
            left_us = max(1, ends_us - self._clock.boot_us())
            if transaction.is_needed or not self.dialect.limits_alone(
                kept.driver, role=role, left_us=left_us
            ):
                return await self._transact(kept, role, work, transaction=transaction, left_us=left_us)
            return await self._alone(kept, work, transaction=transaction)
        finally:
            await self._give_back(connections, kept, is_clean=transaction.is_clean)

    async def _transact(
        self,
        kept: Kept,
        role: Role,
        work: Callable[[AsyncConnection], Awaitable[Result]],
        *,
        transaction: _Transaction,
        left_us: int,
    ) -> Result:
        await self.dialect.begin(kept.driver, role=role, left_us=left_us)
        transaction.has_begun = True
        try:
            result = await work(kept.connection)
        except Exception as error:
            transaction.is_clean = self._is_usable_after(error) and await self._roll_back(kept.driver, error)
            raise
        transaction.is_committing = True
        await self.dialect.commit(kept.driver)
        transaction.is_clean = True
        return result

    async def _alone(
        self,
        kept: Kept,
        work: Callable[[AsyncConnection], Awaitable[Result]],
        *,
        transaction: _Transaction,
    ) -> Result:
        transaction.has_begun = transaction.is_alone = True
        try:
            result = await work(kept.connection)
        except Exception as error:
            transaction.is_clean = self._is_usable_after(error)
            raise
        transaction.is_clean = True
        return result

    async def _give_back(self, connections: RoleConnections, kept: Kept, *, is_clean: bool) -> None:
        if is_clean and not connections.is_closed:
            connections.give_back(kept)
            return
        try:
            if not is_clean:
                await self.dialect.discard(kept.driver)
        finally:
            await connections.drop(kept)

    def _is_usable_after(self, error: Exception) -> bool:
        fault = None if isinstance(error, OstinatoError) else self.dialect.fault(error)
        # A server that refuses (read-only, shutting down) may no longer be the one that the name leads to.
        return fault is None or fault.is_certain

    async def _roll_back(self, driver: DriverConnection, error: Exception) -> bool:
        """Whether the connection can be used again after `error`."""
        try:
            await self.dialect.rollback(driver)
        except Exception as failure:  # noqa: BLE001 - noted on the error that is raised
            error.add_note(f"and the rollback failed: {failure}")
            return False
        return True


async def driver_connection(connection: AsyncConnection) -> DriverConnection:
    """The connection of asyncpg or asyncmy below `connection`, for hot statements in the same transaction."""
    return driver_of(connection)
