"""C195: every command with readers that leave, no locale, narrow terminals, JSON alone on stdout, Ctrl-C."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.dev import clean_environment

WIDE = "日本語 \u05e9\u05dc\u05d5\u05dd \U0001f4be"
#: Letters of Latin-1 and others, none that YAML would put within quotes by itself.
PLAIN = "né 日本語"
DOCUMENT: dict[str, Any] = {
    "version": 1,
    "tasks": [
        {
            "name": f"job-{number}",
            "shell": {"command": f"echo {PLAIN}"},
            "description": WIDE,
            "triggers": [{"cron": "0 2 * * *"}],
        }
        for number in range(40)
    ],
}

#: Commands that end by themselves, with the exit code that they have here.
ENDING: tuple[tuple[str, int], ...] = (
    ("apply -f tasks.json", 0),
    ("apply -f tasks.json --dry-run", 0),
    ("apply -f changed.json --diff", 1),
    ("export", 0),
    ("export --json", 0),
    ("schema", 0),
    ("task list", 0),
    ("task show job-1", 0),
    ("instance list", 0),
    ("instance list --count", 0),
    ("instance show {id}", 0),
    ("instance logs {id}", 0),
    ("worker list", 0),
    ("node list", 0),
    ("partition list", 0),
    ("namespace list", 0),
    ("cron next * * * * * --count 50", 0),
    # Something waits here, and there is no worker for it.
    ("doctor --bind 127.0.0.1:0 --worker-bind 127.0.0.1:0", 1),
    ("completion bash", 0),
    ("completion zsh", 0),
    ("completion fish", 0),
    ("version", 0),
    ("--help", 0),
)
#: Commands that would go on for ever.
ENDLESS = (
    "task list --watch --interval 100ms",
    "task list --watch --interval 100ms --json",
    "instance list --watch --interval 100ms",
    "instance show {id} --watch --interval 100ms",
    "worker list --watch --interval 100ms",
    "node list --watch --interval 100ms --json",
    "partition list --watch --interval 100ms",
)


class Place:
    """A directory with a database that has tasks and one instance, and no scheduler."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.instance_id = ""

    def words(self, command: str) -> list[str]:
        given = command.replace("* * * * *", "EVERY").format(id=self.instance_id).split()
        return [
            sys.executable,
            "-m",
            "ostinato.cli",
            *("* * * * *" if word == "EVERY" else word for word in given),
        ]

    def count(self, task: str) -> int:
        """Instances of a task that wait."""
        connection = sqlite3.connect(self.directory / "ostinato.db", timeout=10)
        try:
            query = "SELECT count(*) FROM instance WHERE task = ? AND state = 'pending'"
            return int(connection.execute(query, (task,)).fetchone()[0])
        finally:
            connection.close()

    def run(self, command: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return self._run(self.words(command), env)

    def shell(self, script: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return self._run(["bash", "-c", script], env)

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        return clean_environment() | {"PYTHONUTF8": "0", "LC_ALL": "C.UTF-8"} | dict(env or {})

    def encoded(self, command: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
        """What it writes as it is, in whatever encoding."""
        return subprocess.run(
            self.words(command),
            cwd=self.directory,
            env=self.environment(env),
            capture_output=True,
            timeout=60,
            check=False,
        )

    def _run(self, words: list[str], env: Mapping[str, str] | None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=self.directory,
            env=self.environment(env),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    made = Place(tmp_path_factory.mktemp("place"))
    (made.directory / "tasks.json").write_text(json.dumps(DOCUMENT), encoding="utf-8")
    changed = {"version": 1, "tasks": [{**task, "description": f"{WIDE}!"} for task in DOCUMENT["tasks"]]}
    (made.directory / "changed.json").write_text(json.dumps(changed), encoding="utf-8")
    assert made.run("apply -f tasks.json --create").returncode == 0
    submitted = made.run("task trigger job-1 --json")
    made.instance_id = json.loads(submitted.stdout)["instance_id"]
    return made


@pytest.mark.parametrize(("command", "status"), ENDING)
def test_c195_reader_that_leaves_after_a_line_is_no_error_of_any_command(
    place: Place, command: str, status: int
) -> None:
    result = place.shell(f"{shlex.join(place.words(command))} | head -1; echo ${{PIPESTATUS[0]}}")
    assert "Traceback" not in result.stderr
    assert "BrokenPipe" not in result.stderr
    assert int(result.stdout.splitlines()[-1]) in {0, status}, result.stderr


@pytest.mark.parametrize("command", ENDLESS)
def test_c195_watch_whose_reader_leaves_ends_quietly(place: Place, command: str) -> None:
    result = place.shell(f"{shlex.join(place.words(command))} | head -1; echo ${{PIPESTATUS[0]}}")
    assert result.stderr == ""
    assert result.stdout.splitlines()[-1] == "0"


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C", "LANG": "C", "COLUMNS": "20"},
        {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "COLUMNS": "1"},
        {"LC_ALL": "C", "PYTHONIOENCODING": "latin-1", "TERM": "dumb"},
    ],
    ids=["narrow", "ascii", "latin-1"],
)
def test_c195_every_command_works_without_a_locale_and_in_twenty_columns(
    place: Place, env: dict[str, str]
) -> None:
    for command, status in ENDING:
        result = place.encoded(command, env)
        assert result.returncode == status, (command, result.stderr)
        assert b"Traceback" not in result.stderr, command
        assert result.stdout or b"written nothing" in result.stderr, command


def test_c195_export_without_a_locale_still_applies_without_a_change(place: Place) -> None:
    """What the output's encoding lacks is written as an escape that YAML and JSON read back."""
    for form in ("", "--json"):
        for encoding in ("ascii", "latin-1", "utf-8"):
            env = {"LC_ALL": "C", "PYTHONIOENCODING": encoding}
            exported = place.encoded(f"export {form}", env)
            (place.directory / "again.yaml").write_bytes(exported.stdout)
            result = place.run("apply -f again.yaml --diff")
            assert (result.returncode, result.stdout) == (0, ""), (form, encoding, result.stderr)


@pytest.mark.parametrize(
    "command",
    [
        command
        for command, _ in ENDING
        if not command.startswith(("completion", "--help", "schema", "export"))
    ],
)
def test_c195_json_of_every_command_stands_alone_on_stdout(place: Place, command: str) -> None:
    result = place.run(f"--json {command}")
    json.loads(result.stdout)
    for line in result.stderr.splitlines():
        assert not line.startswith("{") or json.loads(line), line


@pytest.mark.parametrize(
    ("command", "code", "status"),
    [
        ("task list --database sqlite:///none/none.db", "DATABASE_UNAVAILABLE", 3),
        ("worker list --database sqlite:///none.db", "DATABASE_UNAVAILABLE", 3),
        ("node list --database sqlite:///none.db", "DATABASE_UNAVAILABLE", 3),
        ("export --database sqlite:///none.db", "DATABASE_UNAVAILABLE", 3),
        ("apply -f none.yaml", "INVALID_DOCUMENT", 2),
        ("instance show nothing", "INSTANCE_NOT_FOUND", 5),
        ("instance logs nothing --follow", "INSTANCE_NOT_FOUND", 5),
        ("worker show nobody", "WORKER_NOT_FOUND", 5),
        ("worker drain nobody", "WORKER_NOT_FOUND", 5),
        ("export --task nothing", "TASK_NOT_FOUND", 5),
        ("task pause job-1", "SCHEDULER_UNREACHABLE", 3),
        ("instance cancel {id}", "SCHEDULER_UNREACHABLE", 3),
    ],
)
def test_c195_each_failure_has_its_exit_code_and_its_error_in_json_on_stderr(
    place: Place, command: str, code: str, status: int
) -> None:
    result = place.run(f"--json {command}")
    assert result.returncode == status, result.stderr
    assert result.stdout in ("", "[]\n")
    error = json.loads(result.stderr.splitlines()[-1])["error"]
    assert error["code"] == code
    plain = place.run(command)
    assert plain.returncode == status
    assert code in plain.stderr
    assert "Traceback" not in plain.stderr


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        ("instance list --watch --interval 100ms", 0, ""),
        ("worker list --watch --interval 100ms --json", 0, ""),
        ("instance logs {id} --follow", 130, "goes on"),
    ],
)
def test_c195_ctrl_c_ends_with_a_word_and_leaves_what_runs(
    place: Place, command: str, status: int, words: str
) -> None:
    process = subprocess.Popen(
        place.words(command),
        cwd=place.directory,
        env=place.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _until_it_waits(process.pid, place)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == status, told
    assert words in told
    assert "Traceback" not in told
    waiting = json.loads(place.run("instance list --state pending --json").stdout)
    assert place.instance_id in {instance["id"] for instance in waiting}


def test_c195_ctrl_c_at_any_moment_of_a_wait_says_what_became_of_the_instance(place: Place) -> None:
    """From the moment that the instance is there, whoever asked for it is told so."""
    for number in range(3, 6):
        process = subprocess.Popen(
            place.words(f"task trigger job-{number} --wait"),
            cwd=place.directory,
            env=place.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            while not place.count(f"job-{number}"):
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=30)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 130, told
        assert "goes on" in told or f"not known: ostinato instance list --task job-{number} shows it" in told
        assert place.count(f"job-{number}") == 1


def _until_it_waits(process_id: int, place: Place) -> None:
    """Until the command has its database open: from then on it waits for what it shows."""
    database = str(place.directory / "ostinato.db")
    folder = Path(f"/proc/{process_id}/fd")
    while True:
        for number in os.listdir(folder):
            try:
                if os.readlink(folder / number) == database:
                    return
            except FileNotFoundError:
                continue  # closed between the two
