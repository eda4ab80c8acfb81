"""``apply`` reads what is named whatever it is: pipes, standard input by its path, process substitutions."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.dev import clean_environment

DOCUMENT = "version: 1\ntasks:\n  - {name: hello, shell: {command: date}}\n"
_APPLY = f"{shlex.quote(sys.executable)} -m ostinato.cli apply --create"


@pytest.mark.parametrize(
    "command",
    [
        f"cat one.yaml | {_APPLY} -f /dev/stdin",
        f"{_APPLY} -f /dev/stdin < one.yaml",
        f"cat one.yaml | {_APPLY} -f -",
        f"{_APPLY} -f <(cat one.yaml)",
        f"{_APPLY} -f <(cat one.yaml) -f <(sed s/hello/bye/ one.yaml)",
        f"mkfifo pipe; (sleep 0.3; cat one.yaml > pipe) & {_APPLY} -f pipe",
    ],
    ids=["stdin-pipe", "stdin-file", "dash", "substitution", "two-substitutions", "named-pipe"],
)
def test_pipes_are_read_to_their_end(tmp_path: Path, command: str) -> None:
    (tmp_path / "one.yaml").write_text(DOCUMENT, encoding="utf-8")
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "hello" in done.stdout
    assert ("bye" in done.stdout) == ("bye" in command)


def test_fault_in_a_pipe_is_told_with_its_place(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, DOCUMENT.replace("shell", "shel").encode())
    os.close(writing)
    done = subprocess.run(
        [sys.executable, "-m", "ostinato.cli", "apply", "-f", f"/dev/fd/{reading}"],
        cwd=tmp_path,
        env=clean_environment(),
        pass_fds=[reading],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(reading)
    assert done.returncode == 2
    assert f"/dev/fd/{reading}:3:" in done.stderr
