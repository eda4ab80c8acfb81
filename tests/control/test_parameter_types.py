"""A value of the wrong type is refused where it is given, with or without the app, in the same words."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from support.cluster import Cluster, python_task

from ostinato.control.apply import apply
from ostinato.control.submit import SubmitRequest, submit
from ostinato.core.definition import Parameter, PythonSpec, TaskDefinition, decode_definition
from ostinato.errors import UserError
from ostinato.sdk.signature import Signature
from ostinato.testing.virtual_clock import run_virtual


def task(
    x: int, ratio: float = 0.5, name: str = "", flag: bool = False, many: list[int] | None = None
) -> None:
    """Does nothing."""


SIGNATURE = Signature(task, subject="default/t")


def _definition(**changes: object) -> TaskDefinition:
    return python_task(executor=SIGNATURE.spec("tasks:task", is_async=False), **changes)


def _refusal(payload: dict[str, Any]) -> UserError:
    found: list[UserError] = []

    async def play() -> None:
        cluster = Cluster()
        await cluster.store.open()
        await apply(cluster.store, [_definition()], now_us=0)
        request = SubmitRequest(task="t", payload=msgspec.json.encode(payload))
        with pytest.raises(UserError) as caught:
            await submit(cluster.store, [request], now_us=0, rng=Random(1))
        found.append(caught.value)

    run_virtual(play())
    return found[0]


def test_a_definition_carries_the_plain_types_of_its_parameters() -> None:
    executor = _definition().executor
    assert isinstance(executor, PythonSpec)
    assert executor.parameters == (
        Parameter("x", type="int"),
        Parameter("ratio", required=False, type="float"),
        Parameter("name", required=False, type="str"),
        Parameter("flag", required=False, type="bool"),
        # More than a plain type: the worker alone can tell.
        Parameter("many", required=False),
    )


def test_a_definition_of_before_has_no_types_and_takes_any() -> None:
    said = {"kind": "python", "call": "a:b", "parameters": [{"name": "x"}]}
    encoded = msgspec.json.encode({"namespace": "default", "name": "t", "executor": said})
    executor = decode_definition(encoded).executor
    assert isinstance(executor, PythonSpec)
    assert executor.parameters == (Parameter("x"),)


@pytest.mark.parametrize(
    "payload", [{"x": "5"}, {"x": 1.5}, {"x": True}, {"x": 1, "name": 5}, {"x": 1, "flag": "no"}, {"x": None}]
)
def test_the_wrong_type_is_told_in_the_words_of_the_app_itself(payload: dict[str, Any]) -> None:
    refused = _refusal(payload)
    with pytest.raises(UserError) as caught:
        SIGNATURE.encode_object(payload)
    own = caught.value
    assert (refused.code, refused.field, refused.message) == (own.code, own.field, own.message)
    assert refused.code == "INVALID_PAYLOAD"


def test_a_number_that_came_as_a_text_names_the_argument_that_would_have_been_right() -> None:
    refused = _refusal({"x": "5"})
    assert refused.field == "payload.x"
    assert "--arg x:=5" in refused.hint


@pytest.mark.parametrize(
    "payload", [{"x": 5}, {"x": 5, "ratio": 1}, {"x": 5, "many": [1]}, {"x": 5, "flag": True}]
)
def test_what_the_function_takes_is_taken(payload: dict[str, Any]) -> None:
    async def play() -> None:
        cluster = Cluster()
        await cluster.store.open()
        await apply(cluster.store, [_definition()], now_us=0)
        request = SubmitRequest(task="t", payload=msgspec.json.encode(payload))
        (receipt,) = await submit(cluster.store, [request], now_us=0, rng=Random(1))
        assert receipt.created

    run_virtual(play())


def test_a_payload_of_the_task_itself_is_checked_too() -> None:
    async def play() -> None:
        cluster = Cluster()
        await cluster.store.open()
        with pytest.raises(UserError) as caught:
            await apply(cluster.store, [_definition(payload=msgspec.Raw(b'{"x":"5"}'))], now_us=0)
        assert (caught.value.code, caught.value.field) == ("INVALID_PAYLOAD", "payload.x")

    run_virtual(play())
