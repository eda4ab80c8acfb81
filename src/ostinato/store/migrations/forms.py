"""What revisions are written with: each step in the form of the database that it meets, and repeatable.

MySQL and MariaDB end the transaction at every change of a schema, so that an upgrade that breaks off leaves
some of its steps done. There every step looks first whether it has been done, and the same upgrade run again
goes on where it stopped. Like the revisions these forms are frozen: a new one gets another name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import LONGBLOB, LONGTEXT
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

#: A column computed by MySQL and MariaDB: its type and the expression.
Generated: TypeAlias = tuple[str, TypeEngine[Any], str]

_COLLATIONS = {"mysql": "utf8mb4_0900_bin", "mariadb": "utf8mb4_nopad_bin"}


def is_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"


def is_mysql() -> bool:
    """Whether it is MySQL or MariaDB."""
    return op.get_bind().dialect.name in ("mysql", "mariadb")


def word(length: int) -> sa.String:
    """Text that compares by its bytes."""
    return sa.String(length=length).with_variant(sa.String(length=length, collation="C"), "postgresql")


def long_text() -> sa.Text:
    return sa.Text().with_variant(LONGTEXT(), "mysql", "mariadb")


def long_bytes() -> sa.LargeBinary:
    return sa.LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb")


def empty_long_text() -> sa.TextClause:
    """Server default of a long text: MySQL takes an expression, not a literal."""
    return sa.text("('')" if is_mysql() else "''")


def create_table(
    name: str,
    *items: SchemaItem,
    storage: Mapping[str, float] | None = None,
    generated: tuple[Generated, ...] = (),
) -> None:
    """`storage` are PostgreSQL's storage parameters, `generated` what MySQL computes, behind all columns."""
    if is_mysql():
        if _inspector().has_table(name):
            return
        columns = [
            sa.Column(column, type_, sa.Computed(expression, persisted=False))
            for column, type_, expression in generated
        ]
        options: dict[str, Any] = _mysql_options()
        op.create_table(name, *items, *columns, **options)
    elif is_postgresql() and storage:
        op.create_table(name, *items, postgresql_with=dict(storage))
    else:
        op.create_table(name, *items)


def drop_table(name: str) -> None:
    if not is_mysql() or _inspector().has_table(name):
        op.drop_table(name)


def create_index(
    name: str,
    table: str,
    *columns: str,
    where: str | None = None,
    unique: bool = False,
    postgresql: tuple[str, ...] = (),
    mysql: tuple[str, ...] = (),
) -> None:
    """Index of `columns`; `postgresql` and `mysql` are the columns there where they are others."""
    if is_mysql():
        if not _inspector().has_index(table, name):
            op.create_index(name, table, list(mysql or columns), unique=unique)
        return
    condition = None if where is None else sa.text(where)
    op.create_index(
        name,
        table,
        list((postgresql or columns) if is_postgresql() else columns),
        unique=unique,
        sqlite_where=condition,
        postgresql_where=condition,
    )


def add_column(table: str, column: sa.Column[Any]) -> None:
    if not is_mysql() or not _has_column(table, column.name):
        op.add_column(table, column)


def drop_column(table: str, name: str) -> None:
    """On SQLite in the file itself (3.35), since copying the table would lose its conditions."""
    if not is_mysql() or _has_column(table, name):
        op.drop_column(table, name)


def replace_check(table: str, name: str, *, old: str, new: str) -> None:
    """Another condition in place of `old`. Where it is wider, no row is looked at on SQLite."""
    if op.get_bind().dialect.name != "sqlite":
        # One statement: on MySQL and MariaDB there is never neither, and a repetition does no harm.
        op.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}, ADD CONSTRAINT {name} CHECK ({new})")
        return
    # The text alone, as SQLite's documentation of ALTER TABLE has it for conditions: copying a table of
    # millions of rows would take minutes. A new version of the schema has every connection read it again.
    connection = op.get_bind()
    version = connection.execute(sa.text("PRAGMA schema_version")).scalar_one()
    connection.execute(sa.text("PRAGMA writable_schema = ON"))
    connection.execute(
        sa.text("UPDATE sqlite_master SET sql = replace(sql, :old, :new) WHERE name = :name"),
        {"old": f"CHECK ({old})", "new": f"CHECK ({new})", "name": table},
    )
    connection.execute(sa.text(f"PRAGMA schema_version = {version + 1}"))
    connection.execute(sa.text("PRAGMA writable_schema = OFF"))


def _has_column(table: str, name: str) -> bool:
    return any(column["name"] == name for column in _inspector().get_columns(table))


def _inspector() -> sa.Inspector:
    """A new one for each look: they remember what they have seen."""
    return sa.inspect(op.get_bind())


def _mysql_options() -> dict[str, str]:
    kind = "mariadb" if getattr(op.get_bind().dialect, "is_mariadb", False) else "mysql"
    options = {"engine": "InnoDB", "charset": "utf8mb4", "collate": _COLLATIONS[kind]}
    # Named after the URL's scheme, whichever server answers.
    return {f"{prefix}_{name}": value for prefix in ("mysql", "mariadb") for name, value in options.items()}
