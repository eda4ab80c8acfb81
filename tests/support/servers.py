"""Databases of a test module's own on shared servers: made once, empty before each test.

    @pytest.fixture(scope="module")
    def server(request) -> Iterator[TestDatabase]:
        with fresh_database("postgresql") as database:
            yield database

    def test_x(server):
        server.clean()
        store = open_store_from_url(server.url, clock=clock)

Servers are those of ``OSTINATO_TEST_POSTGRES_URL``, ``OSTINATO_TEST_MARIADB_URL`` and
``OSTINATO_TEST_MYSQL_URL``, else those that answer at the standard ports of this machine. Without one a
test is skipped, which CI counts as failed. MySQL is tested only where a URL names one. ``private_servers``
has servers to stop and kill.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from typing import Any, Literal
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest
from pymysql.constants import CLIENT
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import URL, Engine

from ostinato.store.migrations import HEAD_REVISION, SERVER_VERSION_TABLE
from ostinato.store.schema import metadata, partition_owner
from ostinato.store.server.schema import kind_of, metadata_for
from ostinato.store.server.url import ServerUrl, read_server_url

ServerKind = Literal["postgresql", "mariadb", "mysql"]

_VARIABLES: dict[ServerKind, str] = {
    "postgresql": "OSTINATO_TEST_POSTGRES_URL",
    "mariadb": "OSTINATO_TEST_MARIADB_URL",
    "mysql": "OSTINATO_TEST_MYSQL_URL",
}
_STANDARD: dict[ServerKind, str] = {
    "postgresql": "postgresql://postgres@127.0.0.1:5432",
    "mariadb": "mariadb://root@127.0.0.1:3306",
}
#: A database that every server has.
_MAINTENANCE = {"postgresql": "postgres", "mysql": "information_schema"}
_CONNECT_S = 2
_TABLES = sorted(set(metadata.tables) - {"partition_owner"})

#: What every module tests that is about servers; MySQL counts where there is one.
SERVER_KINDS: tuple[ServerKind, ...] = (
    "postgresql",
    "mariadb",
    *(("mysql",) if os.environ.get(_VARIABLES["mysql"]) else ()),
)


def create_schema(connection: Connection, *, partition_count: int = 64) -> None:
    """The newest schema in an empty database, with its partitions, as ``ostinato db upgrade`` leaves it."""
    metadata_for(kind_of(connection.dialect)).create_all(connection)
    rows = [{"partition": number, "owner": "", "epoch": 0} for number in range(partition_count)]
    connection.execute(partition_owner.insert(), rows)
    version = f"{SERVER_VERSION_TABLE} (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"
    connection.execute(text(f"CREATE TABLE {version}"))
    connection.execute(
        text(f"INSERT INTO {SERVER_VERSION_TABLE} VALUES (:revision)"), {"revision": HEAD_REVISION}
    )


class TestDatabase:
    """One database on a shared server."""

    #: Not a class of tests.
    __test__ = False

    def __init__(self, kind: ServerKind, url: str) -> None:
        self.kind = kind
        #: As users write it.
        self.url = url
        self.server_url = read_server_url(url)
        self._connection: Any = None

    def engine(self) -> Engine:
        """A synchronous engine, for tests that look at or change the database from outside."""
        return create_engine(_synchronous(self.server_url), connect_args=_socket(self.server_url))

    def clean(self, *, partition_count: int = 64) -> None:
        """No rows but free partitions, and no other session: what a failed test left waiting would block."""
        if self._connection is None:
            self._connection = connect(self.server_url)
        cursor = self._connection.cursor()
        self._end_other_sessions(cursor)
        deletions = [f"DELETE FROM {self._quoted(table)}" for table in [*_TABLES, "partition_owner"]]
        rows = ", ".join(f"({number}, '', 0)" for number in range(partition_count))
        cursor.execute(";".join([*deletions, f"INSERT INTO partition_owner VALUES {rows}"]))
        # Every result of several statements has to be taken.
        while cursor.nextset():
            pass
        self._connection.commit()

    def close(self) -> None:
        """Give up the connection that cleans."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _end_other_sessions(self, cursor: Any) -> None:
        if self.kind == "postgresql":
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return
        cursor.execute(
            "SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()"
        )
        for (session,) in cursor.fetchall():
            _kill(cursor, session)

    def _quoted(self, name: str) -> str:
        return f'"{name}"' if self.kind == "postgresql" else f"`{name}`"


def _kill(cursor: Any, session: int) -> None:
    try:
        cursor.execute(f"KILL {session}")
    except pymysql.err.OperationalError as error:
        # It has ended by itself in the meantime.
        if error.args[0] != 1094:
            raise


def connect(url: ServerUrl, *, answer_s: int | None = None) -> Any:
    """A plain driver's connection, in a transaction; on MySQL it takes several statements at once.

    `answer_s` bounds every wait for MySQL's answers, of which the first is the greeting of a server that
    may be frozen; psycopg counts that in with the connecting.
    """
    if url.family == "postgresql":
        return psycopg.connect(
            host=url.socket or url.host,
            port=url.port,
            user=url.user or None,
            password=url.password,
            dbname=url.database,
            connect_timeout=_CONNECT_S,
        )
    return pymysql.connect(
        host=url.host,
        port=url.port,
        user=url.user,
        password=url.password or "",
        database=url.database,
        unix_socket=url.socket or None,
        connect_timeout=_CONNECT_S,
        read_timeout=answer_s,
        client_flag=CLIENT.MULTI_STATEMENTS,
        charset="utf8mb4",
    )


@cache
def server_url(kind: ServerKind) -> str | None:
    """URL of the shared server; None: there is none. The database that it may name is not touched."""
    said = os.environ.get(_VARIABLES[kind])
    if said:
        return said
    standard = _STANDARD.get(kind)
    return standard if standard and _answers(standard) else None


def _answers(url: str) -> bool:
    try:
        connect(_maintenance(url)).close()
    except (psycopg.OperationalError, pymysql.err.OperationalError):
        return False
    return True


def require_server(kind: ServerKind) -> str:
    """URL of the shared server; skips the test where there is none."""
    url = server_url(kind)
    if url is None:
        pytest.skip(f"no {kind} server answers; {_VARIABLES[kind]} may name one")
    return url


@contextmanager
def fresh_database(kind: ServerKind, *, has_schema: bool = True) -> Iterator[TestDatabase]:
    """A database of this process, dropped at the end; ``has_schema=False`` leaves it without any table."""
    server = require_server(kind)
    name = f"ostinato_test_{os.getpid()}_{os.urandom(4).hex()}"
    with _administering(server) as administer:
        administer(f"CREATE DATABASE {name}")
    database = TestDatabase(kind, url_of_database(server, name))
    try:
        if has_schema:
            engine = database.engine()
            with engine.begin() as connection:
                create_schema(connection)
            engine.dispose()
        yield database
    finally:
        database.close()
        with _administering(server) as administer:
            administer(f"DROP DATABASE {name}{' WITH (FORCE)' if kind == 'postgresql' else ''}")


@contextmanager
def _administering(server: str) -> Iterator[Any]:
    with closing(connect(_maintenance(server))) as connection:
        if isinstance(connection, psycopg.Connection):
            connection.autocommit = True
        cursor = connection.cursor()
        yield cursor.execute


def _maintenance(server: str) -> ServerUrl:
    family = "postgresql" if server.startswith("postgres") else "mysql"
    return read_server_url(url_of_database(server, _MAINTENANCE[family]))


def url_of_database(server: str, name: str) -> str:
    """The URL of a server, as it stands, with another database in it."""
    return urlsplit(server)._replace(path=f"/{name}").geturl()


def _synchronous(url: ServerUrl) -> URL:
    driver = "postgresql+psycopg" if url.family == "postgresql" else "mysql+pymysql"
    return url.sqlalchemy_url().set(drivername=driver)


def _socket(url: ServerUrl) -> dict[str, object]:
    if not url.socket:
        return {}
    name = "host" if url.family == "postgresql" else "unix_socket"
    return {name: url.socket}


__all__: Sequence[str] = (
    "SERVER_KINDS",
    "ServerKind",
    "TestDatabase",
    "connect",
    "create_schema",
    "fresh_database",
    "require_server",
    "server_url",
    "url_of_database",
)
