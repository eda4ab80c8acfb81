"""Which moment, payload and instances the options of a command mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer.main
from house.project import ROOT

from ostinato.cli.lazy import COMMANDS, LazyCommands
from ostinato.cli.payloads import payload_of
from ostinato.cli.selecting import moment
from ostinato.cli.watching import interval_us
from ostinato.control.filters import states_of
from ostinato.core.instants import DAY, HOUR, INSTANT_MIN_US, parse_instant
from ostinato.errors import UserError

_NOW_US = parse_instant("2026-01-31T12:00:00Z")


@pytest.mark.parametrize(
    ("text", "instant_us"),
    [
        (None, None),
        ("2h", _NOW_US - 2 * HOUR),
        ("0s", _NOW_US),
        ("1d12h", _NOW_US - DAY - 12 * HOUR),
        ("2026-01-31T12:00:00Z", _NOW_US),
        ("2026-01-31T13:00:00+01:00", _NOW_US),
        ("36500d", INSTANT_MIN_US if _NOW_US - 36_500 * DAY < INSTANT_MIN_US else _NOW_US - 36_500 * DAY),
    ],
)
def test_moment_is_a_duration_ago_or_an_instant(text: str | None, instant_us: int | None) -> None:
    assert moment(text, now_us=_NOW_US, field="--since") == instant_us


def test_moment_before_the_calendar_is_its_beginning() -> None:
    assert moment("36500d", now_us=INSTANT_MIN_US + DAY, field="--since") == INSTANT_MIN_US


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2h ago", "-2h", "2", "2026-01-31", "2026-01-31T12:00:00", "\x00"]
)
def test_moment_that_is_neither_is_refused_with_its_option(text: str) -> None:
    with pytest.raises(UserError) as caught:
        moment(text, now_us=_NOW_US, field="--since")
    assert caught.value.field == "--since"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("a=1", "1"),
        ("a=true", "true"),
        ("a:=1", 1),
        ("a:=true", True),
        ('a:={"b": [1, null]}', {"b": [1, None]}),
        ("a=text", "text"),
        ("a=", ""),
        ("a=x=y", "x=y"),
        ("a=007", "007"),
        ("a=NaN", "NaN"),
        ('a="1"', '"1"'),
        ('a:="1"', "1"),
        ("a=日本", "日本"),
        ("a=" + "[" * 2000, "[" * 2000),
    ],
)
def test_argument_is_a_text_or_with_a_colon_json(argument: str, value: Any) -> None:
    assert json.loads(payload_of(None, [argument])) == {"a": value}
    assert json.loads(payload_of('{"b": 2}', [argument])) == {"b": 2, "a": value}


@pytest.mark.parametrize(
    ("said", "arguments", "code"),
    [
        ("{", [], "INVALID_PAYLOAD"),
        ("[]", [], "INVALID_PAYLOAD"),
        ("{}", ["a"], "INVALID_VALUE"),
        ("{}", ["=1"], "INVALID_VALUE"),
        ('{"a": 1}', ["a=2"], "INVALID_VALUE"),
        ("{}", ["a:=" + "9" * 400], "INVALID_PAYLOAD"),
        ("{}", ["a=" + "x" * 300_000], "PAYLOAD_TOO_LARGE"),
        ("{}", ["a=\ud800"], "INVALID_PAYLOAD"),
        ("\ud800", [], "INVALID_PAYLOAD"),
        ("@/dev/zero", [], "PAYLOAD_TOO_LARGE"),
        ("@/none/at/all", [], "INVALID_VALUE"),
        ("@\x00", [], "INVALID_VALUE"),
    ],
)
def test_payload_that_cannot_be_is_refused(said: str, arguments: list[str], code: str) -> None:
    with pytest.raises(UserError) as caught:
        payload_of(said, arguments)
    assert caught.value.code == code
    assert caught.value.field


def test_state_that_there_is_none_of_is_refused_with_those_that_there_are() -> None:
    assert states_of(["failed", "success"], field="--state") == ("failed", "success")
    with pytest.raises(UserError, match="sleeping") as caught:
        states_of(["sleeping"], field="--state")
    assert "retry_waiting" in caught.value.hint


def test_interval_has_bounds() -> None:
    assert interval_us(None) == interval_us("1s") == 1_000_000
    for text in ("0s", "99ms", "2d", "soon"):
        with pytest.raises(UserError) as caught:
            interval_us(text)
        assert caught.value.field == "--interval"


def _paths() -> list[str]:
    commands = LazyCommands(COMMANDS)
    paths: list[str] = []
    for name in commands:
        below = getattr(commands[name], "commands", {})
        paths += [f"{name} {verb}" for verb in below] if below else [name]
    return paths


def test_every_command_is_described_on_the_page_of_the_command_line() -> None:
    page = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    written = page.replace(" / `", " / `ostinato task ").replace("`ostinato task ostinato", "`ostinato")
    assert len(_paths()) > 25
    assert [
        path for path in _paths() if f"ostinato {path}" not in written and f"`{path}`" not in written
    ] == []


def test_commands_of_a_noun_are_named_in_its_help() -> None:
    commands = LazyCommands(COMMANDS)
    for name, row in COMMANDS.items():
        for verb in getattr(commands[name], "commands", {}):
            assert verb in row.help, f"{name} {verb}"
    assert isinstance(commands["task"], typer.main.TyperGroup)
