"""Who writes a task as another scheduler has it is told how it is written here."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.control.document.errors import InvalidDocument
from ostinato.control.document.read import read_document, read_task


def hints(**members: Any) -> dict[str, str]:
    """Hints by field of a task with `members`, beside a name and a command."""
    with pytest.raises(InvalidDocument) as caught:
        read_task({"name": "t", "shell": {"command": "true"}, **members}, namespace="default", field="")
    return {fault.field: fault.hint for fault in caught.value.errors}


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("cron", "0 2 * * *", 'write triggers: [{cron: "0 2 * * *"}]'),
        ("schedule", "@daily", 'write triggers: [{cron: "@daily"}]'),
        ("schedule", {"minute": 5}, 'write triggers: [{cron: "0 2 * * *"}]'),
        ("cron", "*" * 100, 'write triggers: [{cron: "0 2 * * *"}]'),
        ("every", "10m", "write triggers: [{every: 10m}]"),
        ("every", 10, "write triggers: [{every: 5m}]"),
        ("at", "2027-01-01T00:00:00Z", 'write triggers: [{at: "2027-01-01T00:00:00Z"}]'),
        (
            "timezone",
            "Europe/Paris",
            'it belongs to a trigger: write triggers: [{cron: "0 2 * * *", timezone: Europe/Paris}]',
        ),
        ("command", "echo hi", 'write shell: {command: "echo hi"}'),
        ("cmd", ["echo", "hi"], 'write shell: {command: ["echo", "hi"]}'),
        ("script", "a\nb", 'write shell: {command: "a\\nb"}'),
        ("url", "https://a.example/", 'write http: {method: GET, url: "https://a.example/"}'),
        ("retries", 5, "write retry: {max_retry: 5}"),
        ("max_retry", None, "write retry: {max_retry: 3}"),
        ("max_retries", True, "write retry: {max_retry: 3}"),
        ("env", {"A": "b"}, "it belongs to shell: write shell: {env: …}"),
        ("image", "postgres:17", 'write container: {image: "postgres:17"}'),
        ("cwd", "/srv", "it belongs to shell: write shell: {directory: …}"),
    ],
)
def test_a_field_of_elsewhere_is_shown_as_it_is_written_here(name: str, value: object, hint: str) -> None:
    assert hints(**{name: value}) == {name: hint}


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("shell", "echo 'hi'", "write shell: {command: \"echo 'hi'\"}"),
        ("shell", ["ls", "-l"], 'write shell: {command: ["ls", "-l"]}'),
        ("shell", 5, 'write shell: {command: "…"}'),
        ("http", "https://a.example/", 'write http: {method: GET, url: "https://a.example/"}'),
        ("python", "shop:report", 'write python: {call: "shop:report"}'),
        ("retry", 5, 'write retry: {max_retry: 5}; in Python Retry.fixed("30s", max_retry=5)'),
        ("retry", -1, 'write retry: {max_retry: 3}; in Python Retry.fixed("30s", max_retry=3)'),
    ],
)
def test_a_bare_value_in_place_of_a_block_is_shown_as_the_block(name: str, value: object, hint: str) -> None:
    executor = {} if name != "retry" else {"shell": {"command": "true"}}
    with pytest.raises(InvalidDocument) as caught:
        read_task({"name": "t", **executor, name: value}, namespace="default", field="")
    assert {fault.field: fault.hint for fault in caught.value.errors}[name] == hint


def test_what_a_hint_proposes_can_be_read() -> None:
    shown = [
        {"triggers": [{"cron": "0 2 * * *", "timezone": "Europe/Paris"}]},
        {"triggers": [{"every": "10m"}]},
        {"retry": {"max_retry": 5}},
    ]
    for members in shown:
        said = {"name": "t", "shell": {"command": "echo hi"}, **members}
        assert read_task(said, namespace="default", field="").name == "t"


def test_a_near_miss_keeps_the_nearest_name() -> None:
    assert hints(timeuot="5m") == {"timeuot": "did you mean timeout?"}
    assert hints(triggers=[{"cron": "@daily", "tz": "Asia/Tokyo"}]) == {
        "triggers[0].tz": "write timezone: Asia/Tokyo"
    }


@pytest.mark.parametrize(
    ("tasks", "hint"),
    [
        ({"backup": {"shell": {"command": "true"}}}, "begin each task with '- name: backup'"),
        ({}, "begin each task with '- name:'"),
        ("backup", "begin each task with '- name:'"),
    ],
)
def test_tasks_by_name_are_shown_as_a_list(tasks: object, hint: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        read_document({"version": 1, "tasks": tasks})
    assert (caught.value.field, caught.value.hint) == ("tasks", hint)


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("10min", "write 10m"),
        ("5 minutes", "write 5m"),
        ("2hours", "write 2h"),
        ("1 day, 12 hours", "write 1d12h"),
        ("1h and 5 min", "write 1h5m"),
        ("30m1h", "write 1h30m"),
        ("1.5 hours", "write 1h30m"),
        ("2 weeks", "write 14d"),
        ("30S", "write 30s"),
        ("5", "write 5s for seconds"),
        ("5 months", "write a number and a unit, largest first: 500ms, 30s, 5m, 1h30m, 7d"),
        ("-5 minutes", "write a number and a unit, largest first: 500ms, 30s, 5m, 1h30m, 7d"),
        ("9" * 40, "write a number and a unit, largest first: 500ms, 30s, 5m, 1h30m, 7d"),
        ("1" + "and" * 19, "write a number and a unit, largest first: 500ms, 30s, 5m, 1h30m, 7d"),
    ],
)
def test_a_duration_in_other_words_is_shown_in_ours(said: str, hint: str) -> None:
    assert hints(timeout=said) == {"timeout": hint}


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("Europe/Berln", "did you mean Europe/Berlin?"),
        ("europe/berlin", "write Europe/Berlin"),
        ("berlin", "write Europe/Berlin"),
        ("new york", "write America/New_York"),
        ("America/NewYork", "did you mean America/New_York?"),
        ("GMT+25", "write a name such as Europe/Berlin or UTC"),
        ("Mars", "write a name such as Europe/Berlin or UTC"),
        ("x" * 10_000, "write a name such as Europe/Berlin or UTC"),
    ],
)
def test_a_zone_that_is_nearly_one_is_named(said: str, hint: str) -> None:
    found = hints(triggers=[{"cron": "@daily", "timezone": said}])
    assert list(found.values()) == [hint]
