"""Shell completion: scripts, and names that come from the database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import Execute, Invoke
from support.dev import Dev, clean_environment

from ostinato.cli.lazy import COMMANDS


def _completed(directory: Path, words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What bash is given for the last of `words`."""
    position = len(words.split(" ")) - 1
    return subprocess.run(
        [sys.executable, "-c", "from ostinato.cli.main import main; main()"],
        cwd=directory,
        env=clean_environment()
        | {"_OSTINATO_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(position)}
        | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_names_of_tasks_instances_workers_states_and_namespaces_are_offered(talk: Dev) -> None:
    identity = talk.json("task", "trigger", "add")["instance_id"]
    while not (workers := talk.json("worker", "list")):
        assert talk.process.poll() is None
    for words, expected in (
        ("ostinato task show ta", ["talker"]),
        ("ostinato instance list --task ta", ["talker"]),
        (f"ostinato instance show {identity}", [identity]),
        ("ostinato instance list --state ru", ["running"]),
        ("ostinato task list -n de", ["default"]),
        ("ostinato completion z", ["zsh"]),
        (f"ostinato worker show {workers[0]['name'][:3]}", [workers[0]["name"]]),
    ):
        result = _completed(talk.directory, words)
        assert (result.stdout.split(), result.stderr) == (expected, ""), words


@pytest.mark.parametrize(
    "words",
    [
        "ostinato task show x",
        "ostinato instance show x",
        "ostinato worker show x",
        "ostinato task list -n x",
        "ostinato task show --database oracle://x x",
        "ostinato task show -n a/b x",
    ],
)
def test_completion_is_silent_without_a_database_and_makes_none(tmp_path: Path, words: str) -> None:
    result = _completed(tmp_path, words)
    assert (result.stdout.strip(), result.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []
    assert "Error" in _completed(tmp_path, words, OSTINATO_DEBUG="1").stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_of_each_shell_calls_the_command(execute: Execute, shell: str) -> None:
    result = execute("completion", shell)
    assert (result.returncode, result.stderr) == (0, "")
    assert "_OSTINATO_COMPLETE=complete_" + shell in result.stdout


def test_script_is_one_that_bash_takes_and_that_completes_commands(execute: Execute, tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(execute("completion", "bash").stdout, encoding="utf-8")
    command = Path(sys.executable).with_name("ostinato")
    lines = (
        f"source {script}; COMP_WORDS=(ostinato inst); COMP_CWORD=1; "
        f'_ostinato_completion {command} inst ostinato; echo "${{COMPREPLY[@]}}"'
    )
    result = subprocess.run(
        ["bash", "-c", lines],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.stdout, result.stderr) == ("instance\n", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_help_and_has_help_of_its_own(invoke: Invoke, name: str) -> None:
    assert f"\n  {name} " in invoke("--help").stdout
    own = invoke(name, "--help")
    assert own.exit_code == 0
    assert f"Usage: ostinato {name} " in own.stdout


@pytest.mark.parametrize(
    ("arguments", "loaded"),
    [
        (["--help"], {"version"}),
        (["cron", "--help"], {"version", "cron"}),
        (["node", "--help"], {"version", "cluster"}),
    ],
)
def test_command_pays_for_the_start_of_no_other(
    execute: Execute, arguments: list[str], loaded: set[str]
) -> None:
    result = execute(*arguments, env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert result.returncode == 0
    names = [line.split("|")[-1].strip() for line in result.stderr.splitlines() if "|" in line]
    commands = {name.rpartition(".")[2] for name in names if name.startswith("ostinato.cli.commands.")}
    assert commands == loaded
    assert not {name.partition(".")[0] for name in names} & {
        "sqlalchemy",
        "grpc",
        "asyncio",
        "yaml",
        "litestar",
    }
