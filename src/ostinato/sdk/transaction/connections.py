"""What is asked of a user's connection, by each driver: run a statement, tell whether a transaction is open.

Cursors are of the driver's plain class, so that what the user has set for rows (dictionaries, named tuples)
makes no difference. Drivers' types are ``Any``: none of them is imported unless the user has.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from typing import Any, Protocol
from weakref import WeakSet

from ostinato.errors import UserError
from ostinato.sdk.transaction.statements import Dialect, Statement, spelled
from ostinato.sdk.transaction.steps import Rows

#: ``SERVER_STATUS_IN_TRANS`` of MySQL's protocol.
_IN_TRANSACTION_FLAG = 1


class SyncConnection(Protocol):
    """A connection whose calls block."""

    dialect: Dialect

    @property
    def driver(self) -> Any:
        """The driver's own connection, which one session of the database belongs to."""
        ...

    def run(self, statement: Statement) -> Rows:
        """Rows of a statement, none for one that has no rows. Raises what the driver raises."""
        ...


class AsyncConnection(Protocol):
    """A connection whose calls are awaited."""

    dialect: Dialect

    @property
    def driver(self) -> Any:
        """As of `SyncConnection`."""
        ...

    async def run(self, statement: Statement) -> Rows:
        """As of `SyncConnection`."""
        ...


class DbApiConnection:
    """psycopg, psycopg2, PyMySQL, mysqlclient, sqlite3: cursors as in PEP 249."""

    def __init__(self, driver: Any, dialect: Dialect, *, mark: str, new_cursor: Callable[[], Any]) -> None:
        self.driver = driver
        self.dialect = dialect
        self._mark = mark
        self._new_cursor = new_cursor

    def run(self, statement: Statement) -> Rows:
        with closing(self._new_cursor()) as cursor:
            cursor.execute(spelled(statement.text, self.dialect, mark=self._mark), statement.values)
            return [] if cursor.description is None else list(cursor.fetchall())


class AsyncCursorConnection:
    """psycopg, asyncmy and aiomysql with their asynchronous cursors."""

    def __init__(
        self,
        driver: Any,
        dialect: Dialect,
        *,
        new_cursor: Callable[[], AbstractAsyncContextManager[Any]],
    ) -> None:
        self.driver = driver
        self.dialect = dialect
        self._new_cursor = new_cursor

    async def run(self, statement: Statement) -> Rows:
        async with self._new_cursor() as cursor:
            await cursor.execute(spelled(statement.text, self.dialect, mark="%s"), statement.values)
            return [] if cursor.description is None else list(await cursor.fetchall())


class AsyncpgConnection:
    """asyncpg, which has no cursors of that kind; `connection` may be a pool's proxy."""

    dialect = Dialect.POSTGRESQL

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        # A proxy is new each time that the pool gives it; what it stands for stays.
        self.driver = getattr(connection, "_con", None) or connection

    async def run(self, statement: Statement) -> Rows:
        text = spelled(statement.text, self.dialect, mark="$")
        return [tuple(row.values()) for row in await self._connection.fetch(text, *statement.values)]


class SqlalchemyConnection:
    """SQLAlchemy's connection, which begins a transaction with its first statement."""

    def __init__(self, connection: Any, dialect: Dialect, *, mark: str) -> None:
        self._connection = connection
        self.dialect = dialect
        self._mark = mark

    @property
    def driver(self) -> Any:
        return self._connection.connection.driver_connection

    def run(self, statement: Statement) -> Rows:
        # Straight to the driver: SQLAlchemy's own reading of a text would cost more than the insertion.
        text = spelled(statement.text, self.dialect, mark=self._mark)
        result = self._connection.exec_driver_sql(text, statement.values or None)
        return [tuple(row) for row in result] if result.returns_rows else []


class AsyncSqlalchemyConnection:
    """SQLAlchemy's asynchronous connection."""

    def __init__(self, connection: Any, dialect: Dialect, *, mark: str) -> None:
        self._connection = connection
        self.dialect = dialect
        self._mark = mark

    @property
    def driver(self) -> Any:
        return self._connection.sync_connection.connection.driver_connection

    async def run(self, statement: Statement) -> Rows:
        text = spelled(statement.text, self.dialect, mark=self._mark)
        result = await self._connection.exec_driver_sql(text, statement.values or None)
        return [tuple(row) for row in result] if result.returns_rows else []


# ── transactions ──────────────────────────────────────────────────────────────────────────────────────


def require_transaction(driver: Any) -> None:
    """Raise ``INVALID_VALUE`` where each statement would be committed by itself, as far as can be told."""
    if _commits_each(driver) and not _is_in_transaction(driver):
        raise UserError(
            "INVALID_VALUE",
            "the connection commits each statement by itself and has no open transaction that the submission "
            "could be part of",
            field="connection",
            hint="begin a transaction first, or leave out the connection",
        )


def _commits_each(driver: Any) -> bool:
    """Whether no transaction begins by itself, with the first statement."""
    if hasattr(driver, "is_in_transaction"):
        # asyncpg begins none.
        return True
    if hasattr(driver, "get_autocommit"):
        return bool(driver.get_autocommit())
    # Of sqlite3: -1 says that `isolation_level` decides, which it alone does before Python 3.12.
    setting = getattr(driver, "autocommit", -1)
    if setting in (True, False):
        return bool(setting)
    return getattr(driver, "isolation_level", "") is None


def _is_in_transaction(driver: Any) -> bool:
    """Whether one is open; False where the driver cannot tell."""
    if hasattr(driver, "is_in_transaction"):
        return bool(driver.is_in_transaction())
    if hasattr(driver, "in_transaction"):
        return bool(driver.in_transaction)
    if hasattr(driver, "server_status"):
        return bool(driver.server_status & _IN_TRANSACTION_FLAG)
    status = getattr(getattr(driver, "info", None), "transaction_status", 0)
    return int(status) != 0


# ── what has been checked ─────────────────────────────────────────────────────────────────────────────

#: Connections whose database has this version's tables: found out once a session, not at each submission.
_checked: WeakSet[Any] = WeakSet()


def is_checked(driver: Any) -> bool:
    """Whether `remember_checked` was told of this connection."""
    try:
        return driver in _checked
    except TypeError:
        # Of a type that cannot be referred to weakly.
        return False


def remember_checked(driver: Any) -> None:
    """Note that the tables were there; forgotten with the connection."""
    try:
        _checked.add(driver)
    except TypeError:
        # sqlite3's connections cannot be referred to weakly; asking again costs next to nothing there.
        return
