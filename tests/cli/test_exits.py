"""How commands end: documented exit codes, a sentence instead of a traceback (C195)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer
from support.commands import Execute

from ostinato.cli.exits import translated_errors
from ostinato.errors import ConflictError, UnavailableError, UserError


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UserError("INVALID_VALUE", "no", field="count"), 2),
        (UserError("TASK_NOT_FOUND", "no"), 5),
        (ConflictError("KEY_CONFLICT", "no"), 4),
        (UnavailableError("DATABASE_UNAVAILABLE", "no"), 3),
        (UserError("INSTANCE_FAILED", "no"), 1),
        (ValueError("no"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_error_ends_with_the_exit_code_of_its_kind(error: BaseException, status: int) -> None:
    with pytest.raises(typer.Exit) as caught, translated_errors():
        raise error
    assert caught.value.exit_code == status


def test_unforeseen_error_asks_for_a_report_and_hides_its_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OSTINATO_DEBUG", raising=False)
    with pytest.raises(typer.Exit), translated_errors():
        raise ValueError("odd\x1b[31m")
    shown = capsys.readouterr().err
    assert "report it" in shown
    assert "Traceback" not in shown
    assert "\x1b" not in shown


def test_debug_variable_shows_the_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSTINATO_DEBUG", "1")
    with pytest.raises(typer.Exit), translated_errors():
        raise UserError("INVALID_VALUE", "no")
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["version"], 0),
        (["--help"], 0),
        (["cron", "next", "--help"], 0),
        (["nonsense"], 2),
        (["cron", "next"], 2),
        (["cron", "next", "@daily", "--bogus"], 2),
        (["cron", "next", "@daily", "--count", "x"], 2),
    ],
)
def test_status_of_a_process(execute: Execute, arguments: list[str], status: int) -> None:
    result = execute(*arguments)
    assert result.returncode == status
    assert "Traceback" not in result.stderr


def test_c195_reader_that_has_seen_enough_is_no_error(tmp_path: object) -> None:
    script = (
        f"set -o pipefail; {sys.executable} -m ostinato.cli cron next '* * * * *' --count 1000"
        " | (read line; echo $line)"
    )
    for _ in range(3):
        result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--json", "cron", "next", "x"], ["cron", "next", "x", "--json"]])
def test_with_json_an_error_is_an_object_on_stderr(execute: Execute, arguments: list[str]) -> None:
    result = execute(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    told = json.loads(result.stderr)["error"]
    assert list(told) == ["code", "message", "field", "hint"]
    assert (told["code"], told["field"]) == ("INVALID_CRON", "expression")


@pytest.mark.parametrize("arguments", [["dev", "nope.py"], ["dev", "nope"], ["worker", "--app", "nope.py"]])
def test_app_that_does_not_exist_is_found_out_before_anything_starts(
    execute: Execute, arguments: list[str]
) -> None:
    result = execute(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("ostinato: INVALID_APP: ")
    assert "nope" in result.stderr
    assert result.stderr.count("\n") == 1


def test_help_of_task_names_its_verbs(execute: Execute) -> None:
    text = execute("task", "--help").stdout
    verbs = text.partition("Tasks: ")[2].partition(".")[0].split(", ")
    assert [verb for verb in map(str.strip, verbs) if f"\n  {verb} " not in text] == []


@pytest.mark.parametrize("locale", [{"LANG": "C"}, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}])
def test_c195_no_locale_and_a_narrow_terminal_are_enough(execute: Execute, locale: dict[str, str]) -> None:
    result = execute("cron", "next", "日 * * * *", env={**locale, "COLUMNS": "20"})
    assert result.returncode == 2
    assert "INVALID_CRON" in result.stderr
    assert "Traceback" not in result.stderr
    assert execute("--help", env={**locale, "COLUMNS": "20"}).returncode == 0
