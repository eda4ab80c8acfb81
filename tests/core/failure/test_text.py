"""Text from outside becomes text that every store, wire and page can carry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.failure.failure import (
    CHAIN_LENGTH_MAX,
    MESSAGE_BYTES_MAX,
    TRACEBACK_BYTES_MAX,
    Cause,
    safe_failure,
)
from ostinato.core.failure.text import cut_middle, cut_text, safe_text
from ostinato.core.instants import DURATION_MAX_US, INSTANT_MAX_US

ANY_TEXT = st.text(st.characters(codec=None))


def test_c157_nul_becomes_its_picture_and_a_lone_surrogate_the_replacement_sign() -> None:
    assert safe_text("x\0y\ud800z") == "x␀y\ufffdz"


@given(ANY_TEXT, st.integers(100, 300))
def test_cut_text_fits_and_can_be_stored(text: str, limit_bytes: int) -> None:
    for cut in (cut_text(text, limit_bytes), cut_middle(text, limit_bytes)):
        assert len(cut.encode("utf-8")) <= limit_bytes
        assert "\0" not in cut


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=25))
def test_short_text_stays_as_it_is(text: str) -> None:
    assert cut_text(text, 100) == text == cut_middle(text, 100)


def test_a_cut_says_how_much_there_was() -> None:
    assert cut_text("é" * 1000, 100).endswith(" … [cut, 1000 characters in all]")


def test_a_traceback_keeps_its_last_line() -> None:
    text = "first\n" + "x" * 100_000 + "\nValueError: last"
    cut = cut_middle(text, 1000)
    assert cut.startswith("first")
    assert cut.endswith("ValueError: last")
    assert "[cut, 100023 characters in all]" in cut


def test_c069_every_part_of_a_failure_is_capped() -> None:
    huge = "m" * 50_000_000
    cause = Cause("app.Error", "c" * 100_000, ("app.Error",) * 100)
    failure = safe_failure("PYTHON_ERROR", huge, traceback=huge, chain=[cause] * 100, detail=huge)
    assert len(failure.message.encode()) <= MESSAGE_BYTES_MAX
    assert "cut, 50000000 characters in all" in failure.message
    assert len(failure.traceback.encode()) <= TRACEBACK_BYTES_MAX
    assert len(failure.chain) == CHAIN_LENGTH_MAX
    assert len(failure.chain[0].message) < 2000
    assert len(failure.detail) <= 8192


@pytest.mark.parametrize("code", ["", "card refused", "A\0B", "\ud800"])
def test_a_code_that_is_none_is_reported_as_such(code: str) -> None:
    failure = safe_failure(code, "m", detail="body")
    assert failure.code == "UNKNOWN_CODE"
    assert failure.category == "transient"
    assert failure.detail == f"body; reported with code {code!r}"


def test_an_unknown_category_falls_back_to_that_of_the_code() -> None:
    failure = safe_failure("BAD_RESULT", "m", category="fatal")
    assert failure.category == "permanent"
    assert "'fatal'" in failure.detail


def test_a_category_may_differ_from_that_of_the_code() -> None:
    assert safe_failure("CARD_REFUSED", "m", category="permanent").category == "permanent"


def test_delays_and_instants_are_brought_into_range() -> None:
    assert safe_failure("A", "m", retry_after_us=-5).retry_after_us == 0
    assert safe_failure("A", "m", retry_after_us=10**30).retry_after_us == DURATION_MAX_US
    assert safe_failure("A", "m", retry_at_us=10**30).retry_at_us == INSTANT_MAX_US
    assert safe_failure("A", "m").retry_after_us is None


def test_a_failure_knows_its_number() -> None:
    assert safe_failure("HTTP_503", "m").numeric == 50_01_0503
