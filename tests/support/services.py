"""A scheduler and a worker as real processes on one database, with an outside witness of what ran."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import psutil
from support.processes_of import send
from support.servers import connect

from ostinato.store.server.url import read_server_url

Value = TypeVar("Value")

_TESTS = Path(__file__).parents[1]

#: Preamble of an app whose tasks append what they do to a file of their own attempt.
WITNESS = """
import json, os, pathlib, time

from ostinato import App, Context, Retry, every

app = App("processes")
HERE = pathlib.Path(__file__).parent


def witness(context, what):
    path = HERE / "witness" / f"{context.instance_id}-{context.attempt}"
    with path.open("a") as out:
        print(what, context.fencing_token, time.clock_gettime_ns(time.CLOCK_BOOTTIME), file=out)
"""


class Services:
    """Starts, kills and asks; every wait is on a condition."""

    def __init__(
        self,
        folder: Path,
        app: str,
        *,
        preamble: str = WITNESS,
        database: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`database` is the URL of one on a server, with its schema; else there is a SQLite file."""
        self.folder = folder
        self.database = database or f"sqlite:///{folder / 'services.db'}"
        (folder / "app.py").write_text(preamble + app, encoding="utf-8")
        (folder / "witness").mkdir()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OSTINATO_")},
            "OSTINATO_DATABASE": self.database,
            "OSTINATO_WORKER_LEASE": "6s",
            "PYTHONPATH": f"{folder}{os.pathsep}{_TESTS}",
            **(environment or {}),
        }
        self.workers_port, self.health_port = _free_port(), _free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        #: Told which process has ended while something is waited for; without it that is an error.
        self.on_end: Callable[[str], None] | None = None

    @property
    def workers_address(self) -> str:
        """Where workers connect to."""
        return f"127.0.0.1:{self.workers_port}"

    def start_scheduler(self, *, workers_host: str = "127.0.0.1") -> None:
        """`workers_host` is where it listens for workers."""
        self._start(
            "scheduler",
            "scheduler",
            "--worker-bind",
            f"{workers_host}:{self.workers_port}",
            "--bind",
            f"127.0.0.1:{self.health_port}",
        )
        self.until(lambda: _answers(self.health_port))

    def start_worker(
        self, name: str = "worker", *, slots: int = 3, scheduler: str = "", options: Sequence[str] = ()
    ) -> None:
        """`scheduler` is where it connects to, if not directly to the scheduler."""
        self._start(
            name,
            "worker",
            "--scheduler",
            scheduler or self.workers_address,
            "--app",
            "app:app",
            "--slots",
            str(slots),
            "--worker-name",
            name,
            "--data-dir",
            str(self.folder / name),
            *options,
        )

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a process and wait for it."""
        process = self.processes.pop(name)
        process.send_signal(number)
        process.wait(30)

    def kill_all(self) -> None:
        """Kill everything that was started, with all that descends from it, frozen or not."""
        running = [process for process in self.processes.values() if process.poll() is None]
        started = [psutil.Process(process.pid) for process in running]
        # Read before anything is killed: who has lost its parent is found no more.
        tree = [*started, *(child for each in started for child in each.children(recursive=True))]
        send(tree, signal.SIGKILL)
        for process in self.processes.values():
            process.wait(30)
        self.processes.clear()

    def run(self, code: str) -> str:
        """Run Python beside the app, as a user's own process would."""
        done = subprocess.run(
            [sys.executable, "-c", f"from app import *\n{code}\napp.close()"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def command(self, *arguments: str) -> object:
        """A command of the CLI with ``--json``."""
        done = subprocess.run(
            [sys.executable, "-m", "ostinato.cli", *arguments, "--json"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def rows(self, query: str, *values: object) -> list[tuple[object, ...]]:
        """Rows of the database, read by an outsider; `query` has a ``?`` for each of `values`."""
        with closing(self._outsider()) as connection:
            cursor = connection.cursor()
            if not isinstance(connection, sqlite3.Connection):
                query = query.replace("?", "%s")
            cursor.execute(query, values)
            return list(cursor.fetchall())

    def _outsider(self) -> Any:
        if self.database.startswith("sqlite"):
            file = self.database.removeprefix("sqlite:///")
            return sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=10)
        return connect(read_server_url(self.database))

    def state(self, instance_id: str) -> tuple[str, int]:
        """State and attempt number of an instance."""
        ((state, attempt),) = self.rows("select state, attempt from instance where id = ?", instance_id)
        return str(state), int(str(attempt))

    def witnessed(self, instance_id: str) -> dict[int, list[str]]:
        """By attempt: what its file says, in order."""
        files = sorted((self.folder / "witness").glob(f"{instance_id}-*"))
        return {
            int(path.name.rsplit("-", 1)[1]): [line.split()[0] for line in path.read_text().splitlines()]
            for path in files
        }

    def until(self, look: Callable[[], Value], *, within_s: float = 60) -> Value:
        """Poll until `look` gives something true."""
        end = time.monotonic() + within_s
        while not (value := look()):
            assert time.monotonic() < end, self.logs()
            for name, process in list(self.processes.items()):
                if process.poll() is not None:
                    assert self.on_end is not None, f"{name} has ended\n{self.logs()}"
                    self.on_end(name)
            time.sleep(0.02)
        return value

    def pass_time(self, seconds: float) -> None:
        """Return when so much time has passed, for what is defined by its length."""
        end = time.clock_gettime(time.CLOCK_BOOTTIME) + seconds
        self.until(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) >= end, within_s=seconds + 60)

    def logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}"
            for path in sorted(self.folder.glob("*.log"))
        )

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name, signal.SIGTERM)

    def _start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "ostinato.cli", *arguments],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
