"""``ostinato dev`` as a real process, and commands beside it on the same database."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

APP = """
import time

from ostinato import App, Permanent, Retry, cron

app = App("shop")


@app.task(triggers=[cron("0 6 * * *", timezone="Europe/Berlin")])
def add(first: int = 0, second: int = 1) -> int:
    print("adding\\x1b[31m")
    return first + second


@app.task(retry=Retry.fixed("10ms", max_retry=1))
async def flaky() -> None:
    raise ConnectionRefusedError("nobody listens")


app.shell("noisy", "echo one >&2; echo two >&2; exit 3", retry=Retry.none())


@app.task
def closed() -> None:
    raise Permanent("the account is closed")


@app.task(timeout="5m")
async def endless() -> None:
    import asyncio

    await asyncio.sleep(300)
"""


class Dev:
    """A running ``ostinato dev``; `said` is what it told at its start."""

    def __init__(self, process: subprocess.Popen[str], directory: Path, said: dict[str, Any]) -> None:
        self.process = process
        self.directory = directory
        self.said = said

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "ostinato.cli", *arguments]

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """A command in the same directory, hence on the same database."""
        return subprocess.run(
            self.command(*arguments),
            cwd=self.directory,
            env=clean_environment() | dict(env or {}),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )

    def json(self, *arguments: str) -> Any:
        """What a command that must succeed writes with ``--json``."""
        result = self.run(*arguments, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("OSTINATO_")}


@contextmanager
def running_dev(directory: Path, *options: str) -> Iterator[Dev]:
    """Start it in `directory` with an app of its own, wait until it works, end it with SIGINT."""
    (directory / "shop.py").write_text(APP, encoding="utf-8")
    with (directory / "dev.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "ostinato.cli",
                "dev",
                "shop.py",
                "--bind",
                "127.0.0.1:0",
                "--slots",
                "1",
                "--json",
                "--log-format",
                "json",
                *options,
            ],
            cwd=directory,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield Dev(process, directory, _first_words(process, directory))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def _first_words(process: subprocess.Popen[str], directory: Path) -> dict[str, Any]:
    """The JSON document that it writes once everything runs."""
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or lines[-1] != "}\n":
        line = process.stdout.readline()
        assert line, (directory / "dev.log").read_text(encoding="utf-8")
        lines.append(line)
    words: dict[str, Any] = json.loads("".join(lines))
    return words
