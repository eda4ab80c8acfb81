"""Processes to break, and ``ostinato chaos`` as users call it on a scenario of a test's own."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil
import yaml
from support.dev import clean_environment

_NUMBERS = itertools.count(1)
_PATIENCE_S = 60.0


class Victim:
    """A process that does nothing until it is ended."""

    def __init__(self, words: Sequence[str] = (), **options: Any) -> None:
        self.mark = f"victim-{next(_NUMBERS)}-of-{id(self)}"
        self.words = list(words) or [sys.executable, "-c", "import signal; signal.pause()", self.mark]
        self.process = subprocess.Popen(self.words, **options)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def entry(self) -> dict[str, Any]:
        """As a scenario names it."""
        return {"pid": self.pid, "command": self.mark}

    @property
    def is_stopped(self) -> bool:
        return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED

    @property
    def is_living(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class MakeVictim(Protocol):
    """Starts a victim, which is ended with the test."""

    def __call__(self, **options: Any) -> Victim: ...


class Chaos:
    """``ostinato chaos`` on a scenario of its own, in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[subprocess.Popen[str]] = []

    def write(self, scenario: Mapping[str, Any]) -> Path:
        path = self.folder / "scenario.yaml"
        path.write_text(yaml.safe_dump({"version": 1, **scenario}, sort_keys=False), encoding="utf-8")
        return path

    def start(self, scenario: Mapping[str, Any], *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ostinato.cli", "chaos", str(self.write(scenario)), *options]
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._running.append(process)
        return process

    def run(
        self, scenario: Mapping[str, Any], *options: str, limit_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(scenario, *options)
        stdout, stderr = process.communicate(timeout=limit_s)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def report(self, scenario: Mapping[str, Any], *, status: int = 0, limit_s: float = 60) -> Any:
        """What a run with consent tells as JSON, after it has ended with `status`."""
        done = self.run(scenario, "--yes-break-things", "--json", limit_s=limit_s)
        assert done.returncode == status, done.stdout + done.stderr
        return json.loads(done.stdout)

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()


def until(look: Callable[[], object]) -> None:
    """Wait until it is so."""
    end = time.monotonic() + _PATIENCE_S
    while not look():
        assert time.monotonic() < end, "it has not come to that"
        time.sleep(0.01)
