"""The SQL of submissions in a user's transaction, for each dialect and each driver's mark of a value.

Names are unqualified, so that they are found as the user's session finds them (``search_path``, ``USE``).
Only plain columns are named, which every form of the schema has. Locks are taken in the order of design
section 3: keys, sorted, then instances.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from enum import StrEnum
from functools import cache
from itertools import chain, count
from typing import Any, NamedTuple, TypeAlias

from ostinato.core.definition import TaskRef
from ostinato.store.batches import Submission
from ostinato.store.migrations import SERVER_VERSION_TABLE, SQLITE_VERSION_TABLE
from ostinato.store.server.channel import CHANGE_CHANNEL

Value: TypeAlias = str | bytes | int | None
#: Any: a row as a driver gives it, columns as selected.
Row: TypeAlias = Sequence[Any]


class Dialect(StrEnum):
    """Whose SQL a database speaks; MariaDB's is MySQL's here."""

    POSTGRESQL = "postgresql"
    MYSQL = "mysql"
    SQLITE = "sqlite"


class Statement(NamedTuple):
    """Text with ``?`` for each value, and double quotes around names, whatever the driver wants there."""

    text: str
    values: tuple[Value, ...] = ()


#: Statements for many rows; a generator, which may be sent the rows that they give.
Statements: TypeAlias = Generator[Statement, object, None]

#: Where a database says which schema it has.
VERSION_TABLES = {
    Dialect.POSTGRESQL: SERVER_VERSION_TABLE,
    Dialect.MYSQL: SERVER_VERSION_TABLE,
    Dialect.SQLITE: SQLITE_VERSION_TABLE,
}
#: Tables that a submission needs beside it, and what it does with them.
_NEEDED: dict[str, tuple[str, ...]] = {
    "task": ("SELECT",),
    "task_definition": ("SELECT",),
    "idempotency_key": ("SELECT", "INSERT", "DELETE"),
    "instance": ("INSERT",),
}
#: Rows of one statement, most first: few different texts, so that drivers keep them prepared.
_WIDTHS = (512, 64, 8, 1)
#: Values of one statement: a quarter of the least that a server takes, since drivers escape them in the text.
_STATEMENT_BYTES_MAX = 2 * 1024 * 1024

_INSTANCE_COLUMNS = (
    'id, namespace, task, task_version, "partition", state, priority, due_us, created_us, expires_us, "key",'
    " payload"
)
_NOW = {
    # Not the transaction's beginning, which may be long ago.
    Dialect.POSTGRESQL: "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)",
    Dialect.MYSQL: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))",
    # SQLite's clock is the machine's, which the caller has.
    Dialect.SQLITE: "NULL",
}
#: Leaves a key that exists as it is. MySQL has no such word, and would hide other faults with IGNORE.
_IF_NEW = {
    Dialect.POSTGRESQL: "ON CONFLICT DO NOTHING",
    Dialect.MYSQL: "ON DUPLICATE KEY UPDATE instance_id = instance_id",
    Dialect.SQLITE: "ON CONFLICT DO NOTHING",
}
#: MySQL reads an old state of the database at its default isolation unless it locks.
_NEWEST = {Dialect.MYSQL: " LOCK IN SHARE MODE", Dialect.SQLITE: ""}
#: Goes on with what the key is compared with.
_FIND_KEYS = (
    'SELECT "key", instance_id, request_hash, expires_us FROM idempotency_key'
    ' WHERE namespace = ? AND task = ? AND "key"'
)


@cache
def spelled(text: str, dialect: Dialect, *, mark: str) -> str:
    """`text` as a driver takes it. `mark` is its sign for a value: ``?``, ``%s``, or ``$`` with a number."""
    if dialect is Dialect.MYSQL:
        text = text.replace('"', "`")
    if mark != "$":
        return text.replace("?", mark)
    numbers = count(1)
    return "".join(f"${next(numbers)}" if character == "?" else character for character in text)


# ── what is there ─────────────────────────────────────────────────────────────────────────────────────


def needed(dialect: Dialect) -> dict[str, tuple[str, ...]]:
    """Tables by name, with the privileges that a submission takes."""
    return {VERSION_TABLES[dialect]: ("SELECT",), **_NEEDED}


def needed_tables(dialect: Dialect) -> Statement:
    """Which of the `needed` tables exist, with a privilege that is missing or none; fails for no database.

    On PostgreSQL a failed statement would end the user's transaction, so nothing is tried there.
    """
    tables = needed(dialect)
    if dialect is Dialect.POSTGRESQL:
        wanted = ", ".join(
            f"('{table}', '{privilege}')" for table, privileges in tables.items() for privilege in privileges
        )
        return Statement(
            "SELECT name, CASE WHEN CASE privilege"
            # Rows are not deleted column by column, so the other function knows no such privilege.
            " WHEN 'DELETE' THEN has_table_privilege(CAST(to_regclass(name) AS oid), privilege)"
            " ELSE has_any_column_privilege(CAST(to_regclass(name) AS oid), privilege) END"
            f" THEN NULL ELSE privilege END FROM (VALUES {wanted}) AS needed (name, privilege)"
            " WHERE to_regclass(name) IS NOT NULL"
        )
    listed = ", ".join(f"'{table}'" for table in tables)
    if dialect is Dialect.SQLITE:
        return Statement(
            f"SELECT name, NULL FROM sqlite_master WHERE type IN ('table', 'view') AND name IN ({listed})"
        )
    return Statement(
        "SELECT table_name, NULL FROM information_schema.tables"
        f" WHERE table_schema = DATABASE() AND table_name IN ({listed})"
    )


def schema_version(dialect: Dialect) -> Statement:
    """The revision of the schema."""
    return Statement(f"SELECT version_num FROM {VERSION_TABLES[dialect]}")


def find_task(dialect: Dialect, ref: TaskRef) -> Statement:
    """Columns: the database's time, then those of a `TaskRow` in their order. Primary keys."""
    return Statement(
        f'SELECT {_NOW[dialect]}, task_definition.definition, task.version, task."partition", task.paused,'
        " task.disabled, task.scheduled_version, task.created_us, task.updated_us, task.origin"
        " FROM task JOIN task_definition ON task_definition.namespace = task.namespace"
        " AND task_definition.name = task.name AND task_definition.version = task.version"
        " WHERE task.namespace = ? AND task.name = ?",
        (ref.namespace, ref.name),
    )


def task_names(ref: TaskRef, *, limit: int) -> Statement:
    """Names of the namespace, for a "did you mean"."""
    return Statement(
        f"SELECT name FROM task WHERE namespace = ? ORDER BY name LIMIT {limit:d}", (ref.namespace,)
    )


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────────


def insert_keys(dialect: Dialect, submissions: Sequence[Submission]) -> Statements:
    """Take keys that nobody has; waits for whoever has one and has not committed. Primary key."""
    rows = [
        (
            submission.instance.namespace,
            submission.instance.task,
            submission.key,
            submission.instance.id,
            submission.request_hash,
            submission.key_expires_us,
        )
        for submission in submissions
    ]
    columns = 'namespace, task, "key", instance_id, request_hash, expires_us'
    for chunk in _chunks(rows):
        values = _lists(len(chunk), len(chunk[0]))
        text = f"INSERT INTO idempotency_key ({columns}) VALUES {values} {_IF_NEW[dialect]}"
        yield Statement(text, tuple(chain.from_iterable(chunk)))


def find_keys(dialect: Dialect, ref: TaskRef, *, keys: Sequence[str]) -> Iterator[Statement]:
    """Columns: key, instance, hash, expiry, as committed by now or written here. Primary key."""
    for chunk in _chunks([(key,) for key in keys]):
        values = tuple(chain.from_iterable(chunk))
        if dialect is Dialect.POSTGRESQL:
            # One probe of the index for each key: with a list the planner, while it has no statistics of the
            # table, reads all keys of the task for each statement.
            yield Statement(
                f"SELECT found.* FROM (VALUES {_lists(len(chunk), 1)}) AS wanted (name) CROSS JOIN LATERAL"
                f" ({_FIND_KEYS} = wanted.name LIMIT 1) AS found",
                (*values, ref.namespace, ref.name),
            )
        else:
            yield Statement(
                f"{_FIND_KEYS} IN ({_marks(len(chunk))}){_NEWEST[dialect]}",
                (ref.namespace, ref.name, *values),
            )


def delete_keys(ref: TaskRef, keys: Sequence[str], *, until_us: int) -> Statements:
    """Free those of the keys that expire by `until_us`: what others have taken since is left. Primary key."""
    for chunk in _chunks([(key,) for key in keys]):
        yield Statement(
            "DELETE FROM idempotency_key"
            f' WHERE namespace = ? AND task = ? AND "key" IN ({_marks(len(chunk))}) AND expires_us <= ?',
            (ref.namespace, ref.name, *chain.from_iterable(chunk), until_us),
        )


# ── instances ─────────────────────────────────────────────────────────────────────────────────────────


def insert_instances(dialect: Dialect, submissions: Sequence[Submission]) -> Statements:
    """New instances, under ids that nobody has; the columns left out say that nothing has happened yet."""
    # MySQL's drivers write values into the text, bytes each in its own way, of which aiomysql's is broken.
    is_hexadecimal = dialect is Dialect.MYSQL
    mark = "UNHEX(?)" if is_hexadecimal else "?"
    rows: list[tuple[Value, ...]] = []
    for submission in submissions:
        row = submission.instance
        rows.append(
            (
                row.id,
                row.namespace,
                row.task,
                row.task_version,
                row.partition,
                row.state.value,
                row.priority,
                row.due_us,
                row.created_us,
                row.expires_us,
                row.key,
                row.payload.hex() if is_hexadecimal else row.payload,
            )
        )
    for chunk in _chunks(rows):
        values = _lists(len(chunk), len(chunk[0]), last=mark)
        yield Statement(
            f"INSERT INTO instance ({_INSTANCE_COLUMNS}) VALUES {values}", tuple(chain.from_iterable(chunk))
        )


#: Of PostgreSQL, sent when the transaction commits, however often it is said: wakes the owner.
NOTIFY = Statement(f"NOTIFY {CHANGE_CHANNEL}")


@cache
def _marks(width: int) -> str:
    return ", ".join("?" * width)


@cache
def _lists(height: int, width: int, *, last: str = "?") -> str:
    return ", ".join([f"({', '.join(['?'] * (width - 1) + [last])})"] * height)


def _chunks(rows: Sequence[tuple[Value, ...]]) -> Iterator[Sequence[tuple[Value, ...]]]:
    """`rows` in as few statements as widths and bytes allow."""
    start = 0
    for width in _WIDTHS:
        while len(rows) - start >= width:
            chunk = rows[start : start + width]
            if width > 1 and sum(map(_size_bytes, chunk)) > _STATEMENT_BYTES_MAX:
                break
            yield chunk
            start += width


def _size_bytes(row: tuple[Value, ...]) -> int:
    """About, as keys and names are short."""
    return sum(len(value) for value in row if isinstance(value, str | bytes))
