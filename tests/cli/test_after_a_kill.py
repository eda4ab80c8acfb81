"""What is told of nodes and workers while a scheduler lives, and after it was killed without a word."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.dev import APP, clean_environment


def _start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    with (directory / f"{arguments[0]}.log").open("a", encoding="utf-8") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "ostinato.cli", *arguments],
            cwd=directory,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


class Services:
    """A scheduler on ports of its own and a worker, in one folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # Of a port that the system chooses the row of the node says nothing.
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.scheduler = _start(
            directory, "scheduler", "--bind", "127.0.0.1:0", "--worker-bind", self.address, "--json"
        )
        assert self.scheduler.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1] != "}\n":
            lines.append(self.scheduler.stdout.readline())
            assert lines[-1], "the scheduler ended before it was ready"
        self.worker = _start(directory, "worker", "--app", "shop.py", "--scheduler", self.address)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ostinato.cli", *arguments],
            cwd=self.directory,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def until(self, look: Callable[[], bool]) -> None:
        while not look():
            assert self.scheduler.poll() is None
            assert self.worker.poll() is None

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def findings(self, *options: str, status: int) -> list[str]:
        """Lines of doctor on a port for the API that is free."""
        done = self.run("doctor", "--bind", "127.0.0.1:0", *options)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout.splitlines()


@contextmanager
def _services(directory: Path) -> Iterator[Services]:
    (directory / "shop.py").write_text(APP, encoding="utf-8")
    services = Services(directory)
    try:
        yield services
    finally:
        for process in (services.worker, services.scheduler):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate(timeout=30)


def test_scheduler_that_lives_is_told_from_one_that_was_killed(tmp_path: Path) -> None:
    with _services(tmp_path) as services:
        services.until(lambda: [row["state"] for row in services.json("worker", "list")] == ["connected"])
        assert [node["alive"] for node in services.json("node", "list")] == [True]
        assert "alive" in services.run("node", "list").stdout.splitlines()[1].split()
        # Only the port of the workers is known, as after a start with another --bind.
        lines = services.findings("--worker-bind", services.address, status=0)
        assert any(f"{services.address} is taken by a scheduler of ours" in line for line in lines), lines
        triggered = services.run("task", "trigger", "add")
        assert (triggered.returncode, triggered.stderr) == (0, "")

        services.scheduler.kill()
        services.scheduler.wait(timeout=30)
        assert [node["alive"] for node in services.json("node", "list")] == [False]
        assert "silent" in services.run("node", "list").stdout.splitlines()[1].split()
        assert [row["state"] for row in services.json("worker", "list")] == ["unknown"]
        assert (
            "state: unknown\n"
            in services.run("worker", "show", services.json("worker", "list")[0]["id"]).stdout
        )
        waiting = services.run("task", "trigger", "add")
        assert waiting.returncode == 0
        assert waiting.stderr.startswith("no scheduler is running: it is recorded, and starts when one does")
        lines = services.findings(status=1)
        assert any(
            line.startswith("fail  scheduler: node ") and "no sign of life" in line for line in lines
        ), lines
        assert any(
            line.startswith("fail  workers: 1 instance waits: no worker can run default/add")
            for line in lines
        ), lines


def test_trigger_without_any_scheduler_says_how_to_start_one(tmp_path: Path) -> None:
    with _services(tmp_path) as services:
        services.until(lambda: services.run("task", "show", "add").returncode == 0)
        services.scheduler.send_signal(signal.SIGTERM)
        services.scheduler.wait(timeout=30)
        said = services.run("task", "trigger", "add").stderr
        assert "ostinato dev APP" in said
        quiet = services.run("task", "trigger", "add", "--json")
        assert (quiet.returncode, quiet.stderr) == (0, "")
