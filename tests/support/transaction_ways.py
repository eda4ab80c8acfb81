"""Every kind of connection in whose transaction one can submit, behind one interface for the tests."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import aiomysql
import asyncmy
import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
import pymysql
import sqlalchemy
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from support.transaction_databases import Database

from ostinato import App, Handle


class Opened:
    """A connection with an open transaction, or one that commits each statement."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def submit(self, app: App, task: Any, payload: dict[str, object], **options: Any) -> Handle[Any]:
        return await app.submit_async(task, payload, connection=self.connection, **options)

    async def submit_many(self, app: App, task: Any, entries: list[Any]) -> list[Handle[Any]]:
        return await app.submit_many_async(task, entries, connection=self.connection)

    async def run(self, statement: str) -> None:
        """Run a statement of the user's."""
        await self.connection.execute(statement)

    async def begin(self) -> None:
        """Begin a transaction where none begins by itself."""

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()


class Blocking(Opened):
    """A connection whose calls block; each runs in a thread, so that two can wait for each other."""

    async def submit(self, app: App, task: Any, payload: dict[str, object], **options: Any) -> Handle[Any]:
        return await asyncio.to_thread(app.submit, task, payload, connection=self.connection, **options)

    async def submit_many(self, app: App, task: Any, entries: list[Any]) -> list[Handle[Any]]:
        return await asyncio.to_thread(app.submit_many, task, entries, connection=self.connection)

    async def run(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()


class BlockingSqlite(Blocking):
    async def run(self, statement: str) -> None:
        self.connection.execute(statement)


class BlockingSqlalchemy(Blocking):
    async def run(self, statement: str) -> None:
        self.connection.execute(sqlalchemy.text(statement))


class Asyncpg(Opened):
    async def begin(self) -> None:
        await self.connection.execute("BEGIN")

    async def commit(self) -> None:
        await self.connection.execute("COMMIT")

    async def rollback(self) -> None:
        await self.connection.execute("ROLLBACK")


class AsyncMysql(Opened):
    async def run(self, statement: str) -> None:
        async with self.connection.cursor() as cursor:
            await cursor.execute(statement)


class AsyncSqlalchemy(Opened):
    async def run(self, statement: str) -> None:
        await self.connection.execute(sqlalchemy.text(statement))


class Way(NamedTuple):
    """A kind of connection, of a kind of database."""

    name: str
    kind: str
    open: Callable[..., AbstractAsyncContextManager[Opened]]

    def __repr__(self) -> str:
        return self.name


def _server(database: Database) -> dict[str, Any]:
    url = database.url
    return {"host": url.host, "port": url.port, "user": url.username, "password": url.password or ""}


@asynccontextmanager
async def open_psycopg(database: Database, *, commits_each: bool = False) -> AsyncIterator[Opened]:
    with psycopg.connect(
        dbname=database.url.database, autocommit=commits_each, **_server(database)
    ) as driver:
        driver.row_factory = psycopg.rows.dict_row
        yield Blocking(driver)
        driver.rollback()


@asynccontextmanager
async def open_psycopg2(database: Database, *, commits_each: bool = False) -> AsyncIterator[Opened]:
    driver = psycopg2.connect(
        dbname=database.url.database,
        cursor_factory=psycopg2.extras.RealDictCursor,
        **_server(database),
    )
    driver.autocommit = commits_each
    try:
        yield Blocking(driver)
    finally:
        driver.close()


@asynccontextmanager
async def open_pymysql(database: Database, *, commits_each: bool = False) -> AsyncIterator[Opened]:
    driver = pymysql.connect(
        database=database.url.database,
        autocommit=commits_each,
        cursorclass=pymysql.cursors.DictCursor,
        **_server(database),
    )
    try:
        yield Blocking(driver)
    finally:
        driver.close()


@asynccontextmanager
async def open_sqlite(database: Database, *, commits_each: bool = False) -> AsyncIterator[Opened]:
    driver = sqlite3.connect(
        database.path, check_same_thread=False, isolation_level=None if commits_each else "DEFERRED"
    )
    driver.row_factory = sqlite3.Row
    try:
        yield BlockingSqlite(driver)
    finally:
        driver.close()


@asynccontextmanager
async def open_sqlalchemy(database: Database, *, commits_each: bool = False) -> AsyncIterator[Opened]:
    engine = create_engine(database.url, **({"isolation_level": "AUTOCOMMIT"} if commits_each else {}))
    try:
        with engine.connect() as connection:
            yield BlockingSqlalchemy(connection)
    finally:
        engine.dispose()


@asynccontextmanager
async def open_session(database: Database, *, commits_each: bool = False) -> AsyncIterator[Opened]:
    engine = create_engine(database.url, **({"isolation_level": "AUTOCOMMIT"} if commits_each else {}))
    try:
        with Session(engine) as session:
            yield BlockingSqlalchemy(session)
    finally:
        engine.dispose()


@asynccontextmanager
async def open_scoped_session(database: Database, *, commits_each: bool = False) -> AsyncIterator[Opened]:
    engine = create_engine(database.url, **({"isolation_level": "AUTOCOMMIT"} if commits_each else {}))
    # One scope for all threads: the test's calls run in several, one after the other.
    session = scoped_session(sessionmaker(engine), scopefunc=lambda: 1)
    try:
        yield BlockingSqlalchemy(session)
    finally:
        session.remove()
        engine.dispose()


@asynccontextmanager
async def open_asyncpg(database: Database, *, commits_each: bool = False) -> AsyncIterator[Opened]:
    driver = await asyncpg.connect(database=database.url.database, **_server(database))
    try:
        opened = Asyncpg(driver)
        if not commits_each:
            await opened.begin()
        yield opened
    finally:
        await driver.close()


@asynccontextmanager
async def open_asyncpg_pool(database: Database, *, commits_each: bool = False) -> AsyncIterator[Opened]:
    pool = await asyncpg.create_pool(
        database=database.url.database, min_size=1, max_size=1, **_server(database)
    )
    try:
        async with pool.acquire() as proxy:
            opened = Asyncpg(proxy)
            if not commits_each:
                await opened.begin()
            yield opened
    finally:
        await pool.close()


@asynccontextmanager
async def open_async_psycopg(database: Database, *, commits_each: bool = False) -> AsyncIterator[Opened]:
    driver = await psycopg.AsyncConnection.connect(
        dbname=database.url.database, autocommit=commits_each, **_server(database)
    )
    try:
        yield Opened(driver)
    finally:
        await driver.close()


@asynccontextmanager
async def open_asyncmy(database: Database, *, commits_each: bool = False) -> AsyncIterator[Opened]:
    driver = await asyncmy.connect(
        database=database.url.database, autocommit=commits_each, **_server(database)
    )
    try:
        yield AsyncMysql(driver)
    finally:
        await driver.ensure_closed()


@asynccontextmanager
async def open_aiomysql(database: Database, *, commits_each: bool = False) -> AsyncIterator[Opened]:
    driver = await aiomysql.connect(db=database.url.database, autocommit=commits_each, **_server(database))
    try:
        yield AsyncMysql(driver)
    finally:
        await driver.ensure_closed()


_ASYNC_DRIVERS = {"postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy"}


@asynccontextmanager
async def open_async_sqlalchemy(database: Database, *, commits_each: bool = False) -> AsyncIterator[Opened]:
    engine = create_async_engine(
        database.url.set(drivername=_ASYNC_DRIVERS[database.kind]),
        **({"isolation_level": "AUTOCOMMIT"} if commits_each else {}),
    )
    try:
        async with engine.connect() as connection:
            yield AsyncSqlalchemy(connection)
    finally:
        await engine.dispose()


@asynccontextmanager
async def open_async_session(database: Database, *, commits_each: bool = False) -> AsyncIterator[Opened]:
    engine = create_async_engine(
        database.url.set(drivername=_ASYNC_DRIVERS[database.kind]),
        **({"isolation_level": "AUTOCOMMIT"} if commits_each else {}),
    )
    try:
        async with AsyncSession(engine) as session:
            yield AsyncSqlalchemy(session)
    finally:
        await engine.dispose()


WAYS = (
    Way("psycopg", "postgresql", open_psycopg),
    Way("psycopg2", "postgresql", open_psycopg2),
    Way("psycopg async", "postgresql", open_async_psycopg),
    Way("asyncpg", "postgresql", open_asyncpg),
    Way("asyncpg pool", "postgresql", open_asyncpg_pool),
    Way("SQLAlchemy psycopg", "postgresql", open_sqlalchemy),
    Way("SQLAlchemy psycopg Session", "postgresql", open_session),
    Way("SQLAlchemy psycopg scoped_session", "postgresql", open_scoped_session),
    Way("SQLAlchemy asyncpg", "postgresql", open_async_sqlalchemy),
    Way("SQLAlchemy asyncpg AsyncSession", "postgresql", open_async_session),
    Way("PyMySQL", "mysql", open_pymysql),
    Way("asyncmy", "mysql", open_asyncmy),
    Way("aiomysql", "mysql", open_aiomysql),
    Way("SQLAlchemy PyMySQL", "mysql", open_sqlalchemy),
    Way("SQLAlchemy PyMySQL Session", "mysql", open_session),
    Way("SQLAlchemy asyncmy", "mysql", open_async_sqlalchemy),
    Way("SQLAlchemy asyncmy AsyncSession", "mysql", open_async_session),
    Way("sqlite3", "sqlite", open_sqlite),
    Way("SQLAlchemy sqlite", "sqlite", open_sqlalchemy),
    Way("SQLAlchemy sqlite Session", "sqlite", open_session),
)
#: One of each kind of database.
FIRST_WAYS = tuple(
    next(way for way in WAYS if way.kind == kind) for kind in ("postgresql", "mysql", "sqlite")
)
