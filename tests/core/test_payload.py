"""Payloads and results come back as they were sent, or are refused with their path."""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.payload import (
    PAYLOAD_BYTES_MAX,
    canonical_json,
    check_json_object,
    encode_payload,
    encode_result,
    merge_objects,
)
from ostinato.core.plain import from_plain, is_plain, same_value, to_plain
from ostinato.errors import UserError


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def itself() -> object:
    value: dict[str, object] = {}
    value["again"] = value
    return value


REFUSED: list[tuple[object, str, str]] = [
    (math.nan, "payload", "nan"),
    ({"a": [1, -math.inf]}, "payload.a[1]", "-inf"),
    ({"a": {"b": float("1e400")}}, "payload.a.b", "inf"),
    ([2**64], "payload[0]", "64 bits"),
    (-(2**63) - 1, "payload", "64 bits"),
    (10**5000, "payload", "64 bits"),
    ({"x": b"raw"}, "payload.x", "bytes"),
    ({"x": {1, 2}}, "payload.x", "a set"),
    ({"x": datetime(2026, 1, 1, tzinfo=UTC)}, "payload.x", "a datetime"),
    ({"x": Decimal("0.1")}, "payload.x", "a Decimal"),
    ({"x": {1: "one"}}, "payload.x", "the key 1 is an int"),
    ({"x": "\ud800"}, "payload.x", "surrogate"),
    ({"\udfff": 1}, "payload", "not valid Unicode"),
    ({"x": object()}, "payload.x", "an object"),
]


@pytest.mark.parametrize(("value", "path", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_c161_what_json_cannot_carry_is_refused_with_its_path(value: object, path: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        encode_payload(value)
    assert (caught.value.code, caught.value.field) == ("INVALID_PAYLOAD", path)
    assert words in caught.value.message


@pytest.mark.parametrize("make", [lambda: nested(10_000), lambda: nested(101), itself])
def test_c161_a_nesting_bomb_is_refused_and_does_not_exhaust_the_stack(make: object) -> None:
    with pytest.raises(UserError, match="nested more than 100 deep") as caught:
        encode_payload(make())  # type: ignore[operator]  # each maker takes nothing
    assert len(caught.value.field) < 300


def test_c161_nesting_of_100_integers_of_64_bits_and_nul_are_carried_unchanged() -> None:
    value = {"deep": nested(98), "big": 2**63, "odd": 2**53 + 1, "low": -(2**63), "nul": "a\0b", "f": 0.1}
    assert msgspec.json.decode(encode_payload(value)) == value
    assert encode_result(2**64 - 1) == b"18446744073709551615"


def test_a_result_is_named_as_such_and_may_be_larger_than_a_payload() -> None:
    text = "x" * PAYLOAD_BYTES_MAX
    assert len(encode_result(text)) == len(text) + 2
    with pytest.raises(UserError, match=r"262,146 bytes of JSON, the limit is 262,144") as caught:
        encode_payload(text)
    assert caught.value.code == "PAYLOAD_TOO_LARGE"
    with pytest.raises(UserError) as caught:
        encode_result({"sum": math.nan})
    assert caught.value.field == "result.sum"


@pytest.mark.parametrize(
    ("encoded", "words"),
    [
        (b"[1]", "an array"),
        (b"null", "null"),
        (b"{", "not JSON"),
        (b'{"a": NaN}', "nan has no form in JSON"),
        (b'{"a": 1e400}', "inf has no form in JSON"),
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"a": 18446744073709551616}', "64 bits"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested"),
    ],
)
def test_json_from_outside_passes_the_same_checks(encoded: bytes, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        check_json_object(encoded)
    assert caught.value.code == "INVALID_PAYLOAD"


def test_merging_puts_the_members_of_the_second_object_in() -> None:
    merged = merge_objects(b'{"a": 1, "b": {"c": 2}}', b'{"b": 3, "d": 12345678901234567890}')
    assert json.loads(merged) == {"a": 1, "b": 3, "d": 12345678901234567890}
    assert merge_objects(b"{}", b'{"x":1}') == b'{"x":1}'


def test_canonical_json_is_equal_for_equal_values() -> None:
    assert canonical_json(b'{"b": 1, "a": [ 2 ]}') == canonical_json(b'{"a":[2],"b":1}')


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_c161_every_value_comes_back_equal_or_is_refused(value: object) -> None:
    try:
        encoded = encode_payload(value)
    except UserError:
        assert not is_plain(value)
        return
    assert msgspec.json.decode(encoded) == value
    assert json.loads(encoded) == value


@dataclasses.dataclass(eq=False)
class Order:
    """A class that compares by identity."""

    day: datetime
    prices: dict[int, Decimal]


def test_a_typed_value_travels_as_plain_json_and_is_rebuilt() -> None:
    order = Order(datetime(2026, 1, 1, tzinfo=UTC), {7: Decimal("0.10")})
    plain = to_plain(order, field="order", rebuild=lambda value: from_plain(value, Order, field="order"))
    assert plain == {"day": "2026-01-01T00:00:00Z", "prices": {"7": "0.10"}}
    assert same_value(from_plain(plain, Order, field="order"), order)


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (2**53 + 1, float, "9007199254740992.0, which is not the same"),
        ("2026-01-01", datetime, "xpected `datetime`|nvalid"),
        ({"when": datetime(2026, 1, 1, tzinfo=UTC)}, dict[str, object], "not the same"),
        (b"raw", str, "a str is expected, not a bytes"),
        (True, int, "expected `int`, got `bool`"),
    ],
)
def test_a_value_that_would_come_back_changed_is_refused(value: object, kind: object, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        to_plain(value, field="x", rebuild=lambda plain: from_plain(plain, kind, field="x"))
    assert caught.value.code == "INVALID_PAYLOAD"


@dataclasses.dataclass
class Strict:
    """A class that raises what it likes."""

    amount: int

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise KeyError("no such amount")


def test_a_class_that_raises_when_it_is_made_is_refused_as_well() -> None:
    with pytest.raises(UserError, match="KeyError: 'no such amount'") as caught:
        from_plain({"amount": -1}, Strict, field="payload.entry")
    assert caught.value.field == "payload.entry"


def test_a_wrong_part_of_a_typed_value_is_named() -> None:
    with pytest.raises(UserError) as caught:
        from_plain({"items": [1, "two"]}, dict[str, list[int]], field="payload.order")
    assert caught.value.field == "payload.order[...][1]"
