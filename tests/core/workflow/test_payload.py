"""References: how they are written, what they stand for, what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.core.workflow.payload import (
    Reference,
    UnresolvedError,
    parse_pointer,
    parse_template,
    resolve,
    value_at,
)
from ostinato.errors import UserError

ALL_KINDS = ("result", "run", "own")


def _parsed(value: object, kinds: tuple[str, ...] = ALL_KINDS) -> object:
    return parse_template(json.dumps(value).encode(), field="payload", kinds=kinds)


@pytest.mark.parametrize(
    ("pointer", "tokens"),
    [("", ()), ("/", ("",)), ("/a/0", ("a", "0")), ("/a~1b/m~0n", ("a/b", "m~n")), ("/~01", ("~1",))],
)
def test_a_pointer_is_that_of_rfc_6901(pointer: str, tokens: tuple[str, ...]) -> None:
    assert parse_pointer(pointer, field="path") == tokens


@pytest.mark.parametrize("pointer", ["a", "a/b", "/a~", "/~2", "/~~1", 7, None, "#/a"])
def test_what_is_no_pointer_is_refused(pointer: object) -> None:
    with pytest.raises(UserError) as caught:
        parse_pointer(pointer, field="p.path")
    assert (caught.value.code, caught.value.field) == ("INVALID_PAYLOAD", "p.path")


#: The document and the answers of RFC 6901, section 5.
_DOCUMENT = {
    "foo": ["bar", "baz"],
    "": 0,
    "a/b": 1,
    "c%d": 2,
    "e^f": 3,
    "g|h": 4,
    "i\\j": 5,
    'k"l': 6,
    " ": 7,
    "m~n": 8,
}


@pytest.mark.parametrize(
    ("pointer", "expected"),
    [
        ("", _DOCUMENT),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
    ],
)
def test_a_pointer_leads_where_the_rfc_says(pointer: str, expected: object) -> None:
    reference = Reference("result", "a", parse_pointer(pointer, field="path"))
    assert value_at(_DOCUMENT, reference) == expected


@pytest.mark.parametrize(
    "pointer", ["/foo/2", "/foo/-", "/foo/00", "/foo/+1", "/foo/x", "/nope", "/foo/0/x", "/foo/\u0661"]
)
def test_a_path_that_leads_nowhere_is_told_with_the_token(pointer: str) -> None:
    reference = Reference("result", "a", parse_pointer(pointer, field="path"))
    with pytest.raises(UnresolvedError, match="there is nothing at"):
        value_at(_DOCUMENT, reference)
    assert value_at(_DOCUMENT, Reference("result", "a", reference.path, b'"d"')) == "d"


def test_references_are_found_wherever_they_stand() -> None:
    template = parse_template(
        b'{"a":[1,{"b":{"$result":"n","path":"/x"}}],"c":{"$run":"payload"},"d":{"$result":"n","path":"/x"}}',
        field="payload",
        kinds=ALL_KINDS,
    )
    assert template.references == (Reference("result", "n", ("x",)), Reference("run", "payload"))
    values = {template.references[0]: "X", template.references[1]: {"r": 1}}
    assert resolve(template, values.__getitem__) == {"a": [1, {"b": "X"}], "c": {"r": 1}, "d": "X"}


def test_what_is_marked_as_literal_stands_as_it_is() -> None:
    template = parse_template(b'{"a":{"$literal":{"$result":"n"}}}', field="payload", kinds=())
    assert template.references == ()
    assert resolve(template, lambda reference: pytest.fail("nothing to look up")) == {"a": {"$result": "n"}}


@pytest.mark.parametrize(
    ("value", "field", "message"),
    [
        ({"a": {"$res": "n"}}, "payload.a", "'$res' is no reference"),
        ({"a": {"$result": "n", "$run": "payload"}}, "payload.a", "'$result' and '$run' in one object"),
        ({"a": {"$result": "n", "pth": ""}}, "payload.a", "'pth' does not belong to a reference"),
        ({"a": {"$result": 7}}, "payload.a", "$result takes the name of a node"),
        ({"a": {"$run": "result"}}, "payload.a", "$run takes payload"),
        ({"a": {"$own": "x"}}, "payload.a", "$own takes payload or result"),
        ({"a": [{"$result": "n", "path": "x"}]}, "payload.a[0].path", "'x' is not a JSON Pointer"),
        ({"a": {"$literal": 1, "b": 2}}, "payload.a", "'$literal' is no reference"),
        ({"$x": 1}, "payload", "'$x' is no reference"),
    ],
)
def test_a_reference_that_is_badly_formed_is_refused(value: object, field: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        _parsed(value)
    assert (caught.value.code, caught.value.field) == ("INVALID_PAYLOAD", field)
    assert message in caught.value.message


@pytest.mark.parametrize("text", [b"{", b'{"a":1,"a":2}', b'{"a":NaN}', b"[" * 5000, b'{"a":1e999}'])
def test_what_is_no_plain_json_is_refused(text: bytes) -> None:
    with pytest.raises(UserError) as caught:
        parse_template(text, field="payload", kinds=ALL_KINDS)
    assert caught.value.code == "INVALID_PAYLOAD"


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text().filter(lambda key: key[:1] != "$"), inner),
    max_leaves=8,
)


@settings(max_examples=50)
@given(_PLAIN)
def test_a_payload_without_references_is_what_it_says(value: object) -> None:
    try:
        encoded = json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    template = parse_template(encoded, field="payload", kinds=ALL_KINDS)
    assert template.references == ()
    assert resolve(template, lambda reference: None) == value
