"""Databases with Ostinato's tables in which users have tables of their own: PostgreSQL, MariaDB, SQLite."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Column, Connection, LargeBinary, MetaData, Table, Text, create_engine, text
from sqlalchemy.dialects.mysql import LONGBLOB, LONGTEXT
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import OperationalError

from ostinato.core.definition import TaskDefinition, encode_definition
from ostinato.core.ids import partition_of
from ostinato.store import schema
from ostinato.store.migrations import HEAD_REVISION, SERVER_VERSION_TABLE, SQLITE_VERSION_TABLE

#: Servers on which each test's databases are made.
SERVERS = {
    "postgresql": os.environ.get("OSTINATO_TEST_POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432"),
    "mysql": os.environ.get("OSTINATO_TEST_MARIADB_URL", "mariadb://root@127.0.0.1:3306"),
}
KINDS = ("postgresql", "mysql", "sqlite")
_DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
#: A database that every server has.
_MAINTENANCE = {"postgresql": "postgres", "mysql": "information_schema"}
_PARTITIONS = 64


class Database:
    """One database, looked at from outside of every transaction under test."""

    def __init__(self, kind: str, url: URL) -> None:
        self.kind = kind
        self.url = url
        self.engine = create_engine(url, isolation_level="AUTOCOMMIT")

    @property
    def path(self) -> str:
        """Of SQLite's file."""
        assert self.url.database is not None
        return self.url.database

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            result = connection.execute(text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []

    def instance_ids(self) -> list[str]:
        return [row[0] for row in self.rows("SELECT id FROM instance ORDER BY id")]

    def taken_keys(self) -> list[tuple[Any, ...]]:
        quoted = "`key`" if self.kind == "mysql" else '"key"'
        return self.rows(f"SELECT {quoted}, instance_id FROM idempotency_key ORDER BY 1")

    def clear(self) -> None:
        """Without tasks, instances, keys and rows of the user's."""
        for table in ("instance", "idempotency_key", "task", "task_definition", "orders"):
            self.rows(f"DELETE FROM {table}")

    def put_tasks(self, definitions: Sequence[TaskDefinition]) -> None:
        """Register tasks, as ``apply`` does."""
        with self.engine.begin() as connection:
            for definition in definitions:
                name = {"namespace": definition.namespace, "name": definition.name}
                connection.execute(
                    schema.task_definition.insert(),
                    name | {"version": 1, "definition": encode_definition(definition)},
                )
                connection.execute(
                    schema.task.insert(),
                    name
                    | {
                        "partition": partition_of(
                            definition.namespace, definition.name, partition_count=_PARTITIONS
                        ),
                        "version": 1,
                        "scheduled_version": 1,
                        "paused": False,
                        "disabled": False,
                        "created_us": 1,
                        "updated_us": 1,
                    },
                )


@contextmanager
def new_database(kind: str, folder: Path, *, with_tables: bool = True) -> Iterator[Database]:
    """A database of its own, dropped at the end; skips the test where there is no such server."""
    if kind == "sqlite":
        database = Database(kind, URL.create("sqlite", database=str(folder / f"{secrets.token_hex(6)}.db")))
        _fill(database, with_tables=with_tables)
        yield database
        database.engine.dispose()
        return
    server = make_url(SERVERS[kind]).set(drivername=_DRIVERS[kind], database=_MAINTENANCE[kind])
    name = f"ost_transactions_{secrets.token_hex(6)}"
    administrator = create_engine(server, poolclass=sqlalchemy.NullPool, isolation_level="AUTOCOMMIT")
    try:
        with administrator.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
    except OperationalError as error:
        pytest.skip(f"no {kind} server at {server}: {error.orig}")
    database = Database(kind, server.set(database=name))
    try:
        _fill(database, with_tables=with_tables)
        yield database
    finally:
        database.engine.dispose()
        with administrator.connect() as connection:
            connection.execute(
                text(f"DROP DATABASE {name}" + (" WITH (FORCE)" if kind == "postgresql" else ""))
            )


def _fill(database: Database, *, with_tables: bool) -> None:
    with database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (number BIGINT PRIMARY KEY)"))
        if with_tables:
            create_tables(connection)


def create_tables(connection: Connection) -> None:
    """The newest schema as far as submissions can tell, with its partitions."""
    plain = _plain_tables() if connection.dialect.name == "mysql" else schema.metadata
    plain.create_all(connection)
    rows = [{"partition": number, "owner": "", "epoch": 0} for number in range(_PARTITIONS)]
    connection.execute(schema.partition_owner.insert(), rows)
    table = version_table(connection.dialect.name)
    connection.execute(text(f"CREATE TABLE {table} (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
    connection.execute(text(f"INSERT INTO {table} VALUES (:revision)"), {"revision": HEAD_REVISION})


def version_table(kind: str) -> str:
    """Where a database of this kind says its revision."""
    return SQLITE_VERSION_TABLE if kind == "sqlite" else SERVER_VERSION_TABLE


def _plain_tables() -> MetaData:
    """The tables as MySQL and MariaDB can have them, without indexes."""
    tables = MetaData()
    for table in schema.metadata.sorted_tables:
        columns = []
        for column in table.columns:
            kind: Any = column.type
            default = column.server_default
            if isinstance(kind, LargeBinary):
                kind = LONGBLOB()
            elif isinstance(kind, Text):
                kind, default = LONGTEXT(), text("('')") if default is not None else None
            columns.append(
                Column(
                    column.name,
                    kind,
                    primary_key=column.primary_key,
                    nullable=column.nullable,
                    server_default=getattr(default, "arg", default),
                    autoincrement=column.autoincrement,
                )
            )
        Table(
            table.name,
            tables,
            *columns,
            mysql_engine="InnoDB",
            mysql_charset="utf8mb4",
            mysql_collate="utf8mb4_bin",
        )
    return tables
