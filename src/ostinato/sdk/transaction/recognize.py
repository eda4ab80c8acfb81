"""Whose connection it is that a user hands in, without importing a driver that is not in use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ostinato.errors import UserError
from ostinato.sdk.transaction.connections import (
    AsyncConnection,
    AsyncCursorConnection,
    AsyncpgConnection,
    AsyncSqlalchemyConnection,
    DbApiConnection,
    SqlalchemyConnection,
    SyncConnection,
)
from ostinato.sdk.transaction.statements import Dialect

#: What SQLAlchemy calls the marks that drivers want.
_MARKS = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric_dollar": "$"}
_DIALECTS = {
    "postgresql": Dialect.POSTGRESQL,
    "mysql": Dialect.MYSQL,
    "mariadb": Dialect.MYSQL,
    "sqlite": Dialect.SQLITE,
}
_KINDS = (
    "psycopg, psycopg2, PyMySQL, mysqlclient, sqlite3 and SQLAlchemy (Connection, Session) by submit and "
    "submit_many; of asyncpg, psycopg, asyncmy, aiomysql and SQLAlchemy (AsyncConnection, AsyncSession) by "
    "submit_async and submit_many_async"
)


def open_sync(connection: object) -> SyncConnection:
    """The connection as `SyncConnection`. Raises ``INVALID_VALUE`` for any other."""
    for module, names, make in _SYNC:
        if _is_of(connection, module, names=names):
            return make(connection)
    if any(_is_of(connection, module, names=names) for module, names in _ASYNC):
        raise _refused(connection, "is asynchronous", hint="await submit_async or submit_many_async with it")
    raise _unknown(connection)


async def open_async(connection: object) -> AsyncConnection:
    """The connection as `AsyncConnection`. Raises as `open_sync`."""
    if _is_of(connection, "asyncpg", names=("connection.Connection", "pool.PoolConnectionProxy")):
        return AsyncpgConnection(connection)
    if _is_of(connection, "psycopg", names=("AsyncConnection",)):
        return _async_psycopg(connection)
    for module in ("asyncmy", "aiomysql"):
        if _is_of(connection, module, names=("connection.Connection",)):
            return _async_mysql(connection, sys.modules[f"{module}.cursors"])
    if _is_of(connection, "sqlalchemy", names=_ASYNC_SESSIONS):
        return _async_sqlalchemy(await _any(connection).connection())
    if _is_of(connection, "sqlalchemy", names=("ext.asyncio.AsyncConnection",)):
        return _async_sqlalchemy(connection)
    if any(_is_of(connection, module, names=names) for module, names, _ in _SYNC):
        raise _refused(connection, "is synchronous", hint="call submit or submit_many with it")
    raise _unknown(connection)


def _is_of(connection: object, package: str, *, names: tuple[str, ...]) -> bool:
    """Whether it is of one of these classes: whose module must be loaded, if there is such an object."""
    for name in names:
        module, _, class_name = f"{package}.{name}".rpartition(".")
        kind = getattr(sys.modules.get(module), class_name, None)
        if isinstance(kind, type) and isinstance(connection, kind):
            return True
    return False


def _any(connection: object) -> Any:
    return connection


# ── kinds ─────────────────────────────────────────────────────────────────────────────────────────────


def _psycopg(connection: Any) -> SyncConnection:
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    return DbApiConnection(
        connection,
        Dialect.POSTGRESQL,
        mark="%s",
        new_cursor=lambda: Cursor(connection, row_factory=tuple_row),
    )


def _psycopg2(connection: Any) -> SyncConnection:
    plain = sys.modules["psycopg2.extensions"].cursor
    return DbApiConnection(
        connection,
        Dialect.POSTGRESQL,
        mark="%s",
        new_cursor=lambda: connection.cursor(cursor_factory=plain),
    )


def _mysql(connection: Any) -> SyncConnection:
    """PyMySQL and mysqlclient."""
    package = "pymysql" if _is_of(connection, "pymysql", names=("connections.Connection",)) else "MySQLdb"
    plain = sys.modules[f"{package}.cursors"].Cursor
    return DbApiConnection(connection, Dialect.MYSQL, mark="%s", new_cursor=lambda: connection.cursor(plain))


def _sqlite(connection: Any) -> SyncConnection:
    from sqlite3 import Cursor

    return DbApiConnection(connection, Dialect.SQLITE, mark="?", new_cursor=lambda: Cursor(connection))


def _session(connection: Any) -> SyncConnection:
    return _sqlalchemy(connection.connection())


def _sqlalchemy(connection: Any) -> SyncConnection:
    return SqlalchemyConnection(connection, _dialect(connection), mark=_mark(connection))


def _async_psycopg(connection: Any) -> AsyncConnection:
    from psycopg import AsyncCursor
    from psycopg.rows import tuple_row

    return AsyncCursorConnection(
        connection,
        Dialect.POSTGRESQL,
        new_cursor=lambda: AsyncCursor(connection, row_factory=tuple_row),
    )


def _async_mysql(connection: Any, cursors: Any) -> AsyncConnection:
    return AsyncCursorConnection(
        connection, Dialect.MYSQL, new_cursor=lambda: connection.cursor(cursors.Cursor)
    )


def _async_sqlalchemy(connection: Any) -> AsyncConnection:
    return AsyncSqlalchemyConnection(connection, _dialect(connection), mark=_mark(connection))


def _dialect(connection: Any) -> Dialect:
    name = connection.dialect.name
    if name not in _DIALECTS:
        raise _refused(connection, f"is of {name}", hint="the scheduler's database is needed")
    return _DIALECTS[name]


def _mark(connection: Any) -> str:
    style = connection.dialect.paramstyle
    if style not in _MARKS:
        raise _refused(connection, f"has a driver with the parameter style {style}", hint=_hint())
    return _MARKS[style]


_Make = Callable[[Any], SyncConnection]

_SYNC: tuple[tuple[str, tuple[str, ...], _Make], ...] = (
    ("psycopg", ("Connection",), _psycopg),
    ("psycopg2", ("extensions.connection",), _psycopg2),
    ("pymysql", ("connections.Connection",), _mysql),
    ("MySQLdb", ("connections.Connection",), _mysql),
    ("sqlite3", ("Connection",), _sqlite),
    ("sqlalchemy", ("engine.Connection",), _sqlalchemy),
    ("sqlalchemy", ("orm.Session", "orm.scoped_session"), _session),
)
_ASYNC_SESSIONS = ("ext.asyncio.AsyncSession", "ext.asyncio.async_scoped_session")
_ASYNC: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("asyncpg", ("connection.Connection", "pool.PoolConnectionProxy")),
    ("psycopg", ("AsyncConnection",)),
    ("asyncmy", ("connection.Connection",)),
    ("aiomysql", ("connection.Connection",)),
    ("sqlalchemy", ("ext.asyncio.AsyncConnection", *_ASYNC_SESSIONS)),
)


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────


def _unknown(connection: object) -> UserError:
    return _refused(connection, "is no connection that is known", hint=_hint())


def _refused(connection: object, why: str, *, hint: str) -> UserError:
    kind = type(connection)
    return UserError(
        "INVALID_VALUE", f"{kind.__module__}.{kind.__qualname__} {why}", field="connection", hint=hint
    )


def _hint() -> str:
    return f"connections are taken of {_KINDS}"
