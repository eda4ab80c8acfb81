"""The check after every test of a worker: what a task could leave behind is found, however it hides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from house.project import ROOT
from support.leaks import no_leaks

_ORPHAN = "(setsid env -i sh -c 'echo $$ > {note}; exec sleep 60' &) ; exit 0"

_LEAVING = """
import os, subprocess, threading

def test_leaves_a_process():
    subprocess.run(["sh", "-c", "(setsid env -i sleep 60 &) ; exit 0"], check=True)

def test_leaves_a_descriptor():
    os.pipe()

def test_leaves_a_thread():
    threading.Thread(target=threading.Event().wait, name="left-alone", daemon=True).start()

def test_leaves_nothing():
    subprocess.run(["true"], check=True)
"""


def _start_orphan(note: Path) -> None:
    subprocess.run(["sh", "-c", _ORPHAN.format(note=note)], check=True)
    end = time.monotonic() + 10
    while not (note.exists() and note.read_text().strip()):
        assert time.monotonic() < end


def test_an_orphan_in_a_session_of_its_own_with_an_empty_environment_is_found(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(AssertionError, match=r"child process: .*sleep 60"), no_leaks(settle_seconds=0.1):
        _start_orphan(note)
    orphan = psutil.Process(int(note.read_text()))
    assert orphan.ppid() == os.getpid()
    orphan.kill()
    orphan.wait()


def test_an_orphan_that_has_ended_is_reaped_and_is_no_leak(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with no_leaks():
        _start_orphan(note)
        os.kill(int(note.read_text()), signal.SIGKILL)
    assert not psutil.pid_exists(int(note.read_text()))


def test_an_ended_child_that_nobody_waited_for_is_found() -> None:
    with pytest.raises(AssertionError, match=r"child process: .*zombie"), no_leaks(settle_seconds=0.3):
        child = subprocess.Popen(["true"])
    child.wait()


def test_a_pipe_and_a_null_device_are_found() -> None:
    with pytest.raises(AssertionError, match=r"open file \d+: pipe"), no_leaks(settle_seconds=0.1):
        ends = os.pipe()
    with pytest.raises(AssertionError, match=r"open file \d+: /dev/null"), no_leaks(settle_seconds=0.1):
        null = os.open(os.devnull, os.O_RDONLY)
    for descriptor in (*ends, null):
        os.close(descriptor)


def test_the_check_runs_after_every_test_of_these_folders_and_fails_those_that_leave_something(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest((ROOT / "tests/conftest.py").read_text(encoding="utf-8"))
    folder = pytester.mkdir("worker")
    (folder / "test_leaving.py").write_text(_LEAVING, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    command += ["-o", f"pythonpath={ROOT / 'tests'}", "-W", "ignore", "-rE", "."]
    finished = subprocess.run(command, cwd=pytester.path, capture_output=True, text=True, check=False)
    told = finished.stdout
    assert "4 passed, 3 errors" in told
    for left in ("process", "descriptor", "thread"):
        assert f"test_leaves_a_{left}" in told
    assert "child process: " in told
    assert "thread: left-alone" in told
    assert "open file " in told
