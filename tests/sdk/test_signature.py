"""Arguments are checked where they are given, and come back as the types that were annotated."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest

from ostinato import App, Context, UserError
from ostinato.sdk.signature import Signature

if TYPE_CHECKING:
    from nowhere import Invisible  # type: ignore[import-not-found]  # exists for type checkers alone

CONTEXT = Context(instance_id="i", task="t")


def read(function: Callable[..., object]) -> Signature:
    return Signature(function, subject="default/t")


def sent(function: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """What the function receives in a worker when it is submitted with these arguments."""
    signature = read(function)
    call = signature.decode_call(signature.encode_call(args, kwargs), CONTEXT)
    return function(*call.args, **call.kwargs)


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Line:
    product: str
    price: Decimal


class Order(msgspec.Struct):
    lines: list[Line]
    placed: datetime


VALUES: list[tuple[object, object]] = [
    (int, 2**63),
    (float, 0.1),
    (str, "ä\0"),
    (bytes, b"\x00\xff"),
    (date, date(2026, 3, 14)),
    (datetime, datetime(2026, 3, 14, 1, 2, 3, 4, tzinfo=UTC)),
    (Decimal, Decimal("1.10")),
    (UUID, UUID(int=7)),
    (set[int], {1, 2, 3}),
    (tuple[int, str], (1, "a")),
    (dict[int, str], {1: "one"}),
    (Colour, Colour.RED),
    (Order, Order([Line("tea", Decimal("4.20"))], datetime(2026, 1, 1, tzinfo=UTC))),
    (int | None, None),
    (Literal["a", "b"], "b"),
    (Annotated[int, msgspec.Meta(ge=1)], 1),
    (Any, {"plain": [1, 2.5, None, True]}),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_c161_an_annotated_argument_comes_back_equal_and_of_its_type(kind: object, value: object) -> None:
    def task(value: object) -> object:
        return value

    task.__annotations__["value"] = kind
    received = sent(task, value)
    assert received == value
    assert type(received) is type(value)


WRONG: list[tuple[object, object, str]] = [
    (int, "17", "expected `int`, got `str`"),
    (int, True, "expected `int`, got `bool`"),
    (str, 17, "expected `str`, got `int`"),
    (date, "2026-03-14", "a date is expected, not a str"),
    (list[int], [1, "2"], "expected `int`, got `str`"),
    (float, 2**53 + 1, "not the same"),
    (float, float("nan"), "nan has no form"),
    (Literal["a"], "b", "invalid enum value"),
    (Annotated[int, msgspec.Meta(ge=1)], 0, ">= 1"),
    (Order, {"lines": []}, "missing required field"),
    (Any, {1, 2}, "a set"),
]


@pytest.mark.parametrize(("kind", "value", "words"), WRONG, ids=[words for _, _, words in WRONG])
def test_a_wrong_argument_is_refused_at_submit_with_its_name(kind: object, value: object, words: str) -> None:
    def task(amount: object) -> None: ...

    task.__annotations__["amount"] = kind
    with pytest.raises(UserError) as caught:
        read(task).encode_call((value,), {})
    assert caught.value.code == "INVALID_PAYLOAD"
    assert caught.value.field.startswith("payload.amount")
    assert words in caught.value.message.lower()


def order(customer: int, /, amount: float, *, currency: str = "EUR") -> str:
    return f"{customer} {amount} {currency}"


@pytest.mark.parametrize(
    ("args", "kwargs", "field"),
    [
        ((), {}, "payload.customer"),
        ((1,), {}, "payload.amount"),
        ((1, 2.0, "EUR"), {}, "payload"),
        ((1, 2.0), {"amount": 3.0}, "payload.amount"),
        ((1, 2.0), {"currrency": "EUR"}, "payload.currrency"),
        ((1, 2.0), {"customer": 1}, "payload.customer"),
    ],
)
def test_missing_unknown_and_doubled_arguments_are_named(
    args: tuple[object, ...], kwargs: dict[str, object], field: str
) -> None:
    with pytest.raises(UserError) as caught:
        read(order).encode_call(args, kwargs)
    assert (caught.value.code, caught.value.field) == ("INVALID_PAYLOAD", field)


def test_arguments_travel_by_name_whatever_way_they_were_given() -> None:
    assert read(order).encode_call((7, 1), {"currency": "USD"}) == (
        b'{"customer":7,"amount":1,"currency":"USD"}'
    )
    assert sent(order, 7, amount=2.5) == "7 2.5 EUR"


def test_further_keyword_arguments_are_taken_where_the_function_does() -> None:
    def task(first: int, **rest: int) -> dict[str, int]:
        return {"first": first, **rest}

    assert sent(task, 1, second=2) == {"first": 1, "second": 2}
    with pytest.raises(UserError) as caught:
        sent(task, 1, second="2")
    assert caught.value.field == "payload.second"


def test_a_payload_by_name_may_have_the_form_of_json() -> None:
    def task(day: date, price: Decimal) -> tuple[date, Decimal]:
        return day, price

    signature = read(task)
    for payload in (
        {"day": "2026-03-14", "price": "1.10"},
        {"day": date(2026, 3, 14), "price": Decimal("1.10")},
    ):
        call = signature.decode_call(signature.encode_object(payload), CONTEXT)
        assert task(*call.args, **call.kwargs) == (date(2026, 3, 14), Decimal("1.10"))
    with pytest.raises(UserError) as caught:
        signature.encode_object({"day": "tomorrow", "price": "1.10"})
    assert caught.value.field == "payload.day"


def test_the_context_is_the_workers_to_give() -> None:
    def task(
        context: Context, day: int, *, other: Context | None = None
    ) -> tuple[Context, int, Context | None]:
        return context, day, other

    assert sent(task, 7) == (CONTEXT, 7, CONTEXT)
    with pytest.raises(UserError, match="given by the worker"):
        read(task).encode_call((7,), {"context": 1})
    assert [parameter.name for parameter in read(task).spec("m:f", is_async=False).parameters] == ["day"]


def test_an_annotation_that_cannot_be_resolved_is_not_checked_but_the_others_are() -> None:
    def task(strange: Invisible, day: int, context: "Invisible.Context") -> tuple[object, int, object]:  # noqa: UP037 - written as users do
        return strange, day, context

    assert sent(task, {"x": 1}, 7) == ({"x": 1}, 7, CONTEXT)
    with pytest.raises(UserError) as caught:
        sent(task, 1, "7")
    assert caught.value.field == "payload.day"


def test_an_annotation_that_json_cannot_rebuild_refuses_its_values() -> None:
    class Connection:
        pass

    def task(connection: Connection | None = None) -> None: ...

    assert read(task).encode_call((), {}) == b"{}"
    with pytest.raises(UserError) as caught:
        read(task).encode_call((Connection(),), {})
    assert caught.value.field == "payload.connection"


def test_a_payload_that_does_not_fit_is_refused_in_the_worker_too() -> None:
    signature = read(order)
    for payload, field in (
        (b"[]", "payload"),
        (b'{"customer":1}', "payload.amount"),
        (b'{"customer":1,"amount":"x"}', "payload.amount"),
        (b'{"customer":1,"amount":1,"more":1}', "payload.more"),
        (b"\xff", "payload"),
    ):
        with pytest.raises(UserError) as caught:
            signature.decode_call(payload, CONTEXT)
        assert (caught.value.code, caught.value.field) == ("INVALID_PAYLOAD", field)


def test_a_result_comes_back_as_its_annotated_type() -> None:
    def task() -> dict[int, Line]: ...  # type: ignore[empty-body]  # its annotation is all that counts

    signature = read(task)
    value = {7: Line("tea", Decimal("4.20"))}
    encoded = signature.encode_result(value)
    assert encoded == b'{"7":{"product":"tea","price":"4.20"}}'
    assert signature.decode_result(encoded) == value


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (float("nan"), "result"),
        ({"a": [b"x"]}, "result.a[0]"),
        ({1: 2}, "result"),
        (datetime(2026, 1, 1, tzinfo=UTC), "result"),
    ],
)
def test_c161_a_result_that_json_cannot_carry_names_its_path(value: object, field: str) -> None:
    def task():  # type: ignore[no-untyped-def]  # without annotation on purpose
        ...

    with pytest.raises(UserError) as caught:
        read(task).encode_result(value)
    assert (caught.value.code, caught.value.field) == ("INVALID_PAYLOAD", field)


def test_a_function_that_returns_something_else_than_it_says_keeps_what_it_returned() -> None:
    def task() -> int: ...  # type: ignore[empty-body]  # its annotation is all that counts

    signature = read(task)
    assert signature.decode_result(signature.encode_result("text")) == "text"


def test_functions_that_cannot_be_tasks_are_refused_where_they_are_declared() -> None:
    app = App("shop")

    def variadic(*values: int) -> None: ...

    def generator() -> Any:
        yield 1

    for function, field in ((variadic, "values"), (generator, "function"), (print, "args")):
        with pytest.raises(UserError) as caught:
            app.task(function)
        assert (caught.value.code, caught.value.field) == ("INVALID_VALUE", field)
    assert app.definitions() == []


@pytest.mark.parametrize(
    ("kind", "value"),
    [(float, 2**53 + 1), (list[float], [1.5, 2**53 + 1]), (dict[str, float], {"a": 2**63 - 1}), (float, 7)],
)
def test_c161_a_result_is_never_rounded_to_fit_its_annotation(kind: object, value: object) -> None:
    def task():  # type: ignore[no-untyped-def]  # its annotation is set below
        ...

    task.__annotations__["return"] = kind
    signature = read(task)
    assert signature.decode_result(signature.encode_result(value)) == value
