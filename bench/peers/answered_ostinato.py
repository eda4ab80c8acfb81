"""Ostinato over a database that is there, with workers that run nothing (``apps/answering.py``).

So what is measured is the scheduler: its CPU time, its memory, and its pace where it waits for nobody.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import ClassVar, NamedTuple

import psutil
from chaos.databases import upgrade
from kit.servers import Servers

from peers.interface import APPS, Load
from peers.ostinato_contender import Ostinato

_MB = 1024**2


class Taken(NamedTuple):
    """What the scheduler's process has taken so far."""

    cpu_us: float
    resident_mb: float


class AnsweredOstinato(Ostinato):
    """One run; its database stays."""

    name: ClassVar[str] = "ostinato"
    server: ClassVar[str] = ""

    def __init__(self, url: str, *, servers: Servers, folder: Path) -> None:
        super().__init__(servers=servers, folder=folder, load=Load())
        self._url = url
        self._process: psutil.Process | None = None

    def own_environment(self) -> dict[str, str]:
        return {"OSTINATO_DATABASE": self._url}

    def open(self) -> None:
        """Everything is there."""

    def start_scheduler(self, *, limit_s: float = 60.0) -> subprocess.Popen[bytes]:
        scheduler = super().start_scheduler(limit_s=limit_s)
        self._process = psutil.Process(scheduler.pid)
        return scheduler

    def start_answering(self, *, workers: int, slots: int) -> subprocess.Popen[bytes]:
        """So many workers with so many slots each, from when the first of them is connected on."""
        command = [sys.executable, str(APPS / "answering.py"), self._scheduler, str(workers), str(slots)]
        return self.start("answering", command)

    def completed(self) -> int:
        """Acknowledged to the workers, and so committed, in this run."""
        return self.counted()

    def taken(self) -> Taken:
        """By the scheduler, user and system time together."""
        assert self._process is not None, "it runs"
        times = self._process.cpu_times()
        return Taken((times.user + times.system) * 1e6, self._process.memory_info().rss / _MB)


def new_database(kind: str, *, servers: Servers, folder: Path, name: str, partitions: int = 64) -> str:
    """URL of a database with the newest schema and nothing in it."""
    url = f"sqlite:///{folder / name}.db" if kind == "sqlite" else servers.new_database(kind)
    upgrade(url, partitions=partitions)
    return url
