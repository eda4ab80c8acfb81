"""``--arg``: a text stays a text, and a value is one only where it is meant as one."""

from __future__ import annotations

import json

import pytest

from ostinato.cli.payloads import payload_of
from ostinato.errors import UserError


@pytest.mark.parametrize("text", ["3", "true", "null", '{"a": 1}', "a=b", "", "1e5", " 3", ":=3"])
def test_text_is_never_taken_for_a_value(text: str) -> None:
    assert json.loads(payload_of(None, [f"name={text}"])) == {"name": text}


@pytest.mark.parametrize(
    ("said", "value"), [("3", 3), ("true", True), ("null", None), ('"3"', "3"), ("[1, 2]", [1, 2])]
)
def test_json_after_a_colon_is_the_value_that_it_says(said: str, value: object) -> None:
    assert json.loads(payload_of('{"other": 1}', [f"name:={said}"])) == {"other": 1, "name": value}


@pytest.mark.parametrize(
    ("payload", "arguments", "field"),
    [
        ('{"a": 1, "a": 2}', [], "payload.a"),
        ('{"b": {"a": 1, "\\u0061": 2}}', [], "payload.b.a"),
        ('{"a": [1, {"": 1, "": 2}], "b": 1}', [], 'payload.a[1].""'),
        ('{"a": {"b": 1, "b": 2}, "a": 3}', [], "payload.a"),
        ('{"\\"": 1, "\\u0022": 2}', [], 'payload."'),
        (None, ['b:={"a": 1, "a": 1}'], "--arg.a"),
    ],
)
def test_name_that_stands_twice_in_an_object_is_refused(
    payload: str | None, arguments: list[str], field: str
) -> None:
    with pytest.raises(UserError, match="is given twice") as refused:
        payload_of(payload, arguments)
    assert (refused.value.code, refused.value.field) == ("INVALID_PAYLOAD", field)


@pytest.mark.parametrize(
    "payload", ['{"a": {"a": 1}, "b": [{"a": 1}, {"a": 1}]}', '{"a": "\\u0022\\u00e9", "b": "\\"x\\": 1"}']
)
def test_same_name_in_different_objects_is_fine(payload: str) -> None:
    assert json.loads(payload_of(payload, [])) == json.loads(payload)


@pytest.mark.parametrize("said", ["three", "", "{", "'3'"])
def test_what_is_no_json_after_a_colon_is_refused_with_the_way_to_say_a_text(said: str) -> None:
    with pytest.raises(UserError, match="is no JSON") as refused:
        payload_of(None, [f"name:={said}"])
    assert (refused.value.code, refused.value.field) == ("INVALID_PAYLOAD", "--arg")
    assert "name=TEXT" in refused.value.hint
