"""Ways to call the command line: in this process, as users do, at a terminal, and beside a running node."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest
from support.commands import Execute, Invoke
from support.dev import Dev, clean_environment
from typer.testing import CliRunner, Result

from ostinato.clock import SystemClock
from ostinato.store.from_url import open_store_from_url

_TALK = """
from pathlib import Path

from ostinato import App, Retry

app = App("talk")
here = Path(__file__).parent

app.shell("talker", f"echo one; until [ -e {here}/go ]; do sleep 0.05; done; echo two", retry=Retry.none())
app.shell(
    "twice",
    f"echo trying; [ -e {here}/tried ] || {{ touch {here}/tried; exit 3; }}",
    retry=Retry.fixed("10ms", max_retry=1),
)
app.shell("later", "exit 3", retry=Retry.fixed("1h", max_retry=1))
app.shell("wide", "printf '日本語 \\\\033[31m שלום\\\\n'; exit 4", retry=Retry.none())
app.shell("spare", "true", retry=Retry.none())


@app.task
def add(first: int = 0, second: int = 1) -> int:
    return first + second


@app.task(timeout="5m")
async def endless() -> None:
    import asyncio

    print("still here")
    await asyncio.sleep(300)
"""


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invoke:
    """Runs a command in this process, in an empty directory; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OSTINATO_")]:
        monkeypatch.delenv(name)
    from ostinato.cli.main import app

    def call(*arguments: str, env: Mapping[str, str] | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), env=dict(env or {}), prog_name="ostinato")

    return call


@pytest.fixture
def execute(tmp_path: Path) -> Execute:
    """Runs a command as a process of its own, in an empty directory, without a terminal."""

    def call(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OSTINATO_")}
        return subprocess.run(
            [sys.executable, "-m", "ostinato.cli", *arguments],
            cwd=tmp_path,
            env=kept | dict(env or {}),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )

    return call


@pytest.fixture
def database(tmp_path: Path) -> str:
    """URL of a new database that no scheduler has."""
    url = f"sqlite:///{tmp_path}/ostinato.db"

    async def make() -> None:
        store = open_store_from_url(url, clock=SystemClock())
        await store.open()
        await store.close()

    asyncio.run(make())
    return url


@pytest.fixture(scope="session")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """``ostinato dev`` with tasks that write, wait and fail; for tests that leave none of them disabled."""
    directory = tmp_path_factory.mktemp("talk")
    (directory / "talk.py").write_text(_TALK, encoding="utf-8")
    arguments = ["dev", "talk.py", "--bind", "127.0.0.1:0", "--slots", "2", "--json", "--log-format", "json"]
    with (directory / "dev.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ostinato.cli", *arguments],
            cwd=directory,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield Dev(process, directory, _first_document(process, directory))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def _first_document(process: subprocess.Popen[str], directory: Path) -> dict[str, Any]:
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or lines[-1] != "}\n":
        lines.append(process.stdout.readline())
        assert lines[-1], (directory / "dev.log").read_text(encoding="utf-8")
    said: dict[str, Any] = json.loads("".join(lines))
    return said


class Terminal:
    """A command that has a terminal for stdin, stdout and stderr."""

    def __init__(self, process: subprocess.Popen[bytes], controller: int) -> None:
        self.process = process
        self.shown = ""
        self._controller = controller

    def read_until(self, *texts: str) -> str:
        """Everything that was shown up to where all of `texts` have been; fails after 60 s without."""
        while not all(text in self.shown for text in texts):
            assert self._read(), f"ended without {texts}: {self.shown!r}"
        return self.shown

    def type(self, text: str) -> None:
        os.write(self._controller, text.encode())

    def end(self) -> int:
        """What it ended with, once all that it showed has been read."""
        while self._read():
            pass
        return self.process.wait(timeout=30)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._controller], [], [], 60)
        assert ready, f"nothing more was shown: {self.shown!r}"
        try:
            read = os.read(self._controller, 65_536)
        except OSError:  # the other end is closed
            return False
        self.shown += read.decode("utf-8", "replace")
        return bool(read)


class OpenTerminal(Protocol):
    """Runs a command at a terminal of its own."""

    def __call__(self, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> Terminal: ...


@pytest.fixture
def terminal() -> Iterator[OpenTerminal]:
    """Runs commands at terminals of 80 columns and 24 rows, unless told otherwise."""
    opened: list[tuple[subprocess.Popen[bytes], int]] = []

    def call(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> Terminal:
        controller, end = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "ostinato.cli", *arguments],
            cwd=cwd,
            env=clean_environment() | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"} | dict(env or {}),
            stdin=end,
            stdout=end,
            stderr=end,
            start_new_session=True,
        )
        os.close(end)
        opened.append((process, controller))
        return Terminal(process, controller)

    yield call
    for process, controller in opened:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(controller)
