"""Applies at full size, at the same time, killed, and beside a running ``ostinato dev``."""

from __future__ import annotations

import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.commands import Execute
from support.dev import Dev, clean_environment, running_dev

COMMAND = [sys.executable, "-m", "ostinato.cli"]
#: Longest that anything here is waited for; generous, as nothing is measured by it.
PATIENCE_SECONDS = 100


def document(count: int, *, namespace: str = "default", **fields: str) -> str:
    """`count` tasks like those of real files."""
    lines = ["version: 1", f"namespace: {namespace}", "tasks:"]
    for number in range(count):
        lines += [
            f"  - name: task_{number:05}",
            '    shell: {command: "echo $WHO", env: {WHO: me}}',
            '    triggers: [{cron: "0 2 * * *", timezone: Europe/Berlin}]',
            "    retry: {backoff: exponential, interval: 5s, max_retry: 3, retry_on: [EXIT_75]}",
            "    labels: {zone: eu}",
        ]
        lines += [f"    {field}: {value}" for field, value in fields.items()]
    return "\n".join(lines) + "\n"


def rows_of(folder: Path, query: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(folder / "ostinato.db")
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def size_of(path: Path) -> int:
    """Size in bytes; 0 for a file that is not there, or no longer."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens in another process."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_five_thousand_tasks_in_one_file_take_seconds(tmp_path: Path) -> None:
    """Processor time of the command, which does not depend on what else the machine does."""
    (tmp_path / "many.yaml").write_text(document(5_000), encoding="utf-8")
    for outcome in ("created", "unchanged"):
        before = os.times().children_user
        applying = started(tmp_path, "apply", "--create", "-f", "many.yaml")
        shown, complaint = applying.communicate(timeout=PATIENCE_SECONDS)
        assert applying.returncode == 0, complaint
        assert shown.splitlines()[-1] == f"{outcome} default/task_04999 (version 1)"
        assert os.times().children_user - before < 10
    assert rows_of(tmp_path, "SELECT count(*), max(version) FROM task") == [(5_000, 1)]


def test_two_applies_at_once_leave_the_whole_of_one_of_them(tmp_path: Path) -> None:
    for name, priority in (("a.yaml", "1"), ("b.yaml", "9")):
        (tmp_path / name).write_text(document(300, priority=priority), encoding="utf-8")
    running = [
        started(tmp_path, "apply", "--create", "-f", name, "--json")
        for name in ("a.yaml", "b.yaml", "a.yaml")
    ]
    for process in running:
        _, complaint = process.communicate(timeout=PATIENCE_SECONDS)
        # Either it was done, or somebody else was first and nothing of it was.
        assert process.returncode in (0, 4), complaint
        assert (process.returncode == 4) == ("VERSION_CONFLICT" in complaint)
    assert 0 in [process.returncode for process in running]
    newest = rows_of(
        tmp_path,
        "SELECT DISTINCT task.version, json_extract(CAST(definition AS TEXT), '$.priority') FROM task"
        " JOIN task_definition USING (namespace, name, version)",
    )
    assert len(newest) == 1, newest


def test_the_same_apply_from_several_processes_at_once_is_harmless(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(document(50), encoding="utf-8")
    running = [started(tmp_path, "apply", "--create", "-f", "a.yaml") for _ in range(4)]
    for process in running:
        _, complaint = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, complaint
    assert rows_of(tmp_path, "SELECT count(*), max(version) FROM task") == [(50, 1)]


@pytest.mark.parametrize("written_bytes", [1, 100_000, 500_000])
def test_an_apply_that_is_killed_has_written_all_or_nothing(tmp_path: Path, written_bytes: int) -> None:
    """Killed once the write-ahead log holds some of its transaction; a second apply does it all."""
    (tmp_path / "one.yaml").write_text(document(1, namespace="other"), encoding="utf-8")
    (tmp_path / "many.yaml").write_text(document(2_000), encoding="utf-8")
    first = started(tmp_path, "apply", "--create", "-f", "one.yaml")
    first.communicate(timeout=PATIENCE_SECONDS)
    assert first.returncode == 0
    log = tmp_path / "ostinato.db-wal"
    killed = started(tmp_path, "apply", "--create", "-f", "many.yaml")
    until(lambda: killed.poll() is not None or size_of(log) >= written_bytes)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=PATIENCE_SECONDS)
    count = rows_of(tmp_path, "SELECT count(*) FROM task WHERE namespace = 'default'")[0][0]
    assert count in (0, 2_000)
    again = started(tmp_path, "apply", "--create", "-f", "many.yaml")
    _, complaint = again.communicate(timeout=PATIENCE_SECONDS)
    assert again.returncode == 0, complaint
    assert rows_of(tmp_path, "SELECT count(*), max(version) FROM task") == [(2_001, 1)]


# ── prune ─────────────────────────────────────────────────────────────────────────────────────────────


def _write(folder: Path, *names: str) -> None:
    lines = ["version: 1", "tasks:", *(f"  - {{name: {name}, shell: {{command: 'true'}}}}" for name in names)]
    (folder / "tasks.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_prune_without_a_terminal_or_a_yes_writes_nothing(execute: Execute, tmp_path: Path) -> None:
    _write(tmp_path, "a", "b")
    assert execute("apply", "--create", "-f", "tasks.yaml").returncode == 0
    _write(tmp_path, "b", "c")
    refused = execute("apply", "--create", "-f", "tasks.yaml", "--prune")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "default/a" in refused.stderr
    assert "--yes" in refused.stderr
    assert rows_of(tmp_path, "SELECT name FROM task ORDER BY 1") == [("a",), ("b",)]
    # Where nothing would be deleted nobody is asked.
    _write(tmp_path, "a", "b", "c")
    assert execute("apply", "--create", "-f", "tasks.yaml", "--prune").returncode == 0


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_prune_without_a_scheduler_says_what_is_done_and_what_is_recorded(
    execute: Execute, tmp_path: Path, form: list[str]
) -> None:
    _write(tmp_path, "a", "b")
    assert execute("apply", "--create", "-f", "tasks.yaml").returncode == 0
    _write(tmp_path, "b", "c")
    result = execute("apply", "--create", "-f", "tasks.yaml", "--prune", "--yes", *form)
    assert result.returncode == 3
    assert "SCHEDULER_UNREACHABLE" in result.stderr
    assert "1 task is not deleted yet" in result.stderr
    if form:
        shown = {change["name"]: change["action"] for change in json.loads(result.stdout)["changes"]}
        assert shown == {"b": "unchanged", "c": "create", "a": "delete"}
    else:
        assert result.stdout == "unchanged default/b (version 1)\ncreated default/c (version 1)\n"
    assert rows_of(tmp_path, "SELECT name FROM task ORDER BY 1") == [("a",), ("b",), ("c",)]


def test_prune_asks_at_a_terminal_and_no_means_that_nothing_is_written(
    execute: Execute, tmp_path: Path
) -> None:
    _write(tmp_path, "a")
    assert execute("apply", "--create", "-f", "tasks.yaml").returncode == 0
    _write(tmp_path, "b")
    for answer, status, names in (("n\n", 1, ["a"]), ("\x03", 1, ["a"]), ("y\n", 3, ["a", "b"])):
        code, shown = _at_a_terminal(
            tmp_path, "apply", "--create", "-f", "tasks.yaml", "--prune", answer=answer
        )
        assert "to delete: default/a" in shown
        assert code == status or (answer == "\x03" and code == 130), shown
        assert "Traceback" not in shown
        assert [row[0] for row in rows_of(tmp_path, "SELECT name FROM task ORDER BY 1")] == names


def _at_a_terminal(folder: Path, *arguments: str, answer: str) -> tuple[int, str]:
    """Status and everything shown of a command on a pseudo-terminal that is answered once it asks."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execve(sys.executable, [*COMMAND, *arguments], {**clean_environment(), "TERM": "xterm"})
    shown = b""
    answered = False
    try:
        while True:
            try:
                piece = os.read(terminal, 4096)
            except OSError:
                break  # Linux says so when the other side has ended
            if not piece:
                break
            shown += piece
            if not answered and b"[y/N]" in shown:
                os.write(terminal, answer.encode())
                answered = True
    finally:
        os.close(terminal)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status), shown.decode()


def test_a_diff_at_a_terminal_is_coloured_unless_told_otherwise(execute: Execute, tmp_path: Path) -> None:
    _write(tmp_path, "a")
    assert execute("apply", "--create", "-f", "tasks.yaml").returncode == 0
    _write(tmp_path, "b")
    arguments = ("apply", "--create", "-f", "tasks.yaml", "--diff")
    assert "\x1b[32m+name: b\x1b[0m" in _at_a_terminal(tmp_path, *arguments, answer="")[1]
    assert "\x1b" not in _at_a_terminal(tmp_path, *arguments, "--color", "never", answer="")[1]


# ── beside a scheduler ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running_dev(tmp_path_factory.mktemp("dev")) as running:
        yield running


def _put(dev: Dev, *entries: str) -> None:
    lines = ["version: 1", "tasks:", *(f"  - {entry}" for entry in entries)]
    (dev.directory / "tasks.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_the_next_fire_is_shown_and_a_prune_leaves_tasks_of_the_app(dev: Dev) -> None:
    _put(
        dev,
        "{name: nightly, shell: {command: 'true'}, triggers: [{cron: '0 2 * * *'}]}",
        "{name: gone, shell: {command: 'true'}}",
    )
    result = dev.run("apply", "--create", "-f", "tasks.yaml")
    assert result.returncode == 0, result.stderr
    line = result.stdout.splitlines()[0]
    assert line.startswith("created default/nightly (version 1), next fire 20")
    assert line.endswith("T02:00:00Z")
    _put(dev, "{name: renamed, shell: {command: 'true'}}")
    pruned = dev.run("apply", "--create", "-f", "tasks.yaml", "--prune", "--yes")
    assert pruned.returncode == 0, pruned.stderr
    assert pruned.stdout.splitlines() == [
        "created default/renamed (version 1)",
        "deleted default/gone",
        "deleted default/nightly",
    ]
    names = {task["name"] for task in dev.json("task", "list")}
    assert names == {"add", "flaky", "closed", "endless", "noisy", "renamed"}


def test_a_running_instance_keeps_its_version_while_its_task_becomes_another(dev: Dev) -> None:
    release = dev.directory / "release"
    waiting = f"while [ ! -e {release} ]; do sleep 0.05; done; echo old"
    _put(dev, f"{{name: edited, shell: {{command: '{waiting}'}}}}")
    assert dev.run("apply", "--create", "-f", "tasks.yaml").returncode == 0
    old = dev.run("task", "trigger", "edited").stdout.strip()
    until(lambda: dev.json("instance", "show", old)["state"] == "running")
    _put(dev, "{name: edited, shell: {command: 'echo new'}}")
    changed = dev.run("apply", "--create", "-f", "tasks.yaml")
    assert changed.stdout == "changed default/edited (version 2)\n", changed.stderr
    release.touch()
    until(lambda: dev.json("instance", "show", old)["state"] == "success")
    assert dev.json("instance", "show", old)["task_version"] == 1
    assert "old" in dev.run("instance", "logs", old).stdout
    new = json.loads(dev.run("task", "trigger", "edited", "--wait", "--json").stdout)
    assert new["task_version"] == 2
    assert "new" in dev.run("instance", "logs", new["id"]).stdout


def test_an_export_of_everything_says_what_belongs_to_an_app_and_applies_unchanged(dev: Dev) -> None:
    _put(dev, "{name: of_a_file, shell: {command: 'true'}}")
    assert dev.run("apply", "--create", "-f", "tasks.yaml").returncode == 0
    exported = dev.run("export")
    assert exported.returncode == 0, exported.stderr
    comment = [line.lstrip("# ") for line in exported.stdout.splitlines() if line.startswith("#")]
    assert {"add", "flaky", "closed", "endless", "noisy"} <= set(comment)
    assert "of_a_file" not in comment
    (dev.directory / "all.yaml").write_text(exported.stdout, encoding="utf-8")
    same = dev.run("apply", "--create", "-f", "all.yaml", "--diff")
    assert (same.returncode, same.stdout) == (0, ""), same.stderr
    only = dev.json("export", "--origin", "document")
    assert "add" not in {entry["name"] for entry in only["tasks"]}
    assert "of_a_file" in {entry["name"] for entry in only["tasks"]}
