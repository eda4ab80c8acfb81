"""Tables filled from outside: rows by the million that the database makes, and rows of our own in bulk.

What is filled is a database with the product's schema (``chaos.databases.upgrade``) that no scheduler uses
meanwhile. Instances belong to tasks whose rows are there: from these they have version and partition.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from chaos.databases import Outsider

#: Rows of one statement.
_STEP = 500_000
_BULK = 5_000
_BUFFER_POOL_BYTES = 4 * 1024**3
_DAY_US = 86_400_000_000
#: Younger than any retention, however long the benchmark takes.
_AGE_S_MAX = 6 * 86_400

#: ``due``: waits since a while ago; ``future``: is due from tomorrow on; ``finished``: ended within six days.
Kind: TypeAlias = Literal["due", "future", "finished"]


class Rows(NamedTuple):
    """Instances to be made, numbered from `first`, of the tasks `prefix` and a number below `tasks`."""

    #: Begins their ids.
    name: str
    kind: Kind
    count: int
    tasks: int
    prefix: str
    #: How long ago those of the kind ``due`` have been due; of two the older one comes first.
    age_us: int = 0
    first: int = 0


class Target:
    """A database by its URL."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.kind = "postgres" if url.startswith("postgres") else url.partition(":")[0]
        self._outsider = Outsider(url)
        self._file: sqlite3.Connection | None = None
        if self.kind == "sqlite":
            self._file = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)

    def query(self, text: str) -> list[Sequence[Any]]:
        """Rows of a statement, which is committed."""
        return self._outsider.query(text) if self._file is None else list(self._file.execute(text))

    def number(self, text: str) -> int:
        """The one number that a question has as its answer; 0 for NULL."""
        return int(self.query(text)[0][0] or 0)

    def insert(self, table: str, columns: Sequence[str], *, rows: Iterable[Sequence[Any]]) -> None:
        """Insert rows in bulk, as fast as the driver can."""
        if self.kind == "postgres":
            names = ", ".join(f'"{column}"' for column in columns)
            with (
                self._outsider.connection.cursor() as cursor,
                cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy,
            ):
                for row in rows:
                    copy.write_row(row)
            return
        mark = "?" if self._file is not None else "%s"
        names = ", ".join(f"`{column}`" for column in columns)
        statement = f"INSERT INTO {table} ({names}) VALUES ({', '.join([mark] * len(columns))})"
        remaining = iter(rows)
        while chunk := list(islice(remaining, _BULK)):
            self._insert_chunk(statement, chunk)

    def _insert_chunk(self, statement: str, chunk: list[Sequence[Any]]) -> None:
        if self._file is None:
            with self._outsider.connection.cursor() as cursor:
                cursor.executemany(statement, chunk)
            return
        self._file.execute("BEGIN IMMEDIATE")
        self._file.executemany(statement, chunk)
        self._file.execute("COMMIT")

    def make(self, rows: Rows) -> None:
        """Insert instances, made by the database; says how far it is."""
        now_us = time.time_ns() // 1000
        last = rows.first + rows.count
        for start in range(rows.first, last, _STEP):
            stop = min(start + _STEP, last)
            self.query(_series(self.kind, rows, start=start, stop=stop, now_us=now_us))
            if rows.count > _STEP:
                print(f"  {stop - rows.first:,} {rows.name}", flush=True)

    def settle(self) -> None:
        """Statistics as they would be after a while, and nothing left to be cleared away meanwhile."""
        if self.kind == "postgres":
            for table in ("instance", "task", "task_definition", "task_trigger"):
                self.query(f"VACUUM (ANALYZE) {table}")
        elif self._file is None:
            self.query("ANALYZE TABLE instance, task, task_definition, task_trigger")
        else:
            self.query("ANALYZE")

    def without_keys(self) -> AbstractContextManager[None]:
        """While millions of instances are inserted.

        Secondary indexes that are made at once take minutes, row by row they take up to an hour. SQLite, of
        which nobody asks for so many, keeps them.
        """
        if self.kind == "sqlite":
            return _as_it_is()
        return _without_indexes(self) if self.kind == "postgres" else _without_keys(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._outsider.__exit__()
        if self._file is not None:
            self._file.close()


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


@contextmanager
def _without_indexes(target: Target) -> Iterator[None]:
    found = target.query(
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'instance' AND indexname NOT IN"
        " (SELECT conname FROM pg_constraint WHERE conrelid = 'instance'::regclass AND contype = 'p')"
    )
    for name, _ in found:
        target.query(f"DROP INDEX {name}")
    yield
    for _, definition in found:
        target.query(definition)


@contextmanager
def _without_keys(target: Target) -> Iterator[None]:
    target.query(f"SET GLOBAL innodb_buffer_pool_size = {_BUFFER_POOL_BYTES}")
    lines = str(target.query("SHOW CREATE TABLE instance")[0][1]).splitlines()
    keys = [line.strip().rstrip(",") for line in lines if re.match(r"\s*(UNIQUE )?KEY ", line)]
    names = [key.split("`")[1] for key in keys]
    target.query("ALTER TABLE instance " + ", ".join(f"DROP KEY `{name}`" for name in names))
    yield
    target.query("ALTER TABLE instance " + ", ".join(f"ADD {key}" for key in keys))


def _series(kind: str, rows: Rows, *, start: int, stop: int, now_us: int) -> str:
    """One statement that makes the instances with the numbers from `start` to before `stop`."""
    number, source = {
        "postgres": ("n::bigint", f"generate_series({start}, {stop - 1}) AS n"),
        "sqlite": (
            "n",
            f"(WITH RECURSIVE s(n) AS (SELECT {start} UNION ALL SELECT n + 1 FROM s WHERE n < {stop - 1})"
            " SELECT n FROM s)",
        ),
    }.get(kind, ("seq", f"seq_{start}_to_{stop - 1}"))
    quote = "`" if kind != "postgres" else '"'
    age = f"({number} % {_AGE_S_MAX} * 1000000)"
    ended_us = f"{now_us} - {age}"
    values = {
        "due": f"'pending', {now_us - rows.age_us} + {number}, {now_us}, 0, '', NULL, NULL, NULL",
        "future": f"'pending', {now_us + _DAY_US} + {age}, {now_us}, 0, '', NULL, NULL, NULL",
        "finished": f"'success', {ended_us}, {ended_us}, 1, 'a', {ended_us}, {ended_us}, {ended_us}",
    }[rows.kind]
    payload = "'\\x7b7d'" if kind == "postgres" else "'{}'"
    task = _numbered(kind, rows.prefix, f"({number} % {rows.tasks})", digits=7)
    return (
        f"INSERT INTO instance (id, namespace, task, task_version, {quote}partition{quote}, priority,"
        " payload, state, due_us, created_us, attempt, attempt_id, assigned_us, started_us, finished_us)"
        f" SELECT {_numbered(kind, rows.name, number, digits=12)}, task.namespace, task.name, task.version,"
        f" task.{quote}partition{quote}, 5, {payload}, {values}"
        f" FROM {source} JOIN task ON task.namespace = 'default' AND task.name = {task}"
    )


def _numbered(kind: str, prefix: str, number: str, *, digits: int) -> str:
    """SQL of a name that ends in a number with leading zeros."""
    if kind == "sqlite":
        return f"printf('{prefix}%0{digits}d', {number})"
    text = (
        f"lpad(({number})::text, {digits}, '0')" if kind == "postgres" else f"lpad({number}, {digits}, '0')"
    )
    return f"concat('{prefix}', {text})"


def task_name(prefix: str, number: int) -> str:
    """Name of a task of which instances can be made."""
    return f"{prefix}{number:07d}"
