"""The same fault has the same code, the same words and names the same field, whoever is asked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.surfaces import Surfaces, Told, declare, plain_field, sdk_told
from surfaces.document_faults import DOCUMENT_FAULTS
from surfaces.request_faults import REQUEST_FAULTS

from ostinato import App, Retry, at, cron, every


def agree(told: Mapping[str, Told | None], *, code: str, field: str, made_by_sdk: bool = False) -> None:
    """Every surface has refused, and with one voice. Only hints may differ: they say what to do there."""
    said = {
        way: one and (one.code, plain_field(one.field, made_by_sdk=made_by_sdk and way == "sdk"), one.message)
        for way, one in told.items()
    }
    first = next(iter(said.values()))
    assert first, said
    assert said == dict.fromkeys(said, (code, field, first[2]))


def yaml_of(value: Any) -> str:
    """JSON, which is YAML too, but for numbers that only YAML has."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {yaml_of(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(yaml_of, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf"
    return json.dumps(value)


@pytest.mark.parametrize("name", DOCUMENT_FAULTS)
def test_a_fault_of_a_definition_is_told_with_one_voice(surfaces: Surfaces, name: str) -> None:
    fault = DOCUMENT_FAULTS[name]
    entry = dict(fault.entry)
    document = {"version": 1, "tasks": [entry]}
    before = surfaces.written()
    told = {
        "yaml": surfaces.apply_told(yaml_of(document)),
        "put": surfaces.rest_told("PUT", "/namespaces/default/tasks/wrong", body=entry),
        "apply": surfaces.rest_told("POST", "/apply", body=document),
    }
    if fault.in_sdk:
        told["sdk"] = sdk_told(lambda: declare(entry))
    assert surfaces.written() == before
    agree(told, code=fault.code, field=fault.field, made_by_sdk="triggers" in entry)


@pytest.mark.parametrize("name", REQUEST_FAULTS)
def test_a_fault_of_a_request_is_told_with_one_voice(surfaces: Surfaces, name: str) -> None:
    fault = REQUEST_FAULTS[name]
    before = surfaces.written()
    told = {way: ask(surfaces) for way, ask in fault.ways.items()}
    after = surfaces.written()
    if fault.asks_owner:
        del before["request"], after["request"]
    assert after == before
    agree(told, code=fault.code, field=fault.field)


def test_a_name_that_is_given_twice_is_told_with_one_voice(surfaces: Surfaces) -> None:
    entry = {"name": "twice", "shell": {"command": "true"}}
    document = {"version": 1, "tasks": [entry, entry]}
    one = {"version": 1, "tasks": [entry]}

    def declare_twice() -> None:
        app = App("shop", "memory:")
        app.shell("twice", "true")
        app.http("twice", "GET", url="https://example.com")

    before = surfaces.written()
    told = {
        "yaml": surfaces.apply_told(yaml_of(document)),
        "two documents": surfaces.apply_told(f"{yaml_of(one)}\n---\n{yaml_of(one)}\n"),
        "apply": surfaces.rest_told("POST", "/apply", body=document),
        "sdk": sdk_told(declare_twice),
    }
    assert surfaces.written() == before
    said = {way: each and (each.code, each.message) for way, each in told.items()}
    assert said == dict.fromkeys(said, ("INVALID_VALUE", "task default/twice is given twice"))
    fields = {way: each and each.field for way, each in told.items()}
    assert fields == {
        "yaml": "tasks[1].name",
        "two documents": "tasks[0].name",
        "apply": "tasks[1].name",
        "sdk": "name",
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"second": "a\\u0000b"}', "a\0b"),
        ('{"second": 18446744073709551615}', 2**64 - 1),
        ('{"second": "\\ud83d\\ude00"}', "\U0001f600"),
        ('{"second": -0.0}', -0.0),
    ],
)
def test_what_one_takes_all_take_and_keep(surfaces: Surfaces, text: str, value: object) -> None:
    known = {row[0] for row in surfaces.written()["instance"]}
    delay = '"delay": "1h"'
    raw = f'{{"payload": {text}, {delay}}}'.encode()
    ways = {
        "rest": surfaces.rest_told("POST", "/namespaces/default/tasks/add/instances", raw=raw),
        "cli": surfaces.cli_told("task", "trigger", "add", f"--payload={text}", "--delay=1h"),
        **{
            way: surfaces.sdk_told(way, lambda app: app.submit("add", {"second": value}, delay="1h"))
            for way in surfaces.apps
        },
    }
    assert ways == dict.fromkeys(ways)
    rows = [row for row in surfaces.written()["instance"] if row[0] not in known]
    assert [
        json.loads(str(row[5], "utf-8") if isinstance(row[5], bytes) else str(row[5])) for row in rows
    ] == [{"second": value}] * 4


def test_member_that_json_holds_twice_is_refused_by_name(surfaces: Surfaces) -> None:
    before = surfaces.written()
    text = '{"second": {"a": 1, "a": 1}}'
    raw = f'{{"payload": {text}}}'.encode()
    ways = {
        "rest": surfaces.rest_told("POST", "/namespaces/default/tasks/add/instances", raw=raw),
        "cli": surfaces.cli_told("task", "trigger", "add", f"--payload={text}"),
    }
    assert {way: told and (told.code, told.field) for way, told in ways.items()} == dict.fromkeys(
        ways, ("INVALID_PAYLOAD", "payload.second.a")
    )
    assert surfaces.written() == before


@pytest.mark.parametrize("way", ["sdk", "sdk_http"])
@pytest.mark.parametrize(
    ("options", "code", "field"),
    [
        ({"at": datetime(2026, 1, 31, 18)}, "INVALID_INSTANT", "at"),  # noqa: DTZ001 - the fault
        ({"at": 5}, "INVALID_INSTANT", "at"),
        ({"at": datetime(2126, 1, 1, tzinfo=UTC), "delay": 5}, "INVALID_VALUE", "at"),
        ({"delay": timedelta(seconds=-1)}, "INVALID_DURATION", "delay"),
        ({"delay": math.nan}, "INVALID_DURATION", "delay"),
        ({"delay": True}, "INVALID_DURATION", "delay"),
        ({"delay": object()}, "INVALID_DURATION", "delay"),
        ({"payload": {"second": object()}}, "INVALID_PAYLOAD", "payload.second"),
        ({"payload": {"second": {1: 2}}}, "INVALID_PAYLOAD", "payload.second"),
        ({"payload": {"second": b"x"}}, "INVALID_PAYLOAD", "payload.second"),
    ],
)
def test_what_only_python_can_say_is_refused_by_name(
    surfaces: Surfaces, way: str, options: dict[str, Any], code: str, field: str
) -> None:
    before = surfaces.written()
    told = surfaces.sdk_told(way, lambda app: app.submit("add", **options))
    assert surfaces.written() == before
    assert told is not None
    assert (told.code, told.field) == (code, field)


#: As a program without a type checker sees them.
_App: Any = App
_Retry: Any = Retry
_cron: Any = cron
_every: Any = every
_at: Any = at


@pytest.mark.parametrize(
    ("make", "code", "field"),
    [
        (lambda: _cron(5), "INVALID_VALUE", "cron"),
        (lambda: _cron("* * * * *", 5), "INVALID_VALUE", "timezone"),
        (lambda: _cron("* * * * *", spread=["5s"]), "INVALID_DURATION", "spread"),
        (lambda: _cron("* * * * *", misfire_bound="5"), "INVALID_VALUE", "misfire_bound"),
        (lambda: _cron("* * * * *", misfire=5), "INVALID_VALUE", "misfire"),
        (lambda: _every(["5m"]), "INVALID_DURATION", "every"),
        (lambda: _every("5m", anchor="noon"), "INVALID_INSTANT", "anchor"),
        (lambda: _at(5), "INVALID_INSTANT", "at"),
        (lambda: _at(datetime(2026, 1, 31)), "INVALID_INSTANT", "at"),  # noqa: DTZ001 - the fault
        (lambda: _Retry.fixed([5]), "INVALID_DURATION", "retry.interval"),
        (lambda: _App("shop", "memory:").shell("a", "b", payload=[1]), "INVALID_PAYLOAD", "payload"),
        (lambda: _App("shop", "memory:").shell("a", "b", triggers=5), "INVALID_VALUE", "triggers"),
        (lambda: _App("shop", "memory:").shell("a", "b", cron=5), "INVALID_VALUE", "triggers[0]"),
        (lambda: _App("shop", "memory:").shell("a", "b", labels=5), "INVALID_VALUE", "labels"),
        (lambda: _App("shop", "memory:").shell("a", "b", retry=5), "INVALID_POLICY", "retry"),
        (lambda: _App("shop", "memory:").shell(5, "b"), "INVALID_VALUE", "name"),
        (lambda: _App(5, "memory:"), "INVALID_VALUE", "name"),
        (lambda: _App("shop", 5), "INVALID_SETTING", "url"),
    ],
)
def test_a_value_of_another_type_in_python_is_refused_by_name(
    make: Callable[[], object], code: str, field: str
) -> None:
    told = sdk_told(make)
    assert told is not None
    assert (told.code, told.field) == (code, field)
