"""A server's database as an older version left it: a row in each of its tables, and what is in them now."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table, select
from support.catalogs import Catalog, catalog
from support.servers import TestDatabase

from ostinato.core.definition import encode_definition
from ostinato.store import schema
from ostinato.store.migrations import SERVER_VERSION_TABLE
from ostinato.testing.contracts.store_kit import REF, T0, make_definition

_OF_TASK = {"namespace": REF.namespace, "task": REF.name, "partition": 3}
#: A row for each table that revision 0001 has.
OLD_ROWS: dict[Table, dict[str, Any]] = {
    schema.node: {"id": "old", "renewals": 3, "address": "", "started_us": T0},
    schema.task: {
        "namespace": REF.namespace,
        "name": REF.name,
        "partition": 3,
        "version": 1,
        "scheduled_version": 1,
        "paused": True,
        "disabled": False,
        "created_us": T0,
        "updated_us": T0,
    },
    schema.task_definition: {
        "namespace": REF.namespace,
        "name": REF.name,
        "version": 1,
        "definition": encode_definition(make_definition()),
    },
    schema.task_trigger: {"id": "t", **_OF_TASK, "task_version": 1, "spec": b"{}", "created_us": T0},
    schema.instance: {
        "id": "i000001",
        **_OF_TASK,
        "task_version": 1,
        "state": "pending",
        "priority": 5,
        "due_us": T0,
        "created_us": T0,
        "payload": b"x" * 300_000,
    },
    schema.history: {
        "instance_id": "i000001",
        "partition": 3,
        "at_us": T0,
        "kind": "created",
        "sentence": "says why",
        "generation": 1,
        "attempt": 0,
        "attempt_id": "",
        "worker_name": "",
        "code": "",
        "category": "",
        "by": "",
        "unconditional": False,
    },
    schema.output: {
        "instance_id": "i000001",
        "attempt": 1,
        "sequence": 1,
        "attempt_id": "a",
        "at_us": T0,
        "stream": "stdout",
        "text": "line\n",
    },
    schema.request: {
        "id": "r",
        **_OF_TASK,
        "kind": "cancel",
        "created_us": T0,
        "instance_id": "i000001",
        "body": b"{}",
        "by": "ada",
    },
    schema.idempotency_key: {
        "namespace": REF.namespace,
        "task": REF.name,
        "key": "once",
        "instance_id": "i000001",
        "request_hash": "h",
        "expires_us": T0,
    },
}


def catalog_of(database: TestDatabase) -> Catalog:
    engine = database.engine()
    with engine.connect() as connection:
        found = catalog(connection)
    engine.dispose()
    found.pop(SERVER_VERSION_TABLE, None)
    return found


def insert_rows(database: TestDatabase) -> None:
    engine = database.engine()
    with engine.begin() as connection:
        for table, values in OLD_ROWS.items():
            connection.execute(table.insert(), values)
    engine.dispose()


def rows_of(database: TestDatabase) -> dict[str, list[dict[str, Any]]]:
    """All rows of the columns that revision 0001 has, but history's sequence, which the server gives."""
    engine = database.engine()
    found = {}
    with engine.connect() as connection:
        for table, values in OLD_ROWS.items():
            columns = [table.columns[name] for name in values]
            found[table.name] = [dict(row._mapping) for row in connection.execute(select(*columns))]
        partitions = connection.execute(select(schema.partition_owner)).mappings()
        found["partition_owner"] = [dict(row) for row in partitions]
    engine.dispose()
    return found
