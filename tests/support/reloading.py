"""``ostinato dev`` as a real process whose files change under it, and what it says about that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from support.dev import clean_environment

Value = TypeVar("Value")

#: Takes a moment to import, runs until it is told to end, and says which code it is.
SHOP = """
import pathlib, time

from ostinato import App, Context, Retry

app = App("shop")
HERE = pathlib.Path.cwd()


@app.task(retry=Retry.fixed("10ms", max_retry=3))
def add(first: int = 0) -> int:
    return first + 1


@app.task
def slow(context: Context) -> str:
    with (HERE / f"ran-{context.instance_id}").open("a") as out:
        out.write("old\\n")
    while not (HERE / "go").exists():
        time.sleep(0.02)
    return "old"
"""


class ReloadingDev:
    """A running ``dev``; what it says goes to files, and every wait is on a condition."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes]) -> None:
        self.directory = directory
        self.process = process

    @property
    def said(self) -> str:
        """Everything on standard output so far."""
        return (self.directory / "dev.out").read_text(encoding="utf-8")

    @property
    def complained(self) -> str:
        """Everything on standard error so far, logs included."""
        return (self.directory / "dev.err").read_text(encoding="utf-8")

    def until(self, look: Callable[[], Value], *, within_s: float = 60) -> Value:
        """Poll until `look` gives something true."""
        end = time.monotonic() + within_s
        while not (value := look()):
            everything = f"{self.said}\n{self.complained}"
            assert time.monotonic() < end, everything
            assert self.process.poll() is None, everything
            time.sleep(0.02)
        return value

    def until_said(self, text: str, *, times: int = 1) -> None:
        """Wait for words on standard output."""
        self.until(lambda: self.said.count(text) >= times)

    def until_complained(self, text: str, *, times: int = 1) -> None:
        """Wait for words on standard error."""
        self.until(lambda: self.complained.count(text) >= times)

    def write(self, name: str, text: str) -> None:
        """As editors do: to a file beside it, then in one step to its place."""
        beside = self.directory / f"{name}.new~"
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, self.directory / name)

    def json(self, *arguments: str, status: int = 0) -> Any:
        """What a command writes with ``--json``."""
        done = subprocess.run(
            [sys.executable, "-m", "ostinato.cli", *arguments, "--json"],
            cwd=self.directory,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout)


def start_dev(directory: Path, *arguments: str) -> ReloadingDev:
    """Start it; whoever waits must end it."""
    with (directory / "dev.out").open("wb") as out, (directory / "dev.err").open("wb") as err:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "ostinato.cli", "dev", *arguments),
                *("--bind", "127.0.0.1:0", "--log-format", "text", "--log-level", "warning"),
            ],
            cwd=directory,
            env={**clean_environment(), "PYTHONUNBUFFERED": "1"},
            stdout=out,
            stderr=err,
        )
    return ReloadingDev(directory, process)


@contextmanager
def reloading_dev(directory: Path, *arguments: str) -> Iterator[ReloadingDev]:
    """Run it until the block ends, ready at its beginning; then Ctrl-C, which must end it well."""
    dev = start_dev(directory, *arguments)
    try:
        dev.until_said("Ctrl-C ends them")
        yield dev
    finally:
        (directory / "go").touch()
        dev.process.send_signal(signal.SIGINT)
        try:
            status = dev.process.wait(40)
        finally:
            dev.process.kill()
    assert status == 130, dev.complained
