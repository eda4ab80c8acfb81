"""The database as an outsider sees it, and servers of our own that can be restarted."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from chaos.verdict import Row

_TRIES_S = 60.0
_LIVE = ("pending", "running", "retry_waiting", "blocked")


class Restartable(Protocol):
    """A server of our own, with an empty database in it."""

    @property
    def url(self) -> str: ...

    @property
    def restart(self) -> Callable[[], None]: ...


class Decision(NamedTuple):
    """A retry as the history has it."""

    number: int
    attempt: int
    at_us: int


class Outsider:
    """Asks a server with a driver of its own, through restarts."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = None

    def __enter__(self) -> Outsider:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    @property
    def connection(self) -> Any:
        """The driver's, made at first use."""
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> Any:
        parts = urlsplit(self._url)
        name = parts.path.lstrip("/")
        if parts.scheme.startswith("postgres"):
            import psycopg

            return psycopg.connect(
                host=parts.hostname,
                port=parts.port or 5432,
                user=parts.username,
                password=parts.password,
                dbname=name,
                autocommit=True,
            )
        import pymysql

        return pymysql.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=parts.username,
            password=parts.password or "",
            database=name,
            autocommit=True,
        )

    def _away(self) -> tuple[type[Exception], ...]:
        """What the driver raises while the server restarts; a wrong statement is another error."""
        if self._url.startswith("postgres"):
            import psycopg

            return (psycopg.OperationalError, psycopg.InterfaceError)
        import pymysql

        return (pymysql.err.OperationalError, pymysql.err.InterfaceError)

    def query(self, text: str) -> list[Sequence[Any]]:
        """Rows of a statement; asked again while the server is away."""
        end = time.monotonic() + _TRIES_S
        while True:
            try:
                with self.connection.cursor() as cursor:
                    cursor.execute(text)
                    return list(cursor.fetchall()) if cursor.description else []
            except self._away() as error:
                self._connection = None
                if time.monotonic() > end:
                    raise SystemExit(f"the server does not answer: {error}") from error
                time.sleep(0.2)

    def wait_for_tasks(self) -> None:
        end = time.monotonic() + _TRIES_S
        while not self.query("select 1 from task where scheduled_version = version limit 1"):
            if time.monotonic() > end:
                raise SystemExit("no worker has declared its tasks")
            time.sleep(0.1)

    def live_states(self) -> dict[str, int]:
        states = ", ".join(f"'{state}'" for state in _LIVE)
        found = self.query(f"select state, count(*) from instance where state in ({states}) group by state")
        return {str(state): int(count) for state, count in found}

    def live_count(self) -> int:
        return sum(self.live_states().values())

    def rows(self) -> dict[int, Row]:
        """By number, which is the key of the submission."""
        mark = '"key"' if self._url.startswith("postgres") else "`key`"
        found = self.query(f"select {mark}, task, state, attempt from instance where {mark} <> ''")
        return {int(key): Row(int(key), task, state, attempt) for key, task, state, attempt in found}

    def decisions(self) -> list[Decision]:
        """Retries of the tasks that fail by themselves."""
        mark = 'instance."key"' if self._url.startswith("postgres") else "instance.`key`"
        found = self.query(
            f"select {mark}, history.attempt, history.at_us from history"
            " join instance on instance.id = history.instance_id"
            " where history.kind = 'retry' and instance.task like 'flaky-%'"
        )
        return [Decision(int(key), int(attempt), int(at_us)) for key, attempt, at_us in found]


class _Server(NamedTuple):
    url: str
    restart: Callable[[], None]


@contextmanager
def private_server(kind: str) -> Iterator[Restartable]:
    """A server in a temporary folder, with an empty database for Ostinato."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    from support.private_servers import PrivateMariadb, PrivatePostgres

    with (PrivatePostgres if kind == "postgres" else PrivateMariadb)() as server:
        yield _Server(server.make_database("soak"), server.restart)


def upgrade(url: str, *, partitions: int | None = None) -> None:
    """Bring a database to the newest schema, by the command that operators use."""
    command = [sys.executable, "-m", "ostinato.cli", "db", "upgrade", "--database", url]
    options = [] if partitions is None else ["--partitions", str(partitions)]
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
