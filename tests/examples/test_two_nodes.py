"""Two nodes and two workers as the README pastes them, and the proxies that docs/chaos.md puts between."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from house.project import ROOT
from support.chaos import until
from support.dev import clean_environment
from support.servers import fresh_database

_PORTS = ("8640", "8641", "8650", "8651", "18641", "15432")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Terminal:
    """Pastes blocks of a page into a shell, on ports and a database of its own."""

    def __init__(self, folder: Path, *, database: str, server: str) -> None:
        self.folder = folder
        self._database = database
        self._server = server
        self._ports = {port: str(_free_port()) for port in _PORTS}
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        script = bin_folder / "ostinato"
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -m ostinato.cli "$@"\n')
        script.chmod(0o755)
        self._environment = {
            **clean_environment(),
            "OSTINATO_DATABASE": database,
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
        }

    def block(self, page: str, first_line: str) -> str:
        """The block of a page that begins with this comment, as it is pasted here."""
        found = re.search(
            rf"^```\w*\n({re.escape(first_line)}\n.*?)^```$", (ROOT / page).read_text(), re.M | re.S
        )
        assert found is not None, first_line
        text = found[1]
        for published, ours in self._ports.items():
            text = re.sub(rf":{published}\b|/{published}\b", lambda at, ours=ours: at[0][0] + ours, text)
        behind = self._database.replace(self._server, f"127.0.0.1:{self._ports['15432']}")
        text = text.replace(f"postgresql://postgres@127.0.0.1:{self._ports['15432']}/shop", behind)
        text = text.replace("postgresql://postgres@127.0.0.1:5432/shop", self._database)
        return text.replace("127.0.0.1:5432", self._server)

    def paste(self, text: str, *, limit_s: float = 120) -> str:
        """What the shell prints; it ends with 0."""
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def listed(self, noun: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.paste(f"ostinato {noun} list --json"))
        return found

    def nodes(self) -> list[int]:
        """Partitions of the nodes that live."""
        return sorted(node["partitions"] for node in self.listed("node") if node["alive"])

    def end(self) -> None:
        for pidfile in self.folder.glob("*.pid"):
            try:
                os.kill(int(pidfile.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    # Longer than a test may take where the machine is busy; each command has a limit of its own.
    faulthandler.cancel_dump_traceback_later()
    with fresh_database("postgresql", has_schema=False) as database:
        found = re.search(r"@([^/@]+)/", database.url)
        assert found is not None
        made = Terminal(tmp_path, database=database.url, server=found[1])
        (tmp_path / "shop.py").write_text(made.block("README.md", "# shop.py"))
        try:
            yield made
        finally:
            made.end()


def test_two_nodes_and_two_workers_are_started_one_is_killed_and_proxies_are_put_between_them(
    terminal: Terminal,
) -> None:
    terminal.paste(terminal.block("README.md", "# two nodes, two workers"))
    until(lambda: terminal.nodes() == [32, 32])
    until(lambda: [len(worker["nodes"]) for worker in terminal.listed("worker")] == [2, 2])
    (terminal.folder / "proxies.yaml").write_text(terminal.block("docs/chaos.md", "# proxies.yaml"))
    lead = terminal.block("docs/chaos.md", "# lead node A through both proxies, then break them")
    told = terminal.paste(lead, limit_s=240)
    assert "workers-to-a: listens at " in told
    assert "not yet: " in told
    assert told.endswith("nothing was violated\n")
    look = terminal.block("README.md", "# look, kill, look again").splitlines()
    kill, trigger, end = look[3], look[5], look[6]
    terminal.paste(kill)
    until(lambda: terminal.nodes() == [64])
    assert "success" in terminal.paste(trigger)
    terminal.paste(end)
