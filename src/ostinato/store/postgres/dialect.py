"""asyncpg under ``ServerDatabase``: engines, statements around a transaction, proxies that pool transactions.

Where the server itself answers, a session is ours: what all of its transactions need is set once, as it
begins. Behind such a proxy a session is nobody's: its settings, session locks and named prepared statements
end up elsewhere. So what a transaction needs is set for it alone (``SET LOCAL``), in one message with its
BEGIN, and statements are not prepared by name.
"""

from __future__ import annotations

from typing import Any

import asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.store.postgres.faults import fault_of
from ostinato.store.server.database import DEADLINE_US, RENEWAL_DEADLINE_US, DriverConnection, Role
from ostinato.store.server.faults import Fault
from ostinato.store.server.url import ServerUrl

#: How long the server keeps a transaction whose client is silent between two statements. Below the ownership
#: lease: a frozen node's locks are gone before anybody takes over from it.
_IDLE_US: dict[Role, int] = {"owner": 2 * SECOND, "renewal": 2 * SECOND, "people": 4 * SECOND}
#: Waiting longer for a lock is repeated as if it were a deadlock, with the other locks given back meanwhile.
_LOCK_US: dict[Role, int] = {"owner": 2500 * MILLISECOND, "renewal": SECOND, "people": 4 * SECOND}
#: How long a statement may run where nothing else is said: a renewal that takes longer is worth nothing.
_STATEMENT_US: dict[Role, int] = {
    "owner": DEADLINE_US,
    "renewal": RENEWAL_DEADLINE_US,
    "people": DEADLINE_US,
}
#: A session whose client's machine has gone is found dead within two seconds, and with it its session lock.
_SOCKET_SETTINGS = {
    "tcp_keepalives_idle": "1",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "2000",
}
#: Time for cancelling on the server what a given-up transaction still runs.
_DISCARD_S = 1.0
#: An owner's statements look rows up by index, whatever the statistics say of a table that was just filled.
_BY_INDEX = {"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off"}
#: Nor do their plans depend on how many rows a list has: planning a move anew takes longer than making it.
_PLANNED_ONCE = {"plan_cache_mode": "force_generic_plan"}
#: Nothing here is worth compiling. The setting `jit` itself is asyncpg's: when it asks for a type it switches
#: it off and then back, for the whole session, which behind a proxy is somebody else's next.
_WITHOUT_JIT = {"jit_above_cost": "-1"}
#: Raised by `_IS_BEHIND_PROXY`, in the class that no server uses itself.
_PROXY_STATE = "OS001"
#: Sent without being prepared. A proxy gives each client a process id of its own making.
_IS_BEHIND_PROXY = (
    "DO $$ BEGIN IF pg_backend_pid() <> {pid} THEN"
    f" RAISE EXCEPTION 'pooled' USING ERRCODE = '{_PROXY_STATE}'; END IF; END $$"
)


class PostgresDialect:
    """PostgreSQL by asyncpg, as ``ServerDatabase`` asks for it."""

    def __init__(self, url: ServerUrl) -> None:
        self._url = url
        #: Sessions are ours: session locks hold, and statements prepared by name are found again.
        self.has_sessions = url.session_lock != "off"
        #: Known to be so, and not only hoped: proxies refuse settings that they do not know.
        self._is_direct = False

    async def look(self) -> None:
        """Find out whether a proxy that pools transactions stands between; raises as connecting does."""
        if not self.has_sessions:
            return
        connection = await self.connect()
        try:
            await connection.execute(_IS_BEHIND_PROXY.format(pid=connection.get_server_pid()))
        except asyncpg.PostgresError as error:
            if error.sqlstate != _PROXY_STATE:
                raise
            self.has_sessions = False
        else:
            self._is_direct = True
        finally:
            connection.terminate()

    async def connect(self, role: Role | None = None) -> asyncpg.Connection[Any]:
        """A connection of its own, outside of every pool; set up for the transactions of `role`."""
        settings = {"application_name": "ostinato"}
        if self._is_direct:
            settings |= _SOCKET_SETTINGS
            if role is not None:
                settings |= _settings_of(role, left_us=_STATEMENT_US[role])
        return await asyncpg.connect(
            host=self._url.socket or self._url.host,
            port=self._url.port,
            user=self._url.user or None,
            password=self._url.password,
            database=self._url.database,
            server_settings=settings,
            statement_cache_size=100 if self.has_sessions else 0,
            **{name: value for name, value in self._url.connect_arguments().items() if name == "ssl"},
        )

    def new_engine(self, role: Role, *, size: int) -> AsyncEngine:
        async def connect(**_: object) -> asyncpg.Connection[Any]:
            # What SQLAlchemy reads from the URL is left out, since it is in ours.
            return await self.connect(role)

        arguments: dict[str, object] = {"async_creator_fn": connect}
        if not self.has_sessions:
            arguments |= {"prepared_statement_cache_size": 0, "prepared_statement_name_func": str}
        return create_async_engine(
            self._url.sqlalchemy_url(),
            connect_args=arguments,
            isolation_level="AUTOCOMMIT",
            pool_size=size,
            max_overflow=0,
            pool_use_lifo=True,
            pool_reset_on_return=None,
            # The deadline of the call ends the wait.
            pool_timeout=3600,
        )

    def limits_alone(self, driver: DriverConnection, *, role: Role, left_us: int) -> bool:
        """Where the session's own limit is about right; the caller's deadline is exact."""
        limit_us = _STATEMENT_US[role]
        return self._is_direct and 0.5 * limit_us <= left_us <= 1.1 * limit_us

    def is_closed(self, driver: DriverConnection) -> bool:
        return bool(driver.is_closed())

    async def begin(self, driver: DriverConnection, *, role: Role, left_us: int) -> None:
        if self.limits_alone(driver, role=role, left_us=left_us):
            local = {}
        elif self._is_direct:
            local = {"statement_timeout": _milliseconds(left_us)}
        else:
            local = _settings_of(role, left_us=left_us)
        settings = "".join(f"; SET LOCAL {name} = {value}" for name, value in local.items())
        await driver.execute(f"BEGIN ISOLATION LEVEL READ COMMITTED{settings}")

    async def commit(self, driver: DriverConnection) -> None:
        status = await driver.execute("COMMIT")
        if status != "COMMIT":
            # A statement had failed, and whoever ran it did not say so.
            raise asyncpg.InFailedSQLTransactionError("the transaction had failed before COMMIT")

    async def rollback(self, driver: DriverConnection) -> None:
        await driver.execute("ROLLBACK")

    async def discard(self, driver: DriverConnection) -> None:
        try:
            # Waits until the server has been asked to cancel, which asyncpg does by itself.
            await driver.close(timeout=_DISCARD_S)
        except Exception:  # noqa: BLE001 - whatever it was, nothing of this connection is used again
            return
        finally:
            driver.terminate()

    def fault(self, error: BaseException) -> Fault | None:
        return fault_of(error)


def _settings_of(role: Role, *, left_us: int) -> dict[str, str]:
    """What the transactions of `role` need, with `left_us` for each of their statements."""
    return {
        "statement_timeout": _milliseconds(left_us),
        "lock_timeout": _milliseconds(min(_LOCK_US[role], left_us)),
        "idle_in_transaction_session_timeout": _milliseconds(_IDLE_US[role]),
        **(_BY_INDEX | _PLANNED_ONCE if role == "owner" else {}),
        **_WITHOUT_JIT,
    }


def _milliseconds(limit_us: int) -> str:
    """As PostgreSQL takes it; zero would mean no limit at all."""
    return str(max(1, limit_us // MILLISECOND))
