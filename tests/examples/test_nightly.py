"""The example that ``make demo`` runs, run as a newcomer runs it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
from house.project import ROOT


def _processes_of(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
        except psutil.Error:
            continue  # ended while we looked, or not ours to see
        if str(folder) in command:
            found.append(command)
    return found


def test_demo_ends_well_tells_why_each_attempt_was_retried_and_leaves_no_process(tmp_path: Path) -> None:
    """A copy, so that the run's files and processes are told from those of anybody else."""
    folder = tmp_path / "nightly"
    shutil.copytree(ROOT / "examples/nightly", folder, ignore=shutil.ignore_patterns("out", "__pycache__"))
    demo = subprocess.run(
        [sys.executable, str(folder / "run.py")], capture_output=True, text=True, timeout=100, check=False
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "FAIL" not in demo.stdout
    decisions = re.findall(r"^ +decided (.*)$", demo.stdout, re.MULTILINE)
    assert any("HTTP_503" in decision and "Retry-After" in decision for decision in decisions)
    assert any("EXIT_75 is on retry_on; retry 1 of 5; waits 2s" in decision for decision in decisions)
    assert any("ACCOUNT_CLOSED" in decision and "permanent" in decision for decision in decisions)
    assert _processes_of(folder) == []


def test_make_demo_installs_what_runs_ostinato_and_no_tools_of_contributors(tmp_path: Path) -> None:
    def installed(target: str) -> list[str]:
        told = subprocess.run(
            ["make", "--dry-run", target, f"VENV={tmp_path}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        return re.findall(r"--editable '(.*)'", told.stdout)

    assert installed("demo") == ["."]
    assert installed("setup") == [".[dev]"]
