"""Which instances are meant: one reading of a filter, whoever says it."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.control.filters import instance_filter
from ostinato.core.states import State
from ostinato.errors import UserError
from ostinato.store.batches import InstanceFilter

NOTHING: dict[str, Any] = {
    "namespace": None,
    "task": None,
    "states": (),
    "key": None,
    "code": None,
    "created_from_us": None,
    "created_before_us": None,
}


def test_what_is_not_said_matches_all() -> None:
    assert instance_filter(**NOTHING) == InstanceFilter()


def test_each_part_is_taken_and_a_state_that_is_said_twice_counts_once() -> None:
    said = {
        "namespace": "shop",
        "task": "report",
        "states": ["failed", "success", "failed"],
        "key": "order 1",
        "code": "EXIT_1",
        "created_from_us": 1,
        "created_before_us": 2,
    }
    read = instance_filter(**said)
    assert read == InstanceFilter(**{**said, "states": (State.FAILED, State.SUCCESS)})


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"namespace": "a b"}, "INVALID_NAME"),
        ({"task": ""}, "INVALID_NAME"),
        ({"states": ["failed", "sleeping"]}, "INVALID_VALUE"),
        ({"key": ""}, "INVALID_NAME"),
        ({"key": "a\0b"}, "INVALID_NAME"),
        ({"code": "\ud800"}, "INVALID_VALUE"),
        ({"code": "x" * 201}, "INVALID_VALUE"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "--", "filter."])
def test_a_part_that_cannot_be_is_refused_and_named_as_it_was_said(
    said: dict[str, Any], code: str, prefix: str
) -> None:
    with pytest.raises(UserError) as caught:
        instance_filter(**{**NOTHING, **said}, prefix=prefix)
    (name,) = said
    assert (caught.value.code, caught.value.field) == (code, prefix + ("state" if name == "states" else name))


def test_a_state_comes_with_the_closest_one() -> None:
    with pytest.raises(UserError, match=r"did you mean failed\?"):
        instance_filter(**{**NOTHING, "states": ["faild"]})
