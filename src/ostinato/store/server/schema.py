"""The schema as the servers create it: generated columns, collations and storage parameters.

Statements are built of the tables of ``store.schema``; this metadata is what migrations must lead to.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from sqlalchemy import BigInteger, Column, Computed, Index, MetaData, SmallInteger, Table, text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

from ostinato.store import schema
from ostinato.store.column_types import LongText, Name

#: Databases whose data definitions differ.
Kind = Literal["sqlite", "postgresql", "mysql", "mariadb"]

#: Columns that MySQL and MariaDB compute, by table: NULL in every row that the index over them does not mean.
#: They are virtual: they cost no space in the table, and writing NULL there again is no change of the index.
GENERATED: dict[str, tuple[tuple[str, TypeEngine[Any], str], ...]] = {
    "task": (("changed_us", BigInteger(), "CASE WHEN scheduled_version <> version THEN updated_us END"),),
    "instance": (
        ("queue_priority", SmallInteger(), f"CASE WHEN {schema.WAITING} AND hold IS NULL THEN priority END"),
        ("live_created_us", BigInteger(), "CASE WHEN finished_us IS NULL THEN created_us END"),
        ("wait_expires_us", BigInteger(), f"CASE WHEN {schema.WAITING} THEN expires_us END"),
        ("listed_key", Name, "NULLIF(`key`, '')"),
    ),
    "request": (("open_created_us", BigInteger(), "CASE WHEN code IS NULL THEN created_us END"),),
}

#: Bytes decide, with no padding: 'a' and 'a ' are two names. MySQL and MariaDB name this differently.
COLLATIONS: dict[Kind, str] = {"mysql": "utf8mb4_0900_bin", "mariadb": "utf8mb4_nopad_bin"}

# PostgreSQL's storage parameters. A changed row needs a place on its own page to stay out of the indexes
# (HOT), and dead rows are to be gone before readers meet thousands of them.

#: An update a second and node, or at every take-over: few rows, rewritten for ever, that must stay one page.
_REWRITTEN: dict[str, float] = {
    "fillfactor": 50,
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 200,
    "autovacuum_vacuum_cost_delay": 0,
}
#: Three updates in a row's life, then deleted: vacuumed after as many changes as a page scan is worth, since
#: a fifth of a large table (the default) would be millions of dead entries at the front of the queue's index.
_CHURNING: dict[str, float] = {
    "fillfactor": 80,
    "autovacuum_vacuum_scale_factor": 0.01,
    "autovacuum_vacuum_threshold": 2000,
    "autovacuum_vacuum_cost_delay": 0,
    "autovacuum_analyze_scale_factor": 0.02,
    "autovacuum_analyze_threshold": 2000,
}
#: Rows that are only ever added and deleted: full pages, but a vacuum that keeps up with retention.
_APPENDED: dict[str, float] = {
    "autovacuum_vacuum_scale_factor": 0.05,
    "autovacuum_vacuum_insert_scale_factor": 0.1,
}

POSTGRESQL_STORAGE: dict[str, dict[str, float]] = {
    "node": _REWRITTEN,
    "partition_owner": _REWRITTEN,
    "worker": _REWRITTEN,
    # next_us changes at every fire, and is indexed: room for it keeps pages together, no more.
    "task_trigger": {**_REWRITTEN, "fillfactor": 70},
    "instance": _CHURNING,
    # Each row is answered once.
    "request": _CHURNING,
    "history": _APPENDED,
    "output": _APPENDED,
    "idempotency_key": _APPENDED,
}


def kind_of(dialect: Dialect) -> Kind:
    """Which database `dialect` speaks to; MariaDB behind a ``mysql://`` URL is known once connected."""
    if dialect.name in ("mysql", "mariadb"):
        return "mariadb" if getattr(dialect, "is_mariadb", False) else "mysql"
    return "postgresql" if dialect.name == "postgresql" else "sqlite"


@cache
def metadata_for(kind: Kind) -> MetaData:
    """Everything that a database of this kind has; not to be changed, since it is shared."""
    if kind == "sqlite":
        return schema.metadata
    metadata = MetaData()
    for table in schema.metadata.sorted_tables:
        copy = table.to_metadata(metadata)
        copy.indexes.clear()
        if kind == "postgresql":
            storage = POSTGRESQL_STORAGE.get(table.name)
            copy.dialect_kwargs.update({"postgresql_with": storage} if storage else {})
        else:
            _spell_for_mysql(copy, kind)
        for index in table.indexes:
            _add_index(copy, index, "postgresql" if kind == "postgresql" else "mysql")
    return metadata


def _spell_for_mysql(table: Table, kind: Kind) -> None:
    # The name of the dialect is that of the URL's scheme, whichever server answers.
    for prefix in ("mysql", "mariadb"):
        table.dialect_kwargs[f"{prefix}_engine"] = "InnoDB"
        table.dialect_kwargs[f"{prefix}_charset"] = "utf8mb4"
        table.dialect_kwargs[f"{prefix}_collate"] = COLLATIONS[kind]
    for column in table.columns:
        if column.type is LongText and column.server_default is not None:
            # A LONGTEXT may have an expression as its default, not a literal.
            column.server_default = Column("", server_default=text("('')")).server_default
    for name, type_, expression in GENERATED.get(table.name, ()):
        table.append_column(Column(name, type_, Computed(expression, persisted=False)))


def _add_index(table: Table, index: Index, spelling: str) -> None:
    Index(
        index.name,
        *(table.columns[name] for name in index.info[spelling]),
        unique=index.unique,
        postgresql_where=index.dialect_options["postgresql"]["where"],
    )
