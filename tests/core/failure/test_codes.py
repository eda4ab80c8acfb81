"""The catalogue of codes: numbers are total, stable and distinct; categories are as documented."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.failure.categories import CATEGORIES, CATEGORY_MEANINGS, category_of
from ostinato.core.failure.codes import (
    CATALOGUE,
    MODULES,
    OWN_CODES_COUNT,
    OWN_CODES_START,
    code_family,
    is_valid_code,
    numeric_code,
)


def test_every_row_has_a_valid_code_a_known_module_and_a_sentence() -> None:
    for code, row in CATALOGUE.items():
        assert is_valid_code(code)
        assert row.module in MODULES
        assert 0 < row.function < 100
        assert 0 < row.detail < 10_000
        assert row.category in CATEGORIES
        assert row.meaning.endswith((".", "detail."))


def test_numbers_of_the_catalogue_are_distinct() -> None:
    numbers = {numeric_code(code) for code in CATALOGUE}
    assert len(numbers) == len(CATALOGUE)


@pytest.mark.parametrize(
    ("code", "number"),
    [
        # Published numbers: a change here breaks what people have stored.
        ("TIMEOUT", 10_01_0001),
        ("WORKER_LOST", 10_03_0001),
        ("BAD_PAYLOAD", 20_01_0001),
        ("BAD_RESULT", 20_03_0001),
        ("PYTHON_ERROR", 30_01_0001),
        ("EXIT_137", 40_01_0137),
        ("SIGNAL_9", 40_02_0009),
        ("EXIT_3221225477", 40_01_9999),
        ("HTTP_503", 50_01_0503),
        ("HTTP_799", 50_01_0799),
        ("ECONNREFUSED", 70_01_0111),
    ],
)
def test_a_number_reads_module_function_detail(code: str, number: int) -> None:
    assert numeric_code(code) == number


@given(st.text())
def test_every_text_has_a_number(text: str) -> None:
    assert 10_000_000 <= numeric_code(text) <= 99_999_999


def test_own_codes_lie_in_their_range_and_never_move() -> None:
    assert OWN_CODES_START <= numeric_code("CARD_REFUSED") < OWN_CODES_START + OWN_CODES_COUNT
    assert numeric_code("CARD_REFUSED") == 90_969_708


@pytest.mark.parametrize("text", ["A", "CARD_REFUSED", "E2BIG", "A" * 64])
def test_capitals_digits_and_underscores_are_a_code(text: str) -> None:
    assert is_valid_code(text)


@pytest.mark.parametrize(
    "text", ["", "a", "Card", "_A", "1A", "A-B", "A B", "A" * 65, "Ä", "A\n", "HTTP_5*", "A\0"]
)
def test_anything_else_is_not_a_code(text: str) -> None:
    assert not is_valid_code(text)


@pytest.mark.parametrize(
    ("category", "codes"),
    [
        ("transient", "HTTP_408 HTTP_425 HTTP_429 HTTP_500 HTTP_502 HTTP_503 HTTP_504 HTTP_599"),
        ("permanent", "HTTP_400 HTTP_401 HTTP_404 HTTP_409 HTTP_422 HTTP_501 HTTP_505 HTTP_302 HTTP_204"),
        ("transient", "EXIT_0 EXIT_1 EXIT_75 EXIT_143 SIGNAL_15 SIGNAL_11"),
        ("permanent", "EXIT_126 EXIT_127 EACCES EINVAL BAD_PAYLOAD BAD_RESULT TASK_NOT_FOUND PERMANENT"),
        ("resource", "EXIT_137 SIGNAL_9 OOM ENOMEM ENOSPC EMFILE SPAWN_FAILED"),
        (
            "transient",
            "TIMEOUT HEARTBEAT_TIMEOUT ECONNREFUSED ECONNRESET DNS PYTHON_ERROR RETRY_LATER ENOENT",
        ),
        ("lost", "WORKER_LOST LEASE_EXPIRED NOT_ACKNOWLEDGED SUPERVISOR_GONE REFUSED HANDED_BACK COLLATERAL"),
        ("cancelled", "CANCELLED REPLACED"),
        ("transient", "CARD_REFUSED HTTP_ANSWER EXIT_LATER"),
    ],
)
def test_a_code_has_the_documented_category(category: str, codes: str) -> None:
    assert {code: category_of(code) for code in codes.split()} == dict.fromkeys(codes.split(), category)


def test_each_category_says_what_it_means() -> None:
    assert (
        tuple(CATEGORY_MEANINGS)
        == CATEGORIES
        == (
            "transient",
            "permanent",
            "resource",
            "lost",
            "cancelled",
        )
    )


def test_a_family_gives_its_number() -> None:
    assert code_family("HTTP_503") == ("HTTP", 503)
    assert code_family("EXIT_CODE") is None
    assert code_family("XHTTP_503") is None
