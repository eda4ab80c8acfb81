"""Exceptions that defend themselves: describing a failure never raises (C067, C069)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from ostinato.core.failure.classify import failure_from_exception
from ostinato.core.failure.failure import Failure
from ostinato.core.failure.signals import RetryLater, TaskError
from ostinato.core.instants import DURATION_MAX_US, INSTANT_MIN_US


class Interrupting(Exception):
    """Its text raises what is no Exception."""

    def __init__(self, raises: BaseException) -> None:
        super().__init__()
        self.raises = raises

    def __str__(self) -> str:
        raise self.raises


class Stop(BaseException):
    """A base exception of the user's."""


class TrappedFields(Exception):
    def __getattribute__(self, name: str) -> object:
        if name in {"__cause__", "__context__", "__suppress_context__", "__class__", "ostinato_code"}:
            raise KeyboardInterrupt
        return super().__getattribute__(name)


class TextAsCause(Exception):
    __cause__ = "text"  # type: ignore[assignment]  # a trap, as users may write it


class TrappedMeta(type):
    def __getattribute__(cls, name: str) -> object:
        if name in {"__qualname__", "__module__", "__mro__", "__name__"}:
            raise KeyboardInterrupt
        return super().__getattribute__(name)

    def __eq__(cls, other: object) -> bool:
        raise KeyboardInterrupt

    def __hash__(cls) -> int:
        return 1


class TrappedClass(Exception, metaclass=TrappedMeta):
    """Its class can be asked nothing."""


class NamelessModule(Exception):
    __module__ = 5  # type: ignore[assignment]  # a trap, as users may write it


class TrappedGroup(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> tuple[Exception, ...]:
        raise KeyboardInterrupt


class TrappedText(str):
    def __eq__(self, other: object) -> bool:
        raise KeyboardInterrupt

    def __hash__(self) -> int:
        raise KeyboardInterrupt

    def __len__(self) -> int:
        raise KeyboardInterrupt


class TrappedNumber(int):
    def __lt__(self, other: object) -> bool:
        raise KeyboardInterrupt

    def __gt__(self, other: object) -> bool:
        raise KeyboardInterrupt

    def __and__(self, other: object) -> int:
        raise KeyboardInterrupt

    def __hash__(self) -> int:
        raise KeyboardInterrupt


def raised(error: BaseException) -> Failure:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - whatever a task may raise
        return failure_from_exception(caught)


def with_field(error: BaseException, name: str, value: object) -> BaseException:
    setattr(error, name, value)
    return error


@pytest.mark.parametrize("raises", [KeyboardInterrupt(), SystemExit(3), GeneratorExit(), Stop()])
def test_c069_a_text_that_raises_anything_at_all_is_said_so(raises: BaseException) -> None:
    failure = raised(Interrupting(raises))
    name = type(raises).__qualname__
    assert failure.message == f"Interrupting: <its __str__ raised {name}>"
    assert failure.chain[0].message == f"<its __str__ raised {name}>"
    assert "in raised" in failure.traceback


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrappedFields("x"), "TrappedFields: x"),
        (lambda: TextAsCause("x"), "TextAsCause: x"),
        (lambda: TrappedClass("x"), "TrappedClass: x"),
        (lambda: NamelessModule("x"), "NamelessModule: x"),
    ],
)
def test_c069_fields_of_the_users_class_cannot_stand_in_the_way(
    make: Callable[[], Exception], message: str
) -> None:
    # Made in here: to pytest they are as hostile as to us.
    failure = raised(make())
    assert (failure.code, failure.message) == ("PYTHON_ERROR", message)
    assert failure.traceback.startswith("Traceback (most recent call last):")
    assert "in raised" in failure.traceback
    assert len(failure.chain) == 1


def test_c067_a_cause_behind_a_trap_is_still_followed() -> None:
    error = TrappedFields("outer")
    BaseException.__dict__["__cause__"].__set__(error, TaskError("inner", code="CARD_REFUSED"))
    assert raised(error).code == "CARD_REFUSED"


def test_members_of_a_group_are_the_real_ones() -> None:
    members: Sequence[Exception] = [TaskError("x", code="CARD_REFUSED")]
    assert raised(TrappedGroup("g", members)).code == "CARD_REFUSED"


@pytest.mark.parametrize(
    ("error", "code", "category"),
    [
        (with_field(TaskError("x"), "code", TrappedText("DISK")), "DISK", "transient"),
        (with_field(TaskError("x"), "code", 5), "TASK_ERROR", "transient"),
        (with_field(TaskError("x"), "category", object()), "TASK_ERROR", "transient"),
        (with_field(TaskError("x"), "category", TrappedText("resource")), "TASK_ERROR", "resource"),
        (with_field(ValueError("x"), "ostinato_code", TrappedText("DISK")), "DISK", "transient"),
        (with_field(OSError("x"), "errno", TrappedNumber(28)), "ENOSPC", "resource"),
        (SystemExit(TrappedNumber(259)), "EXIT_3", "transient"),
        (SystemExit(True), "EXIT_1", "transient"),
    ],
)
def test_subclasses_of_text_and_numbers_count_as_what_they_are(
    error: BaseException, code: str, category: str
) -> None:
    failure = raised(error)
    assert (failure.code, failure.category) == (code, category)
    assert type(failure.code) is str
    assert type(failure.category) is str


@pytest.mark.parametrize(
    ("value", "delay_us"),
    [(TrappedNumber(7), 7), (True, None), ("7", None), (10**40, DURATION_MAX_US), (-(10**40), 0)],
)
def test_a_delay_that_was_overwritten_is_a_plain_number_in_range(value: object, delay_us: int | None) -> None:
    failure = raised(with_field(RetryLater("x"), "retry_after_us", value))
    assert failure.retry_after_us == delay_us
    assert failure.retry_after_us is None or type(failure.retry_after_us) is int


def test_an_instant_that_was_overwritten_is_clamped() -> None:
    assert raised(with_field(RetryLater("x"), "retry_at_us", -(10**40))).retry_at_us == INSTANT_MIN_US
