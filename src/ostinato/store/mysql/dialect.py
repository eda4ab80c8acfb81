"""What ``ServerDatabase`` needs to know of MySQL and MariaDB: connections, time-outs, meaning of errors."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from ostinato.core.instants import SECOND
from ostinato.store.mysql.faults import fault
from ostinato.store.mysql.session import Driver, change, connect, session_of
from ostinato.store.server.database import Role
from ostinato.store.server.faults import Fault
from ostinato.store.server.url import ServerUrl

_CONNECT_TIMEOUT_S = 5
#: Reaching the server to end a statement there.
_DISCARD_TIMEOUT_S = 2.0
#: For an owner that is frozen amid a transaction, below the ownership lease (3 s); whoever else is frozen so
#: may hold an idempotency key that others wait for.
_AMID_IDLE_S: dict[Role, int] = {"owner": 2, "renewal": 2, "people": 10}
_OWNER_LOCK_WAIT_S = 2
_LOCK_WAIT_S = 5
#: What the server ends an idle session after when none of its transactions is open.
_IDLE_S = 28_800

_log = logging.getLogger("ostinato.store.mysql")


class MysqlDialect:
    """For the database of `url`; each connection learns which of the two servers it has reached."""

    def __init__(self, url: ServerUrl) -> None:
        self._url = url

    def new_engine(self, role: Role, *, size: int) -> AsyncEngine:
        """Engine of at most `size` connections, each set up as `connect` says."""
        lock_wait_s = _LOCK_WAIT_S if role == "people" else _OWNER_LOCK_WAIT_S

        async def create(**arguments: Any) -> Driver:
            return await connect(
                subject=self._url.shown,
                lock_wait_s=lock_wait_s,
                connect_timeout=_CONNECT_TIMEOUT_S,
                **arguments,
            )

        return create_async_engine(
            self._url.sqlalchemy_url(),
            connect_args={**self._url.connect_arguments(), "async_creator_fn": create},
            isolation_level="AUTOCOMMIT",
            skip_autocommit_rollback=True,
            pool_size=size,
            max_overflow=0,
            pool_use_lifo=True,
            pool_reset_on_return=None,
            # The deadline of the call ends the wait.
            pool_timeout=3600,
        )

    def limits_alone(self, driver: Driver, *, role: Role, left_us: int) -> bool:
        """Where what the session was told last is about right; the caller's deadline is exact."""
        limit_us = session_of(driver).statement_us
        return 0.5 * limit_us <= left_us <= 1.1 * limit_us

    def is_closed(self, driver: Driver) -> bool:
        # The driver learns it only by asking.
        return False

    async def begin(self, driver: Driver, *, role: Role, left_us: int) -> None:
        """Begin a transaction; the server ends its statements after `left_us`, and an owner's idle one.

        MariaDB ends any statement, and a session that idles within a transaction. MySQL ends a SELECT alone,
        and a session that idles at all: that time-out stands while the transaction is open.
        """
        session = session_of(driver)
        if not session.server.is_mariadb:
            limit = f"max_execution_time = {max(left_us // 1000, 1)}, wait_timeout = {_AMID_IDLE_S[role]}"
            await change(driver, f"SET SESSION {limit}; START TRANSACTION")
        elif self.limits_alone(driver, role=role, left_us=left_us):
            await change(driver, "START TRANSACTION")
        else:
            session.statement_us = 0
            limit = f"max_statement_time = {max(left_us, 1000) / SECOND:.3f}"
            settings = f"{limit}, idle_transaction_timeout = {_AMID_IDLE_S[role]}"
            await change(driver, f"SET SESSION {settings}; START TRANSACTION")
            session.statement_us = left_us

    async def commit(self, driver: Driver) -> None:
        await self._end(driver, "COMMIT")

    async def rollback(self, driver: Driver) -> None:
        await self._end(driver, "ROLLBACK")

    async def _end(self, driver: Driver, statement: str) -> None:
        if session_of(driver).server.is_mariadb:
            await change(driver, statement)
        else:
            await change(driver, f"{statement}; SET SESSION wait_timeout = {_IDLE_S}")

    async def discard(self, driver: Driver) -> None:
        """End what still runs on this connection, and close it; raises nothing."""
        try:
            async with asyncio.timeout(_DISCARD_TIMEOUT_S):
                await self._kill(driver)
        except Exception as error:  # noqa: BLE001 - the error that led here is the one to raise
            _log.info("session_not_discarded", extra={"reason": str(error)})
        finally:
            driver.close()

    async def _kill(self, driver: Driver) -> None:
        thread_id = driver.thread_id()
        arguments = self._url.connect_arguments()
        url = self._url
        if not url.socket:
            arguments |= {"host": url.host, "port": url.port}
        other = await connect(
            subject=url.shown,
            lock_wait_s=_OWNER_LOCK_WAIT_S,
            connect_timeout=_CONNECT_TIMEOUT_S,
            user=url.user,
            **arguments,
        )
        try:
            # After a restart of the server the number may be somebody else's by now, but numbers only rise.
            if thread_id < other.thread_id():
                await change(other, f"KILL {thread_id}")
        finally:
            other.close()

    def fault(self, error: BaseException) -> Fault | None:
        return fault(error)
