"""Servers of a benchmark's own, in temporary folders, each set so that what it has confirmed is on the disk.

A server is started when the first contender asks for it and serves until the comparison ends. Where its
programs are not installed, `why_not` says so, and the table has it as the reason of the row.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_START_S = 120.0
_STOP_S = 30.0
_LOOK_S = 0.05

#: What makes a confirmed commit durable, and enough memory that nothing else is measured.
POSTGRES_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
}
MARIADB_SETTINGS = {
    "innodb-flush-log-at-trx-commit": "1",
    "innodb-buffer-pool-size": "512M",
    "innodb-log-file-size": "512M",
}
REDIS_SETTINGS = {"appendonly": "yes", "appendfsync": "always", "save": ""}

#: Of each kind of server, for the note below a table.
DURABILITY = {
    "postgres": "PostgreSQL: fsync on, synchronous_commit on",
    "mariadb": "MariaDB: innodb_flush_log_at_trx_commit 1",
    "sqlite": "SQLite: WAL, synchronous FULL",
    "redis": "Redis: append-only file, appendfsync always",
    "rabbitmq": "RabbitMQ: durable queue, persistent messages, publisher confirms",
}


class Servers:
    """Those that a comparison needs; started at first use, ended with the block."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._running: dict[str, Any] = {}
        self._numbers = count(1)

    def why_not(self, kind: str) -> str:
        """Why a server of this kind cannot be started here; empty where it can."""
        programs: dict[str, Callable[[], object]] = {
            "redis": lambda: shutil.which("redis-server"),
            "rabbitmq": _rabbitmq_program,
            "postgres": lambda: _is_installed("PrivatePostgres"),
            "mariadb": lambda: _is_installed("PrivateMariadb"),
        }
        return "" if kind not in programs or programs[kind]() else f"{kind} is not installed"

    def new_database(self, kind: str) -> str:
        """URL of an empty database on the server of this kind."""
        if kind not in self._running:
            server = _support("PrivatePostgres" if kind == "postgres" else "PrivateMariadb")
            settings = POSTGRES_SETTINGS if kind == "postgres" else MARIADB_SETTINGS
            self._running[kind] = self._stack.enter_context(server(settings=settings))
        url: str = self._running[kind].make_database(f"bench_{next(self._numbers)}")
        return url

    def pid(self, kind: str) -> int:
        """Of the server of this kind, which runs; for PostgreSQL of the postmaster."""
        pid: int = self._running[kind].pid
        return pid

    def redis_url(self) -> str:
        """URL of the server; the caller empties it."""
        if "redis" not in self._running:
            self._running["redis"] = self._stack.enter_context(_redis())
        return f"redis://127.0.0.1:{self._running['redis']}/0"

    def rabbitmq_url(self) -> str:
        """URL of the server; the caller takes a queue that nobody has used."""
        if "rabbitmq" not in self._running:
            self._running["rabbitmq"] = self._stack.enter_context(_rabbitmq())
        return f"amqp://guest:guest@127.0.0.1:{self._running['rabbitmq']}/%2F"

    def __enter__(self) -> Self:
        # Whatever ends the comparison, servers and contenders end with it: they are in sessions of their own.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _support(name: str) -> Any:
    """A private server of the tests' kit, which needs what the tests need."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    from support import private_servers

    return getattr(private_servers, name)


def _is_installed(name: str) -> bool:
    return bool(_support("is_installed")(_support(name)))


@contextmanager
def _redis() -> Iterator[int]:
    port = free_port()
    settings = {"port": str(port), "bind": "127.0.0.1", **REDIS_SETTINGS}
    options = [part for name, value in settings.items() for part in (f"--{name}", value)]
    with tempfile.TemporaryDirectory(prefix="ostinato-redis-") as folder:
        command = ["redis-server", *options, "--dir", folder]
        with _serving("redis-server", command, port=port, folder=Path(folder), environment={}):
            yield port


def _rabbitmq_program() -> str:
    """The server's own script: Debian's wrapper changes to a user who may not enter our folder."""
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    return str(found[-1]) if found else shutil.which("rabbitmq-server") or ""


@contextmanager
def _rabbitmq() -> Iterator[int]:
    port, distribution_port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="ostinato-rabbitmq-") as name:
        folder = Path(name)
        (folder / "plugins").write_text("[].\n")
        environment = {
            # Of the cookie.
            "HOME": name,
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            # The machine's own settings are for its own server.
            "RABBITMQ_CONFIG_FILE": str(folder / "none"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        }
        with _serving(
            "rabbitmq-server", [_rabbitmq_program()], port=port, folder=folder, environment=environment
        ):
            yield port


@contextmanager
def _serving(
    name: str, command: list[str], *, port: int, folder: Path, environment: Mapping[str, str]
) -> Iterator[None]:
    """`command` from when it listens until the block ends, with whatever it has started."""
    log_path = folder / "server.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ended as a group: a script may stand between.
            start_new_session=True,
        )
    try:
        _wait_until_listening(name, process, port=port, log=log_path)
        yield
    finally:
        _end_group(process)


def _wait_until_listening(name: str, process: subprocess.Popen[bytes], *, port: int, log: Path) -> None:
    end = time.monotonic() + _START_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"{name} does not listen:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(_LOOK_S)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return  # every one of them has ended
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            continue  # with SIGKILL
