"""What the servers' form of the schema means: names by their bytes, generated columns as they are said."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from sqlalchemy import Connection, column, func, select, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from support.servers import (
    SERVER_KINDS,
    TestDatabase,
    connect,
    create_schema,
    fresh_database,
    require_server,
    url_of_database,
)

from ostinato.store.column_types import Name
from ostinato.store.schema import history, instance, task, task_definition
from ostinato.store.server.schema import COLLATIONS, metadata_for
from ostinato.store.server.url import read_server_url
from ostinato.testing.contracts.store_kit import T0

#: Each is a name of its own, in the order of their bytes.
_NAMES = ["A", "A ", "B", "a", "a ", "ab", "b", "\u00e4", "\u0101", "\U0001f3b5"]
_INSTANCE = {
    "namespace": "n",
    "task": "t",
    "task_version": 1,
    "partition": 3,
    "state": "pending",
    "priority": 5,
    "due_us": T0,
    "created_us": T0,
    "payload": b"{}",
}


@pytest.fixture(scope="module", params=SERVER_KINDS)
def module_database(request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    with fresh_database(request.param) as found:
        yield found


@pytest.fixture
def connection(module_database: TestDatabase) -> Iterator[Connection]:
    module_database.clean()
    engine = module_database.engine()
    with engine.connect() as found:
        yield found
    engine.dispose()


def _insert_names(connection: Connection) -> None:
    rows = [{"namespace": name, "name": "t", "version": 1, "definition": b"{}"} for name in _NAMES]
    connection.execute(task_definition.insert(), rows)


def _ordered(connection: Connection) -> list[str]:
    return list(connection.scalars(select(task_definition.c.namespace).order_by(task_definition.c.namespace)))


def test_names_differ_by_case_accents_and_trailing_spaces_and_are_ordered_by_bytes(
    connection: Connection,
) -> None:
    _insert_names(connection)
    assert _ordered(connection) == sorted(_NAMES, key=str.encode)
    for name in _NAMES:
        where = task_definition.c.namespace == name
        assert list(connection.scalars(select(task_definition.c.namespace).where(where))) == [name]


def test_the_database_may_have_another_collation() -> None:
    server = require_server("postgresql")
    name = f"ostinato_test_{os.getpid()}_icu"
    with closing(connect(read_server_url(url_of_database(server, "postgres")))) as administrator:
        assert isinstance(administrator, psycopg.Connection)
        administrator.autocommit = True
        administrator.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en'".encode()
        )
        try:
            engine = TestDatabase("postgresql", url_of_database(server, name)).engine()
            with engine.begin() as connection:
                create_schema(connection)
                _insert_names(connection)
                assert _ordered(connection) == sorted(_NAMES, key=str.encode)
                # Without our collation the database would order them otherwise.
                theirs = select(task_definition.c.namespace).order_by(
                    func.concat(task_definition.c.namespace, "").collate("default")
                )
                assert list(connection.scalars(theirs)) != sorted(_NAMES, key=str.encode)
            engine.dispose()
        finally:
            administrator.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def test_payloads_results_and_texts_may_be_large(connection: Connection) -> None:
    large = b"\0\xff" * 524_288
    values = {**_INSTANCE, "id": "i", "state": "success", "payload": large, "result": large}
    values |= {"finished_us": T0, "attempt": 1, "failure": "ä" * 500_000, "reason": "r" * 100_000}
    connection.execute(instance.insert(), values)
    row = connection.execute(select(instance)).mappings().one()
    assert (row["payload"], row["result"]) == (large, large)
    assert (len(row["failure"]), len(row["reason"])) == (500_000, 100_000)


def test_defaults_say_that_nothing_has_happened_yet(connection: Connection) -> None:
    connection.execute(instance.insert(), {**_INSTANCE, "id": "i"})
    row = connection.execute(select(instance)).mappings().one()
    texts = ("attempt_id", "worker_id", "worker_name", "reason", "fire_trigger", "key", "cancel_reason")
    assert {row[name] for name in texts} == {""}
    assert (row["generation"], row["attempt"], row["shard"], row["shard_total"]) == (1, 0, 0, 1)


def test_a_name_that_is_too_long_is_refused_and_never_cut(connection: Connection) -> None:
    assert Name.length == 255
    with pytest.raises(DataError):
        connection.execute(instance.insert(), {**_INSTANCE, "id": "i", "key": "k" * 256})


@pytest.mark.parametrize(
    "values",
    [
        {"state": "running"},
        {"state": "success"},
        {"state": "nonsense"},
        {"priority": 10},
        {"hold": "bored"},
        {"shard": 1},
        {"attempt": -1},
    ],
    ids=str,
)
def test_a_row_that_contradicts_itself_is_refused(connection: Connection, values: dict[str, object]) -> None:
    # MariaDB's own code for it is of no class that drivers know: the name of the condition tells.
    with pytest.raises(DBAPIError, match="instance_"):
        connection.execute(instance.insert(), {**_INSTANCE, "id": "i", **values})


def test_one_instance_per_fire_and_any_number_without_one(connection: Connection) -> None:
    connection.execute(instance.insert(), [{**_INSTANCE, "id": "1"}, {**_INSTANCE, "id": "2"}])
    fired = {**_INSTANCE, "fire_trigger": "t", "fire_us": T0}
    connection.execute(instance.insert(), {**fired, "id": "3"})
    with pytest.raises(IntegrityError):
        connection.execute(instance.insert(), {**fired, "id": "4"})


def test_history_is_numbered_by_the_server_also_in_insert_from_select(connection: Connection) -> None:
    row = {"instance_id": "i", "partition": 3, "at_us": T0, "kind": "k", "sentence": "s", "generation": 1}
    row |= {"attempt": 1, "attempt_id": "", "worker_name": "", "code": "", "category": "", "by": ""}
    connection.execute(history.insert(), {**row, "unconditional": False})
    names = [each.name for each in history.columns if each.name != "sequence"]
    connection.execute(history.insert().from_select(names, select(*(history.c[name] for name in names))))
    first, second = connection.scalars(select(history.c.sequence).order_by(history.c.sequence))
    assert second > first


@pytest.mark.parametrize("kind", [kind for kind in SERVER_KINDS if kind != "postgresql"])
def test_generated_columns_are_null_where_a_row_is_not_meant(kind: str) -> None:
    running = {"state": "running", "attempt": 1, "attempt_id": "a", "assigned_us": T0}
    rows = {
        "waits": {"key": "k", "expires_us": T0 + 1},
        "retries": {"state": "retry_waiting", "attempt": 1},
        "held": {"hold": "busy", "expires_us": T0 + 2},
        "runs": {**running, "expires_us": T0 + 3},
        "ended": {"state": "failed", "finished_us": T0, "expires_us": T0 + 4},
    }
    names = ("queue_priority", "live_created_us", "wait_expires_us", "listed_key")
    with fresh_database(kind) as database:  # type: ignore[arg-type]  # one of its own names
        engine = database.engine()
        with engine.begin() as connection:
            for name, values in rows.items():
                connection.execute(instance.insert(), {**_INSTANCE, "id": name, **values})
            found = connection.execute(select(instance.c.id, *(column(name) for name in names))).all()
            tasks = [("same", 2, 2), ("newer", 2, 1)]
            for name, version, scheduled in tasks:
                flags = {"paused": False, "disabled": False, "created_us": T0, "updated_us": T0}
                versions = {"partition": 3, "version": version, "scheduled_version": scheduled}
                connection.execute(task.insert(), {"namespace": "n", "name": name, **versions, **flags})
            changed = connection.execute(text("SELECT name FROM task WHERE changed_us IS NOT NULL")).all()
        engine.dispose()
    assert {row[0]: tuple(row[1:]) for row in found} == {
        "waits": (5, T0, T0 + 1, "k"),
        "retries": (5, T0, None, None),
        "held": (None, T0, T0 + 2, None),
        "runs": (None, T0, None, None),
        "ended": (None, None, None, None),
    }
    assert [row[0] for row in changed] == ["newer"]


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_every_table_has_the_collation_of_its_server(kind: str) -> None:
    for table in metadata_for(kind).tables.values():  # type: ignore[arg-type]  # one of its own names
        assert table.dialect_kwargs["mysql_collate"] == COLLATIONS[kind]  # type: ignore[index]  # the same
        assert table.dialect_kwargs["mysql_engine"] == "InnoDB"
