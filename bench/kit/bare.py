"""Bare clients of the databases: rows of the product's width moved insert → assign → complete in batches.

Nothing is decided, proved, routed or sent: what is left is what the database and its driver do, which is the
bound for a scheduler on them. The table has the columns that such a move touches, its primary key, and one
index, of what is due.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import urlsplit

#: Any: the drivers have no useful types.
Driver: TypeAlias = Any

_CREATE = """CREATE TABLE moved (
  id {id} PRIMARY KEY, namespace {word} NOT NULL, task {word} NOT NULL, task_version bigint NOT NULL,
  slice integer NOT NULL, priority smallint NOT NULL, due_us bigint NOT NULL, created_us bigint NOT NULL,
  state {word} NOT NULL, attempt integer NOT NULL, attempt_id {word} NOT NULL, worker_id {word} NOT NULL,
  assigned_us bigint, started_us bigint, finished_us bigint, payload {bytes} NOT NULL, result {bytes})"""
_COLUMNS = (
    "id, namespace, task, task_version, slice, priority, due_us, created_us, state, attempt, attempt_id,"
    " worker_id, payload"
)
_WORKER = "0" * 26
_PAYLOAD = b"{}"
_RESULT = b"null"

Row: TypeAlias = tuple[str, str, str, int, int, int, int, int, str, int, str, str, bytes]


class Bare(Protocol):
    """One connection. Each call is one transaction, committed when it returns."""

    async def insert(self, rows: Sequence[Row]) -> None: ...

    async def assign(self, rows: Sequence[Row], *, now_us: int) -> None: ...

    async def complete(self, rows: Sequence[Row], *, now_us: int) -> None: ...

    async def close(self) -> None: ...


class BarePostgres:
    """asyncpg: prepared statements over arrays, as the product's."""

    index = "CREATE INDEX moved_due ON moved (slice, priority, due_us, id) WHERE state = 'pending'"
    create = _CREATE.format(id="text", word="text", bytes="bytea")
    _INSERT = (
        f"INSERT INTO moved ({_COLUMNS}) SELECT * FROM unnest($1::text[], $2::text[], $3::text[],"
        " $4::bigint[], $5::int[], $6::smallint[], $7::bigint[], $8::bigint[], $9::text[],"
        " $10::int[], $11::text[],"
        " $12::text[], $13::bytea[])"
    )
    _ASSIGN = (
        "UPDATE moved SET state = 'running', attempt = moved.attempt + 1, attempt_id = move.attempt_id,"
        " worker_id = $3, assigned_us = $4 FROM unnest($1::text[], $2::text[]) AS move(id, attempt_id)"
        " WHERE moved.id = move.id AND moved.state = 'pending'"
    )
    _COMPLETE = (
        "UPDATE moved SET state = 'success', started_us = $3, finished_us = $3, result = move.result"
        " FROM unnest($1::text[], $2::bytea[]) AS move(id, result)"
        " WHERE moved.id = move.id AND moved.state = 'running'"
    )

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    @classmethod
    async def connect(cls, url: str) -> BarePostgres:
        import asyncpg

        # As the product's owner does: a table that was just filled has no statistics.
        settings = {name: "off" for name in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit")}
        return cls(await asyncpg.connect(url, server_settings=settings))

    async def execute(self, statement: str) -> None:
        await self._driver.execute(statement)

    async def insert(self, rows: Sequence[Row]) -> None:
        await self._driver.execute(self._INSERT, *map(list, zip(*rows, strict=True)))

    async def assign(self, rows: Sequence[Row], *, now_us: int) -> None:
        ids = [row[0] for row in rows]
        await self._driver.execute(self._ASSIGN, ids, ids, _WORKER, now_us)

    async def complete(self, rows: Sequence[Row], *, now_us: int) -> None:
        ids = [row[0] for row in rows]
        await self._driver.execute(self._COMPLETE, ids, [_RESULT] * len(ids), now_us)

    async def close(self) -> None:
        await self._driver.close()


class BareMariadb:
    """asyncmy: values as literals of one statement, as the product's."""

    index = "CREATE INDEX moved_due ON moved (state, slice, priority, due_us, id)"
    create = _CREATE.format(id="char(26) CHARACTER SET ascii", word="varchar(40)", bytes="longblob")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    @classmethod
    async def connect(cls, url: str) -> BareMariadb:
        import asyncmy

        parts = urlsplit(url)
        driver = await asyncmy.connect(
            host=parts.hostname,
            port=parts.port,
            user=parts.username,
            password=parts.password or "",
            database=parts.path.lstrip("/"),
            autocommit=True,
        )
        bare = cls(driver)
        await bare.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return bare

    async def execute(self, statement: str) -> None:
        async with self._driver.cursor() as cursor:
            await cursor.execute(statement)

    async def insert(self, rows: Sequence[Row]) -> None:
        values = ",".join(
            f"('{row[0]}','{row[1]}','{row[2]}',{row[3]},{row[4]},{row[5]},{row[6]},{row[7]},'{row[8]}',"
            f"{row[9]},'{row[10]}','{row[11]}','{row[12].decode()}')"
            for row in rows
        )
        await self.execute(f"INSERT INTO moved ({_COLUMNS}) VALUES {values}")

    async def assign(self, rows: Sequence[Row], *, now_us: int) -> None:
        await self.execute(
            "UPDATE moved SET state = 'running', attempt = attempt + 1, attempt_id = id,"
            f" worker_id = '{_WORKER}', assigned_us = {now_us}"
            f" WHERE id IN ({_listed(rows)}) AND state = 'pending'"
        )

    async def complete(self, rows: Sequence[Row], *, now_us: int) -> None:
        await self.execute(
            f"UPDATE moved SET state = 'success', started_us = {now_us}, finished_us = {now_us},"
            f" result = '{_RESULT.decode()}' WHERE id IN ({_listed(rows)}) AND state = 'running'"
        )

    async def close(self) -> None:
        self._driver.close()


class BareSqlite:
    """sqlite3: ``executemany`` in a transaction, on the thread that calls."""

    index = "CREATE INDEX moved_due ON moved (priority, due_us, id) WHERE state = 'pending'"
    create = _CREATE.format(id="text", word="text", bytes="blob") + " WITHOUT ROWID"

    def __init__(self, driver: sqlite3.Connection) -> None:
        self._driver = driver

    @classmethod
    async def connect(cls, url: str) -> BareSqlite:
        driver = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "temp_store = MEMORY"):
            driver.execute(f"PRAGMA {pragma}")
        return cls(driver)

    async def execute(self, statement: str) -> None:
        self._driver.execute(statement)

    async def insert(self, rows: Sequence[Row]) -> None:
        marks = ", ".join("?" * 13)
        self._many(f"INSERT INTO moved ({_COLUMNS}) VALUES ({marks})", rows)

    async def assign(self, rows: Sequence[Row], *, now_us: int) -> None:
        self._many(
            "UPDATE moved SET state = 'running', attempt = attempt + 1, attempt_id = ?, worker_id = ?,"
            " assigned_us = ? WHERE id = ? AND state = 'pending'",
            [(row[0], _WORKER, now_us, row[0]) for row in rows],
        )

    async def complete(self, rows: Sequence[Row], *, now_us: int) -> None:
        self._many(
            "UPDATE moved SET state = 'success', started_us = ?, finished_us = ?, result = ?"
            " WHERE id = ? AND state = 'running'",
            [(now_us, now_us, _RESULT, row[0]) for row in rows],
        )

    def _many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        self._driver.execute("BEGIN IMMEDIATE")
        self._driver.executemany(statement, rows)
        self._driver.execute("COMMIT")

    async def close(self) -> None:
        self._driver.close()


CLIENTS: dict[str, type[BarePostgres] | type[BareMariadb] | type[BareSqlite]] = {
    "postgres": BarePostgres,
    "mariadb": BareMariadb,
    "sqlite": BareSqlite,
}


class Size(NamedTuple):
    """How many rows, and how many of them a batch has."""

    row_count: int
    batch: int


async def make_table(database: str, url: str) -> None:
    bare = await CLIENTS[database].connect(url)
    await bare.execute(bare.create)
    await bare.execute(bare.index)
    await bare.close()


async def inserted(database: str, url: str, *, size: Size) -> float:
    """Rows a second of bulk insertion alone."""
    bare = await CLIENTS[database].connect(url)
    lists = batches(size)
    began = time.perf_counter()
    for rows in lists:
        await bare.insert(rows)
    seconds = time.perf_counter() - began
    await bare.close()
    return size.row_count / seconds


async def moved_in_turn(database: str, url: str, *, size: Size) -> float:
    """Rows a second over one connection: three transactions for each batch, one after the other."""
    bare = await CLIENTS[database].connect(url)
    lists = batches(size)
    began = time.perf_counter()
    for rows in lists:
        await bare.insert(rows)
        await bare.assign(rows, now_us=_now_us())
        await bare.complete(rows, now_us=_now_us())
    seconds = time.perf_counter() - began
    await bare.close()
    return size.row_count / seconds


async def moved_in_pipeline(database: str, url: str, *, size: Size) -> float:
    """Rows a second over three connections, each of which makes one of the moves for the next."""
    inserting, assigning, completing = [await CLIENTS[database].connect(url) for _ in range(3)]
    inserted_rows: asyncio.Queue[Sequence[Row]] = asyncio.Queue(4)
    assigned_rows: asyncio.Queue[Sequence[Row]] = asyncio.Queue(4)
    lists = batches(size)

    async def insert() -> None:
        for rows in lists:
            await inserting.insert(rows)
            await inserted_rows.put(rows)

    async def assign() -> None:
        for _ in lists:
            rows = await inserted_rows.get()
            await assigning.assign(rows, now_us=_now_us())
            await assigned_rows.put(rows)

    async def complete() -> None:
        for _ in lists:
            await completing.complete(await assigned_rows.get(), now_us=_now_us())

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for step in (insert, assign, complete):
            group.create_task(step())
    seconds = time.perf_counter() - began
    for bare in (inserting, assigning, completing):
        await bare.close()
    return size.row_count / seconds


async def completed_count(database: str, url: str) -> int:
    """Rows that have made every move, by a connection of its own."""
    if database == "sqlite":
        driver = sqlite3.connect(Path(url.removeprefix("sqlite:///")))
        (count,) = driver.execute("SELECT count(*) FROM moved WHERE state = 'success'").fetchone()
        driver.close()
        return int(count)
    from chaos.databases import Outsider

    with Outsider(url) as outsider:
        return int(outsider.query("SELECT count(*) FROM moved WHERE state = 'success'")[0][0])


def batches(size: Size) -> list[list[Row]]:
    """The rows of `size`, batch by batch. Made before the clock runs; ids rise, as the product's do."""
    now_us = _now_us()
    rows: list[Row] = [
        (
            f"{number:026d}",
            "default",
            "noop",
            1,
            number % 64,
            5,
            now_us,
            now_us,
            "pending",
            0,
            "",
            "",
            _PAYLOAD,
        )
        for number in range(size.row_count)
    ]
    return [rows[start : start + size.batch] for start in range(0, size.row_count, size.batch)]


def _listed(rows: Sequence[Row]) -> str:
    return ",".join(f"'{row[0]}'" for row in rows)


def _now_us() -> int:
    return time.time_ns() // 1000
