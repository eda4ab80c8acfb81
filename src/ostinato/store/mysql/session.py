"""One connection of the driver: which server it reached, how it is set up, and statements on it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import asyncmy

from ostinato.errors import UserError
from ostinato.store.mysql.literals import Row, Statements
from ostinato.store.server.schema import COLLATIONS

#: Any: the driver has no useful types.
Driver: TypeAlias = Any
Columns: TypeAlias = Sequence[Any]

#: MariaDB before has no SKIP LOCKED and no JSON_TABLE, MySQL before no tables of values.
MARIADB_MIN = (10, 6)
MYSQL_MIN = (8, 0, 19)
#: How the attributes that hold what is known of a connection are called; it lives as long as the connection.
_FACTS = "ostinato_session"
#: The modes of dates, of which nothing here has any, belong to the strict one: MySQL warns at every
#: connection that sets one without the others.
_SQL_MODE = (
    "STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION,ONLY_FULL_GROUP_BY"
)
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


class Server(NamedTuple):
    """Which server answers; MariaDB and MySQL differ in a few spellings, all of which ask here."""

    is_mariadb: bool
    version: tuple[int, ...]

    @property
    def collation(self) -> str:
        return COLLATIONS["mariadb" if self.is_mariadb else "mysql"]

    @property
    def shown(self) -> str:
        return f"{'MariaDB' if self.is_mariadb else 'MySQL'} {'.'.join(map(str, self.version))}"


class Session:
    """What is known of one connection."""

    def __init__(self, server: Server, *, packet_bytes: int) -> None:
        self.server = server
        self.statements = Statements(packet_bytes=packet_bytes, is_mariadb=server.is_mariadb)
        #: How long its statements may run, as it was told last; zero: not told, as MySQL's, of which only a
        #: SELECT has a limit.
        self.statement_us = 0
        #: Names of the locks that this session has taken; one taken twice would have to be released twice.
        self.locks: set[str] = set()
        #: Names of locks of others that this session has seen held.
        self.seen_held: set[str] = set()


def read_version(text: str) -> Server:
    """Of what the server says in its greeting, such as ``10.11.6-MariaDB`` or ``8.0.36``."""
    is_mariadb = "mariadb" in text.lower()
    # MariaDB may put 5.5.5- before its own, for replicas that are older than it.
    found = _VERSION.findall(text)
    own = found[-1 if is_mariadb and text.startswith("5.5.5-") and len(found) > 1 else 0] if found else ()
    return Server(is_mariadb, tuple(map(int, own)))


def require_version(server: Server, *, subject: str) -> None:
    """Raise ``DATABASE_UNUSABLE`` for a server that is too old."""
    least = MARIADB_MIN if server.is_mariadb else MYSQL_MIN
    if server.version < least:
        raise UserError(
            "DATABASE_UNUSABLE",
            f"{subject}: {server.shown} is too old",
            subject=subject,
            field="database",
            hint=f"use MariaDB {'.'.join(map(str, MARIADB_MIN))} or MySQL {'.'.join(map(str, MYSQL_MIN))},"
            " or newer",
        )


async def connect(*, subject: str, lock_wait_s: int, **arguments: Any) -> Driver:
    """A connection of the driver, set up. Raises ``DATABASE_UNUSABLE`` for a server that is too old."""
    driver = await asyncmy.connect(**arguments)
    try:
        server = read_version(driver.get_server_info())
        require_version(server, subject=subject)
        await change(
            driver,
            f"SET NAMES utf8mb4 COLLATE {server.collation};"
            " SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;"
            # Its own zone may have hours that come twice, in which a time says two instants.
            f" SET SESSION sql_mode = '{_SQL_MODE}', time_zone = '+00:00',"
            f" innodb_lock_wait_timeout = {lock_wait_s}",
        )
        ((packet_bytes,),) = await fetch(driver, "SELECT @@max_allowed_packet")
    except BaseException:
        driver.close()
        raise
    setattr(driver, _FACTS, Session(server, packet_bytes=packet_bytes))
    return driver


def session_of(driver: Driver) -> Session:
    """What is known of a connection that `connect` has made."""
    session: Session = getattr(driver, _FACTS)
    return session


async def fetch(driver: Driver, statement: str | bytes) -> Sequence[Columns]:
    """All rows of one SELECT."""
    async with driver.cursor() as cursor:
        await cursor.execute(_encoded(statement))
        rows: Sequence[Columns] = await cursor.fetchall()
        return rows


async def change(driver: Driver, statement: str | bytes) -> int:
    """Run one statement, or several with semicolons between; returns how many rows the first found."""
    async with driver.cursor() as cursor:
        await cursor.execute(_encoded(statement))
        count: int = cursor.rowcount
        while await cursor.nextset():
            pass
        return count


def _encoded(statement: str | bytes) -> bytes:
    # The driver would send half of a surrogate pair as a byte.
    return statement if isinstance(statement, bytes) else statement.encode()


async def write_rows(driver: Driver, name: str, *, rows: Sequence[Row]) -> int:
    """Run ``sql/<name>.sql`` for all rows, in as many statements as it takes; returns how many it found."""
    count = 0
    for statement, _ in session_of(driver).statements.of(name, rows):
        count += await change(driver, statement)
    return count


def require_writable(driver: Driver, name: str, *, rows: Sequence[Row]) -> None:
    """Raise what `write_rows` would raise for a row that no statement can carry, and send nothing."""
    for _ in session_of(driver).statements.of(name, rows):
        pass


async def read_rows(driver: Driver, name: str, *, rows: Sequence[Row]) -> list[Columns]:
    """What ``sql/<name>.sql`` finds for all rows, in as many statements as it takes."""
    found: list[Columns] = []
    for statement, _ in session_of(driver).statements.of(name, rows):
        found += await fetch(driver, statement)
    return found
