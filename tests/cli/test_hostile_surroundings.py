"""Closed streams, full disks, readers that leave, no locale: commands as processes in bad company (C195)."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.dev import Dev, clean_environment

_LISTS = (
    ["task", "list"],
    ["instance", "list"],
    ["worker", "list"],
    ["node", "list"],
    ["partition", "list"],
    ["namespace", "list"],
)


def _shell(script: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script],
        cwd=directory,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _command(*arguments: str) -> str:
    return shlex.join([sys.executable, "-m", "ostinato.cli", *arguments])


@pytest.mark.parametrize("arguments", _LISTS, ids=" ".join)
def test_c195_list_whose_reader_leaves_ends_quietly(
    arguments: list[str], database: str, tmp_path: Path
) -> None:
    for form in ([], ["--json"]):
        command = _command(*arguments, "--database", database, *form)
        result = _shell(f"set -o pipefail; {command} | true", tmp_path)
        assert result.returncode == 0, result.stderr
        assert "Traceback" not in result.stderr
        assert "BrokenPipe" not in result.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_c195_closed_streams_are_no_error(closed: str, database: str, tmp_path: Path) -> None:
    result = _shell(f"{_command('partition', 'list', '--database', database)} {closed}", tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_output_never_goes_into_the_database_that_took_the_place_of_a_closed_stream(
    database: str, tmp_path: Path
) -> None:
    """An SQLite file that is opened as number 1 would be written into by every command that prints."""
    assert (
        _shell(f"{_command('partition', 'list', '--database', database)} >&- 2>&-", tmp_path).returncode == 0
    )
    result = _shell(_command("task", "list", "--database", database, "--json"), tmp_path)
    assert (result.returncode, json.loads(result.stdout)) == (0, [])


def test_full_disk_behind_stdout_is_said_and_fails(database: str, tmp_path: Path) -> None:
    result = _shell(f"{_command('partition', 'list', '--database', database)} > /dev/full", tmp_path)
    assert result.returncode == 1
    assert result.stderr == "ostinato: what was to be shown could not be written: No space left on device\n"


@pytest.mark.parametrize("locale", [{"LANG": "C"}, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}])
@pytest.mark.parametrize("columns", ["20", "1", "0", "x", "99999999999999999999"])
def test_c195_wide_and_right_to_left_output_is_shown_anywhere(
    talk: Dev, locale: dict[str, str], columns: str
) -> None:
    waited = talk.run("task", "trigger", "wide", "--wait", "--json", env={**locale, "COLUMNS": columns})
    assert waited.returncode == 1
    identity = json.loads(waited.stdout)["id"]
    shown = talk.run("instance", "logs", identity, env={**locale, "COLUMNS": columns})
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout
    assert "日本語" in shown.stdout or "\\u65e5" in shown.stdout
    listed = talk.run("instance", "list", "--task", "wide", env={**locale, "COLUMNS": columns})
    assert (listed.returncode, "Traceback" in listed.stderr) == (0, False)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["version"], 0),
        (["--version"], 0),
        (["task", "trigger", "wide", "--wait"], 1),
        (["instance", "list", "--state", "sleeping"], 2),
        (["task", "list", "--database", "sqlite:///none.db"], 3),
        (["instance", "retry", "{running}"], 4),
        (["task", "show", "nothing"], 5),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_every_exit_code_is_that_of_a_process(talk: Dev, arguments: Sequence[str], status: int) -> None:
    running = talk.json("task", "trigger", "endless")["instance_id"]
    try:
        result = talk.run(*(argument.format(running=running) for argument in arguments))
    finally:
        talk.run("instance", "cancel", running)
    assert result.returncode == status, result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["instance", "list", "--limit", "x"], "--limit"),
        (["instance", "list", "--limit"], "--limit"),
        (["instance", "list", "--bogus"], "--bogus"),
        (["instance", "list", "--limit", "9" * 5000], "--limit"),
        (["task", "show"], "NAME"),
        (["task", "list", "one-too-many"], "one-too-many"),
        (["task", "list", "--interval", "1s"], "--interval"),
        (["task", "list", "--watch", "--interval", "0s"], "--interval"),
        (["worker", "--slots", "x"], "--slots"),
        (["worker", "--slots", "1", "list"], "--slots"),
        (["completion", "tcsh"], "SHELL"),
        (["-n", "a/b", "task", "list"], "--namespace"),
        (["task", "list", "-n", ""], "--namespace"),
        (["instance", "list", "--count", "--cursor", "x"], "--cursor"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else str(value),
)
def test_wrong_option_of_each_kind_names_the_option_as_text_and_as_json(
    database: str, tmp_path: Path, arguments: list[str], option: str
) -> None:
    environment = clean_environment() | {"OSTINATO_DATABASE": database}
    for form in ([], ["--json"]):
        result = subprocess.run(
            [sys.executable, "-m", "ostinato.cli", *form, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (result.returncode, result.stdout) == (2, ""), result.stderr
        assert option in result.stderr
        assert "Traceback" not in result.stderr
        if form:
            assert json.loads(result.stderr)["error"]["code"] in (
                "INVALID_VALUE",
                "INVALID_NAME",
                "INVALID_DURATION",
            )


def test_namespace_of_the_environment_is_validated_and_named_by_its_variable(
    database: str, tmp_path: Path
) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "ostinato.cli", "task", "list", "--database", database],
        cwd=tmp_path,
        env=clean_environment() | {"OSTINATO_NAMESPACE": "a b"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "OSTINATO_NAMESPACE" in result.stderr


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "99999999999999999999999999"])
def test_limit_out_of_range_is_refused(database: str, tmp_path: Path, limit: str) -> None:
    result = _shell(_command("instance", "list", "--database", database, "--limit", limit), tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"limit: {limit} is not within 1 to 1000" in result.stderr


def test_wrong_database_is_told_by_its_own_code(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database at all " * 100, encoding="utf-8")
    result = _shell(_command("task", "list", "--database", "sqlite:///text.db"), tmp_path)
    assert result.returncode == 2
    assert "DATABASE_UNUSABLE" in result.stderr
    assert "Traceback" not in result.stderr
    assert _shell(_command("task", "list", "--database", "sqlite:///" + "x" * 300), tmp_path).returncode == 3


def test_listing_without_a_scheduler_leaves_no_file_behind(database: str, tmp_path: Path) -> None:
    before = sorted(os.listdir(tmp_path))
    assert _shell(_command("task", "list", "--database", database), tmp_path).returncode == 0
    assert [name for name in sorted(os.listdir(tmp_path)) if name not in before] == []
