"""What PostgreSQL and MySQL/MariaDB spell differently in SQLAlchemy Core; nothing else asks the dialect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
    Integer,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    column,
    delete,
    func,
    literal_column,
    or_,
    text,
    true,
    tuple_,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.selectable import TableValuedAlias

#: Values in one list of an IN, or rows in one array: far below what one statement takes of either.
LIST_LENGTH_MAX = 5_000

Item = TypeVar("Item")


def is_mysql(connection: AsyncConnection) -> bool:
    """MySQL or MariaDB rather than PostgreSQL."""
    return connection.dialect.name != "postgresql"


def chunks(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """`items` in lists that one statement takes."""
    for start in range(0, len(items), LIST_LENGTH_MAX):
        yield items[start : start + LIST_LENGTH_MAX]


def owned(partition: Column[int], partitions: Sequence[int] | None) -> ColumnElement[bool]:
    """Condition that a row belongs to one of `partitions`; None: to any."""
    return true() if partitions is None else partition.in_(sorted(partitions))


def findable(*texts: str) -> bool:
    """Whether rows may hold all of `texts`: none holds a NUL, and PostgreSQL does not even look for one."""
    return not any("\0" in text for text in texts)


# ── rows given ────────────────────────────────────────────────────────────────────────────────────────


def rows_of(
    connection: AsyncConnection, columns: Sequence[Column[Any]], *, rows: Sequence[Sequence[str | int]]
) -> TableValuedAlias:
    """`rows` as a table to join with, with names and types of `columns`; one bound value, or one a column.

    PostgreSQL has arrays. MySQL and MariaDB have none, and look up pairs in a list of pairs row by row.
    """
    names = [column.name for column in columns]
    if is_mysql(connection):
        encoded = bindparam(None, msgspec.json.encode(rows).decode(), type_=Text, unique=True)
        listed = func.json_table(encoded, literal_column(_shape(columns)))
        return listed.table_valued(*names, name="wanted")
    arrays = [
        bindparam(None, [row[place] for row in rows], type_=ARRAY(_array_type(column)), unique=True)
        for place, column in enumerate(columns)
    ]
    return func.unnest(*arrays).table_valued(*names, name="wanted").render_derived()


def _shape(columns: Sequence[Column[Any]]) -> str:
    """Second argument of JSON_TABLE for an array of arrays."""
    fields = (f"`{c.name}` {_mysql_type(c)} PATH '$[{place}]'" for place, c in enumerate(columns))
    return f"'$[*]' COLUMNS ({', '.join(fields)})"


def _mysql_type(column: Column[Any]) -> str:
    if isinstance(column.type, Integer):
        return "BIGINT"
    return f"VARCHAR({column.type.length})"  # type: ignore[attr-defined] # every text looked up has a length


def _array_type(column: Column[Any]) -> type[BigInteger] | type[Text]:
    return BigInteger if isinstance(column.type, Integer) else Text


# ── writes ────────────────────────────────────────────────────────────────────────────────────────────


def insert_absent(connection: AsyncConnection, table: Table) -> Insert:
    """Insert rows whose key is not there; waits for whoever is inserting the same key."""
    if is_mysql(connection):
        # Not INSERT IGNORE, which also cuts texts to size and takes wrong values for zero.
        first = next(iter(table.primary_key.columns))
        return mysql.insert(table).on_duplicate_key_update({first.name: first})
    return postgresql.insert(table).on_conflict_do_nothing()


def upsert(connection: AsyncConnection, table: Table, *, only: Sequence[str] = ()) -> Insert:
    """Insert rows, or write the columns `only`, else all, of the rows with their primary keys.

    With `only` also the way to change many rows of which each becomes something else: on MySQL it locks them
    and no others, whereas an UPDATE of a small table reads, and waits for, every row there is.
    """
    names = only or [column.name for column in table.columns if not column.primary_key]
    if is_mysql(connection):
        replacing = mysql.insert(table)
        return replacing.on_duplicate_key_update({name: replacing.inserted[name] for name in names})
    upserting = postgresql.insert(table)
    return upserting.on_conflict_do_update(
        index_elements=list(table.primary_key.columns),
        set_={name: upserting.excluded[name] for name in names},
    )


async def delete_rows(
    connection: AsyncConnection,
    key: Sequence[Column[Any]],
    *,
    values: Sequence[tuple[str, ...]],
    index: str = "PRIMARY",
) -> None:
    """Delete the rows whose `key` is one of `values`; MySQL seeks in `index`, so that it locks no others."""
    for chunk in chunks(values):
        if is_mysql(connection):
            deletion = text(_mysql_deletion(key, index=index))
            await connection.execute(deletion, {"rows": msgspec.json.encode(chunk).decode()})
        else:
            doomed = rows_of(connection, key, rows=chunk)
            is_doomed = and_(*(column == doomed.c[column.name] for column in key))
            await connection.execute(delete(key[0].table).where(is_doomed))


def _mysql_deletion(key: Sequence[Column[Any]], *, index: str) -> str:
    """Not of SQLAlchemy's parts: they have no join with a fixed order for a DELETE."""
    table = key[0].table.description
    is_doomed = " AND ".join(f"`{table}`.`{c.name}` = wanted.`{c.name}`" for c in key)
    return (
        f"DELETE `{table}` FROM JSON_TABLE(:rows, {_shape(key)}) AS wanted"
        f" STRAIGHT_JOIN `{table}` FORCE INDEX ({index}) ON {is_doomed}"
    )


# ── reads ─────────────────────────────────────────────────────────────────────────────────────────────


def forced(statement: Select[Any], table: Table, *, index: str) -> Select[Any]:
    """`statement` with the index that MySQL and MariaDB have to take; PostgreSQL knows no such hint."""
    for dialect in ("mysql", "mariadb"):
        statement = statement.with_hint(table, f"FORCE INDEX ({index})", dialect)
    return statement


def looked_up(statement: Select[Any], table: Table, *, index: str = "PRIMARY") -> Select[Any]:
    """`statement` that joins `table` to rows given, so that MySQL seeks, and locks, each of these alone."""
    for dialect in ("mysql", "mariadb"):
        statement = statement.prefix_with("STRAIGHT_JOIN", dialect=dialect)
    return forced(statement, table, index=index)


def marked(
    connection: AsyncConnection, plain: Column[int], *, where: ColumnElement[bool], generated: str
) -> tuple[ColumnElement[int], ColumnElement[bool]]:
    """What to order by, and the condition, so that the partial index over `plain` serves.

    MySQL and MariaDB have it over the column `generated` instead, NULL in the rows that it leaves out.
    """
    if not is_mysql(connection):
        return plain, where
    over = column(generated, BigInteger)
    return over, over.is_not(None)


def behind(
    connection: AsyncConnection, columns: Sequence[Column[Any]], *, values: Sequence[Any]
) -> ColumnElement[bool]:
    """Whether `columns` come after `values` in their order, said so that an index over them serves."""
    if not is_mysql(connection):
        return tuple_(*columns) > tuple_(*values)
    # MySQL and MariaDB see no range in a comparison of rows.
    return or_(
        *(
            and_(*(columns[before] == values[before] for before in range(place)), columns[place] > value)
            for place, value in enumerate(values)
        )
    )


def code_of(connection: AsyncConnection, failure: ColumnElement[Any]) -> ColumnElement[str]:
    """``code`` in the JSON of a failure."""
    if is_mysql(connection):
        # Not JSON_VALUE, which MySQL has since 8.0.21.
        return func.json_unquote(func.json_extract(failure, literal_column("'$.code'")))
    return func.json_extract_path_text(failure.cast(postgresql.JSON), literal_column("'code'"))
