"""Ostinato: one scheduler process and one worker process over a database of its own."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import ClassVar

from chaos.databases import Outsider
from kit.rounds import RunError
from kit.servers import Servers, free_port

from peers.interface import CORES, Contender, Load

_READY_S = 60.0
_ASYNC_SLOTS = 500


class Ostinato(Contender):
    """A subclass for each database."""

    modules = ()
    app = "ostinato_app"
    settings = (
        f"defaults; async def: {_ASYNC_SLOTS} slots in one loop process; def: {CORES} slot processes;"
        " counts once the result's row is committed"
    )
    _outsider: Outsider | None = None

    @classmethod
    def why_not(cls, servers: Servers, load: Load) -> str:
        return servers.why_not(cls.server)

    def own_environment(self) -> dict[str, str]:
        if self.server == "sqlite":
            self._url = f"sqlite:///{self.folder / 'bench.db'}"
        else:
            self._url = self.servers.new_database(self.server)
        task = "failing" if self.load.is_failing_once else "noop"
        return {"OSTINATO_DATABASE": self._url, "BENCH_KIND": self.load.kind, "BENCH_TASK": task}

    def start_workers(self) -> None:
        """Scheduler, then worker."""
        self.start_scheduler()
        self.start_worker()

    def start_worker(self) -> subprocess.Popen[bytes]:
        return self.start("worker", self.worker_command())

    def start_scheduler(self, *, limit_s: float = _READY_S) -> subprocess.Popen[bytes]:
        """Returns once it is ready; raises ``RunError`` where it is not within `limit_s`."""
        api, workers = free_port(), free_port()
        command = [sys.executable, "-m", "ostinato.cli", "scheduler", "--bind", f"127.0.0.1:{api}"]
        scheduler = self.start("scheduler", [*command, "--worker-bind", f"127.0.0.1:{workers}"])
        end = time.monotonic() + limit_s
        while not _is_ready(api):
            self.require_running()
            if time.monotonic() > end:
                raise RunError(f"the scheduler is not ready: {self.log()}")
            time.sleep(0.05)
        self._scheduler = f"127.0.0.1:{workers}"
        return scheduler

    def worker_command(self) -> list[str]:
        slots = {"async": (1, _ASYNC_SLOTS), "def": (CORES, 1)}[self.load.kind]
        return [
            *(sys.executable, "-m", "ostinato.cli", "worker", "--scheduler", self._scheduler),
            *("--app", "ostinato_app:app", "--data-dir", str(self.folder / "worker-data")),
            *("--slots", str(slots[0]), "--async-slots", str(slots[1])),
        ]

    def completed(self) -> int:
        if self.load.is_failing_once:
            # Each attempt that is not running has ended, with its verdict in the same transaction.
            question = (
                "select coalesce(sum(attempt), 0)"
                " - coalesce(sum(case when state = 'running' then 1 else 0 end), 0) from instance"
            )
        else:
            question = "select count(*) from instance where state = 'success'"
        if self.server == "sqlite":
            connection = sqlite3.connect(f"file:{self.folder / 'bench.db'}?mode=ro", uri=True)
            try:
                return int(connection.execute(question).fetchone()[0])
            finally:
                connection.close()
        if self._outsider is None:
            self._outsider = Outsider(self._url).__enter__()
        return int(self._outsider.query(question)[0][0])


class OnPostgres(Ostinato):
    name: ClassVar[str] = "ostinato-postgres"
    server: ClassVar[str] = "postgres"


class OnMariadb(Ostinato):
    name: ClassVar[str] = "ostinato-mariadb"
    server: ClassVar[str] = "mariadb"


class OnSqlite(Ostinato):
    name: ClassVar[str] = "ostinato-sqlite"
    server: ClassVar[str] = "sqlite"


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
