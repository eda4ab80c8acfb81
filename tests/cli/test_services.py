"""``ostinato scheduler`` and ``ostinato worker`` as two services that meet on the network."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.dev import APP, clean_environment


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ostinato.cli", *arguments]


def _start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    with (directory / f"{arguments[0]}.log").open("w", encoding="utf-8") as log:
        return subprocess.Popen(
            _command(*arguments),
            cwd=directory,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


def _run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(*arguments),
        cwd=directory,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _told(scheduler: subprocess.Popen[str]) -> dict[str, Any]:
    assert scheduler.stdout is not None
    lines = []
    while not lines or lines[-1] != "}\n":
        lines.append(scheduler.stdout.readline())
        assert lines[-1], "the scheduler ended before it was ready"
    told: dict[str, Any] = json.loads("".join(lines))
    return told


def test_worker_of_another_process_runs_tasks_and_both_stop_cleanly_at_sigterm(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP, encoding="utf-8")
    scheduler = _start(
        tmp_path, "scheduler", "--bind", "127.0.0.1:0", "--worker-bind", "127.0.0.1:0", "--json"
    )
    address = _told(scheduler)["workers"]
    worker = _start(tmp_path, "worker", "--app", "shop.py", "--scheduler", address, "--slots", "1")
    try:
        while (triggered := _run(tmp_path, "task", "trigger", "add", "--wait", "--json")).returncode == 5:
            assert worker.poll() is None, "the worker ended before it had declared its tasks"
        assert triggered.returncode == 0, triggered.stderr
        assert json.loads(triggered.stdout)["result"] == 1
    finally:
        statuses = []
        for process in (worker, scheduler):
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
            statuses.append(process.returncode)
    assert statuses == [0, 0]
    for name in ("worker", "scheduler"):
        lines = (tmp_path / f"{name}.log").read_text(encoding="utf-8").splitlines()
        assert {json.loads(line)["service_name"] for line in lines} == {f"ostinato-{name}"}


def test_worker_of_which_nothing_can_be_imported_ends_with_2_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nosuchmodule", encoding="utf-8")
    for apps in ("broken.py", "broken.py,nope.py"):
        result = _run(tmp_path, "worker", "--app", apps, "--scheduler", "127.0.0.1:1")
        assert result.returncode == 2
        assert "INVALID_APP" in result.stderr
        assert "broken.py could not be imported: ModuleNotFoundError" in result.stderr
        assert "nosuchmodule" in result.stderr
