"""A service that is told to stop before it has begun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("service", ["worker", "scheduler"])
def test_sigterm_before_anything_has_begun_is_a_clean_stop(service: str, tmp_path: Path) -> None:
    """The process stands in the midst of reading its settings, from a pipe that says nothing."""
    settings = tmp_path / "ostinato.toml"
    os.mkfifo(settings)
    process = subprocess.Popen(
        [sys.executable, "-m", "ostinato.cli", service], cwd=tmp_path, stderr=subprocess.PIPE
    )
    try:
        # Returns once the other side has opened it too.
        writer = os.open(settings, os.O_WRONLY)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
        os.close(writer)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, said) == (0, b"")


def test_a_worker_without_a_scheduler_ends_cleanly_and_at_once(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ostinato.cli",
            "worker",
            "--scheduler",
            "127.0.0.1:1",
            "--log-format",
            "json",
        ],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if b"scheduler_unreachable" in line:
                break
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.communicate()
    assert b"worker_drained" in said
