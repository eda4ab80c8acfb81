"""Peers over PostgreSQL: Procrastinate, PgQueuer, Oban. What is done is asked of the database."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import ClassVar

from chaos.databases import Outsider
from kit.rounds import RunError
from kit.servers import Servers

from peers.interface import APPS, Contender, Load

_OBAN_LIMIT = 100
_OBAN_PYTHON_MIN = (3, 12)
_OBAN = "oban>=0.6,<0.8"
#: Kept between runs, so that the second one installs nothing.
_OBAN_ENVIRONMENT = Path(__file__).parents[2] / "build" / "bench-oban"


class _OverPostgres(Contender):
    """A database of its own for each run."""

    server: ClassVar[str] = "postgres"
    #: Counts what is committed as done.
    question: ClassVar[str]
    _outsider: Outsider | None = None

    def own_environment(self) -> dict[str, str]:
        self._url = self.servers.new_database("postgres")
        return {"BENCH_URL": self._url, "BENCH_KIND": self.load.kind}

    def worker_command(self) -> list[str]:
        return [self.interpreter(), str(APPS / f"{self.app}.py")]

    def completed(self) -> int:
        if self._outsider is None:
            self._outsider = Outsider(self._url).__enter__()
        return int(self._outsider.query(self.question)[0][0])


class Procrastinate(_OverPostgres):
    name: ClassVar[str] = "procrastinate"
    modules = ("procrastinate", "psycopg_pool")
    app = "procrastinate_app"
    settings = "concurrency 20 with as many connections; counts once the job's row says succeeded"
    question = "select count(*) from procrastinate_jobs where status = 'succeeded'"


class PgQueuer(_OverPostgres):
    name: ClassVar[str] = "pgqueuer"
    modules = ("pgqueuer", "asyncpg", "uvloop")
    app = "pgqueuer_app"
    settings = "batches of 500, asyncpg pool of 4, uvloop; counts once its log says successful"
    question = "select count(*) from pgqueuer_log where status = 'successful'"

    @classmethod
    def why_not(cls, servers: Servers, load: Load) -> str:
        return "takes async def alone" if load.kind == "def" else super().why_not(servers, load)


class Oban(_OverPostgres):
    name: ClassVar[str] = "oban"
    modules = ()
    app = "oban_app"
    settings = f"queue limit {_OBAN_LIMIT}, pool of 10, its default; counts once the job's row says completed"
    question = "select count(*) from oban_jobs where state = 'completed'"

    @classmethod
    def why_not(cls, servers: Servers, load: Load) -> str:
        if not _python_for_oban():
            return f"needs Python {'.'.join(map(str, _OBAN_PYTHON_MIN))} or newer, and none is found"
        return super().why_not(servers, load)

    @classmethod
    def interpreter(cls) -> str:
        return _oban_interpreter()

    def worker_command(self) -> list[str]:
        return [
            *(self.interpreter(), "-m", "oban", "start", "--dsn", self._url, "--log-level", "WARNING"),
            *("--queues", f"default:{_OBAN_LIMIT}", "--cron-modules", "oban_app"),
        ]


@cache
def _python_for_oban() -> str:
    """An interpreter that is new enough and answers; empty where there is none."""
    if sys.version_info >= _OBAN_PYTHON_MIN:
        return sys.executable
    for minor in range(_OBAN_PYTHON_MIN[1], _OBAN_PYTHON_MIN[1] + 8):
        path = shutil.which(f"python3.{minor}")
        # A version manager puts a command on the path for versions that are not switched on.
        if (
            path
            and subprocess.run([path, "-m", "venv", "-h"], capture_output=True, check=False).returncode == 0
        ):
            return path
    for found in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3")):
        if tuple(map(int, found.parts[-3].split(".")[:2])) >= _OBAN_PYTHON_MIN:
            return str(found)
    return ""


@cache
def _oban_interpreter() -> str:
    """Of an environment that has Oban. Raises ``RunError`` where it cannot be installed."""
    interpreter = _OBAN_ENVIRONMENT / "bin" / "python"
    for command in (
        [_python_for_oban(), "-m", "venv", str(_OBAN_ENVIRONMENT)],
        [str(interpreter), "-m", "pip", "install", "--quiet", _OBAN],
    ):
        if interpreter.exists() and _has_oban(interpreter):
            break
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RunError(f"{' '.join(command)}: {done.stderr[-500:]}")
    return str(interpreter)


def _has_oban(interpreter: Path) -> bool:
    return (
        subprocess.run([interpreter, "-c", "import oban"], capture_output=True, check=False).returncode == 0
    )
