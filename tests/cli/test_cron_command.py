"""``ostinato cron next``: every case of cron.json, as a person or program would ask for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from house.project import ROOT
from support.commands import Execute, Invoke

_CASES: list[dict[str, Any]] = json.loads((ROOT / "tests/cases/cron.json").read_text(encoding="utf-8"))
_VALID = [case for case in _CASES if not case.get("invalid")]
_INVALID = [case for case in _CASES if case.get("invalid")]


def _arguments(case: dict[str, Any], count: int) -> list[str]:
    options = ["--tz", case["tz"], "--start", case["start"], "--count", str(count), "--json"]
    return ["cron", "next", *options, "--", case["expr"]]


@pytest.mark.parametrize("case", _VALID, ids=lambda case: case["id"])
def test_fires_are_a_json_list_of_instants_with_the_offset_of_the_zone(
    case: dict[str, Any], invoke: Invoke
) -> None:
    result = invoke(*_arguments(case, 5))
    if result.exit_code == 2 and case.get("may_refuse"):
        assert "INVALID_CRON" in result.stderr
        return
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) in [case["expected"], *case.get("alt", [])]


@pytest.mark.parametrize("case", _INVALID, ids=lambda case: case["id"])
def test_expression_or_zone_that_is_none_ends_with_2_and_names_the_field(
    case: dict[str, Any], invoke: Invoke
) -> None:
    result = invoke(*_arguments(case, 5))
    assert (result.exit_code, result.stdout) == (2, "")
    told = json.loads(result.stderr)["error"]
    fields = ("expression", "timezone")
    assert told["code"] in ("INVALID_CRON", "INVALID_TIMEZONE")
    assert told["field"].startswith(fields), result.stderr


def test_without_json_there_is_one_fire_a_line(invoke: Invoke) -> None:
    result = invoke("cron", "next", "@daily", "--start", "2026-01-01T00:00:00Z", "--count", "2")
    assert result.stdout == "2026-01-02T00:00:00+00:00\n2026-01-03T00:00:00+00:00\n"


def test_end_of_the_calendar_is_said_beside_the_list(invoke: Invoke) -> None:
    result = invoke("cron", "next", "0 12 31 12 *", "--start", "9998-12-31T12:00:00Z")
    assert result.stdout == "9999-12-31T12:00:00+00:00\n"
    assert "no further fires (1 of 5 shown)" in result.stderr


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("--start", "2026-01-01", "INVALID_INSTANT"),
        ("--start", "tomorrow", "INVALID_INSTANT"),
        ("--count", "-1", "INVALID_VALUE"),
        ("--count", "1000000", "INVALID_VALUE"),
    ],
)
def test_wrong_option_is_refused_and_named(invoke: Invoke, option: str, value: str, code: str) -> None:
    result = invoke("cron", "next", "@daily", option, value)
    assert result.exit_code == 2
    assert (
        result.stderr.startswith(f"ostinato: {code}: {option.removeprefix('--')}") or option in result.stderr
    )


def test_instant_without_offset_is_shown_with_one(invoke: Invoke) -> None:
    result = invoke("cron", "next", "@daily", "--start", "2026-03-27")
    assert result.exit_code == 2
    assert "write 2026-03-27T00:00:00+01:00" in result.stderr
    assert "datetime" not in result.stderr


def test_as_a_process_it_loads_neither_database_nor_wire(execute: Execute) -> None:
    """What keeps its start short, said without a stopwatch."""
    result = execute(
        "cron",
        "next",
        "@daily",
        "--start",
        "2026-01-01T00:00:00Z",
        "--json",
        env={"PYTHONPROFILEIMPORTTIME": "1"},
    )
    assert result.returncode == 0
    assert len(json.loads(result.stdout)) == 5
    loaded = {line.split("|")[-1].strip().split(".")[0] for line in result.stderr.splitlines() if "|" in line}
    assert {"typer", "ostinato"} <= loaded
    assert not loaded & {"sqlalchemy", "grpc", "alembic", "uvicorn", "httpx", "rich", "structlog", "asyncio"}
