"""Scheduler nodes and workers as processes that are killed and started again; their ports stay theirs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

_LISTEN_S = 60.0
_END_S = 60.0


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Member:
    """One process of the cluster, and the next one in its place after a kill."""

    def __init__(
        self, name: str, arguments: Sequence[str], *, folder: Path, environment: dict[str, str]
    ) -> None:
        self.name = name
        self._arguments = list(arguments)
        self._folder = folder
        self.environment = environment
        self._running: subprocess.Popen[bytes] | None = None
        self.kill_count = 0

    @property
    def pid(self) -> int:
        assert self._running is not None, f"{self.name} was never started"
        return self._running.pid

    @property
    def is_running(self) -> bool:
        return self._running is not None and self._running.poll() is None

    def start(self) -> None:
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._running = subprocess.Popen(
                [sys.executable, "-m", "ostinato.cli", *self._arguments],
                cwd=self._folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        """As a crash ends it: nothing is said to anybody."""
        assert self._running is not None, f"{self.name} was never started"
        self._running.kill()
        self._running.wait()
        self.kill_count += 1

    def stop(self) -> None:
        if self._running is None:
            return
        self._running.send_signal(signal.SIGTERM)
        try:
            self._running.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._running.kill()
            self._running.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self._running is not None, f"{self.name} was never started"
        self._running.send_signal(number)

    def log(self) -> str:
        return (self._folder / f"{self.name}.log").read_text("utf-8", "replace")


class Node(Member):
    """A scheduler node."""

    def __init__(self, number: int, *, folder: Path, environment: dict[str, str]) -> None:
        self.api_port = free_port()
        self.worker_port = free_port()
        arguments = [
            "scheduler",
            *("--bind", f"127.0.0.1:{self.api_port}", "--worker-bind", f"127.0.0.1:{self.worker_port}"),
        ]
        super().__init__(f"node-{number}", arguments, folder=folder, environment=environment)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.worker_port}"

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.api_port}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def wait_until_ready(self) -> None:
        end = time.monotonic() + _LISTEN_S
        while not self.is_ready():
            if time.monotonic() > end or not self.is_running:
                raise SystemExit(f"{self.name} is not ready:\n{self.log()[-3000:]}")
            time.sleep(0.05)


class Worker(Member):
    """A worker that knows the given nodes."""

    def __init__(
        self,
        number: int,
        nodes: Sequence[Node],
        *,
        app: str,
        slots: int,
        async_slots: int,
        folder: Path,
        environment: dict[str, str],
    ) -> None:
        arguments = [
            "worker",
            *("--scheduler", ",".join(node.address for node in nodes)),
            *("--app", app, "--slots", str(slots), "--async-slots", str(async_slots)),
            *("--data-dir", str(folder / f"worker-{number}")),
        ]
        named = {**environment, "OSTINATO_WORKER_NAME": f"worker-{number}"}
        super().__init__(f"worker-{number}", arguments, folder=folder, environment=named)


def environment_of(folder: Path, database: str, *, worker_lease: str) -> dict[str, str]:
    """What every process of the cluster is given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OSTINATO_")}
    return {
        **kept,
        "OSTINATO_DATABASE": database,
        "OSTINATO_WORKER_LEASE": worker_lease,
        "PYTHONPATH": str(folder),
    }
