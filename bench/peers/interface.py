"""What a comparison asks of a contender: take a backlog, work it off, say how much is done for good.

One object is one run, on a queue or database that nobody has used. Its programs are processes: a submitter
(``apps/submitting.py`` with the contender's app) and its own worker. A subclass names its app, its servers,
its worker's command and how completions are counted; what was chosen stands in `settings`, which the tables
repeat.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from struct import iter_unpack
from types import TracebackType
from typing import ClassVar, NamedTuple, Self

from kit.rounds import RunError
from kit.servers import Servers

APPS = Path(__file__).parent / "apps"
#: As many workers' processes as a CPU-bound pool should have.
CORES = os.cpu_count() or 1
_END_S = 30.0
_SUBMIT_S = 600.0


class Load(NamedTuple):
    """What the tasks are."""

    #: ``async``: `async def` where the contender has such tasks; ``def``: plain functions.
    kind: str = "async"
    #: Every task fails once and is retried at once; completions then count attempts.
    is_failing_once: bool = False

    @property
    def shown(self) -> str:
        """The keywords of the tasks."""
        return "async def" if self.kind == "async" else "def"


class Start(NamedTuple):
    """One task: when its submission began and when it started, in ns of the machine's monotonic clock."""

    submitted_ns: int
    started_ns: int


class Contender:
    """One run of one contender."""

    #: As ``--against`` names it.
    name: ClassVar[str]
    #: The server below, as ``Servers`` names it.
    server: ClassVar[str]
    #: What its programs import, all of the extras group ``bench``.
    modules: ClassVar[tuple[str, ...]]
    #: Its module in ``apps``.
    app: ClassVar[str]
    #: What was chosen for it, by its own documentation, and when a completion counts.
    settings: ClassVar[str]

    def __init__(self, *, servers: Servers, folder: Path, load: Load) -> None:
        self.servers = servers
        self.folder = folder
        self.load = load
        self._processes: list[subprocess.Popen[bytes]] = []

    # ── what a subclass says ──────────────────────────────────────────────────────────────────────────

    def own_environment(self) -> dict[str, str]:
        """Where its programs find queue or database: ``BENCH_URL`` and whatever else its app reads."""
        raise NotImplementedError

    def worker_command(self) -> list[str]:
        raise NotImplementedError

    def completed(self) -> int:
        """Tasks whose completion is committed, as seen from outside."""
        raise NotImplementedError

    def open(self) -> None:
        """Make what submissions need."""
        self.submitting("install")

    @classmethod
    def interpreter(cls) -> str:
        """What its programs run on."""
        return sys.executable

    @classmethod
    def why_not(cls, servers: Servers, load: Load) -> str:
        """Why it cannot take part here; empty where it can."""
        if load.is_failing_once:
            return "retries at once are measured of Ostinato alone"
        if missing := [name for name in cls.modules if importlib.util.find_spec(name) is None]:
            return f"{', '.join(missing)} not installed (pip install 'ostinato[bench]')"
        return servers.why_not(cls.server)

    # ── what a comparison does ────────────────────────────────────────────────────────────────────────

    @property
    def environment(self) -> dict[str, str]:
        """Of every process of the run."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OSTINATO_")}
        return {**kept, "BENCH_FOLDER": str(self.folder), "PYTHONPATH": str(APPS), **self._own}

    def submitting(self, *arguments: str) -> str:
        """What the submitter says at its end. Raises ``RunError`` where it fails."""
        done = subprocess.run(
            self._submitter(*arguments),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SUBMIT_S,
        )
        if done.returncode:
            raise RunError(f"submitter: {done.stderr[-1500:]}")
        return done.stdout

    def submit(self, count: int) -> float:
        """Submit `count` no-op tasks in the contender's best bulk; gives them a second."""
        return count / float(self.submitting("backlog", str(count)))

    def start_submitting(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A submitter that goes on meanwhile."""
        return self.start("submitter", self._submitter(*arguments))

    def start_workers(self) -> None:
        self.start("worker", self.worker_command())

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                # Pools and managers of workers end with them.
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def require_running(self) -> None:
        """Raise ``RunError`` where a process of the run has failed."""
        for process in self._processes:
            if process.poll():
                raise RunError(f"{process.args!r} ended with {process.returncode}: {self.log()}")

    def log(self) -> str:
        """The end of what its processes have said."""
        return "".join(path.read_text(errors="replace")[-1500:] for path in self.folder.glob("*.log"))

    def counted(self) -> int:
        """Completions that the contender's own processes have counted, for brokers that tell nobody."""
        return sum(
            int.from_bytes(path.read_bytes()[:8], "little") for path in self.folder.glob("completed-*")
        )

    def starts(self) -> Iterator[Start]:
        """Those of stamped tasks so far."""
        for path in self.folder.glob("started-*"):
            data = path.read_bytes()
            for submitted_ns, started_ns in iter_unpack("<QQ", data[: len(data) // 16 * 16]):
                yield Start(submitted_ns, started_ns)

    def _submitter(self, *arguments: str) -> list[str]:
        return [self.interpreter(), str(APPS / "submitting.py"), self.app, *arguments]

    def __enter__(self) -> Self:
        self._own = self.own_environment()
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """As an operator ends it; what does not listen, or has left children behind, is killed."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # nobody is left
