"""Ways to call the command line: in this process, and as users do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.commands import Execute, Invoke
from typer.testing import CliRunner, Result


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
