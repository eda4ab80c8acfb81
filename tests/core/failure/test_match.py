"""Patterns of failures: codes, globs, categories, classes; what each refuses; which covers which."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.failure.classify import failure_from_exception
from ostinato.core.failure.coverage import covers
from ostinato.core.failure.failure import Cause, Failure, safe_failure
from ostinato.core.failure.match import first_match, glob_contains, matches, validate_pattern
from ostinato.errors import UserError

REFUSED = safe_failure(
    "ECONNREFUSED",
    "refused",
    classes=("ConnectionRefusedError", "ConnectionError", "OSError", "Exception"),
    chain=(
        Cause("ConnectionRefusedError", "", ("ConnectionRefusedError", "ConnectionError", "OSError")),
        Cause("app.errors.Rejected", "no", ("app.errors.Rejected", "app.errors.AppError", "Exception")),
    ),
)


@pytest.mark.parametrize(
    ("pattern", "element"),
    [
        ("ECONNREFUSED", "code ECONNREFUSED"),
        ("ECONN*", "code ECONNREFUSED"),
        ("*", "code ECONNREFUSED"),
        ("ECONN???????", "code ECONNREFUSED"),
        ("ECONN??????", None),
        ("?CONNREFUSED", "code ECONNREFUSED"),
        ("ECONN", None),
        ("HTTP_5*", None),
        ("transient", "code ECONNREFUSED of category transient"),
        ("permanent", None),
        ("ConnectionRefusedError", "class ConnectionRefusedError"),
        ("builtins.ConnectionRefusedError", "class ConnectionRefusedError"),
        ("OSError", "class ConnectionRefusedError (subclass of OSError)"),
        ("IOError", "class ConnectionRefusedError (subclass of OSError)"),
        ("socket.error", "class ConnectionRefusedError (subclass of OSError)"),
        ("app.errors.Rejected", "cause app.errors.Rejected"),
        ("Rejected", "cause app.errors.Rejected"),
        ("app.errors.AppError", "cause app.errors.Rejected (subclass of app.errors.AppError)"),
        ("errors.Rejected", None),
        ("other.Rejected", None),
        ("ValueError", None),
    ],
)
def test_a_pattern_fits_by_its_spelling(pattern: str, element: str | None) -> None:
    assert matches(pattern, REFUSED) == element


def test_a_word_in_capitals_is_a_code_first_and_a_class_second() -> None:
    both = safe_failure("EOF", "m", classes=("app.EOF", "Exception"))
    assert matches("EOF", both) == "code EOF"
    only_class = safe_failure("PYTHON_ERROR", "m", classes=("app.EOF", "Exception"))
    assert matches("EOF", only_class) == "class app.EOF"
    assert matches("EO*", only_class) is None


def test_a_category_word_is_never_a_class() -> None:
    odd = safe_failure("OOM", "m", classes=("app.transient", "Exception"))
    assert matches("transient", odd) is None
    assert matches("app.transient", odd) == "class app.transient"


def test_c067_a_class_is_found_below_a_wrapper_and_in_a_group() -> None:
    try:
        raise ExceptionGroup("g", [RuntimeError("r")]) from KeyError("k")
    except ExceptionGroup as error:
        failure = failure_from_exception(error)
    assert matches("RuntimeError", failure) == "cause RuntimeError"
    assert matches("LookupError", failure) == "cause KeyError (subclass of LookupError)"


def test_the_first_pattern_that_fits_is_named() -> None:
    assert first_match(["HTTP_5*", "OSError", "transient"], REFUSED) == (
        "OSError",
        "class ConnectionRefusedError (subclass of OSError)",
    )
    assert first_match([], REFUSED) is None


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "ECONNREFUSED",
            "HTTP_5*",
            "HTTP_50?",
            "HTTP_429",
            "EXIT_1",
            "*",
            "E*",
            "permanent",
            "CARD_REFUSED",
        ),
        *("OSError", "app.errors.Rejected", "_private.Thing", "zlib.error", "app.Ünlucky"),
    ],
)
def test_usable_patterns_are_accepted(pattern: str) -> None:
    validate_pattern(pattern, field="f")
    assert matches(pattern, safe_failure("NEVER_SEEN", "m")) in (None, "code NEVER_SEEN")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("", "1 to 256"),
        ("A" * 300, "1 to 256"),
        ("A" * 65, "at most 64"),
        ("HTTP_5xx", "HTTP_ and a number"),
        ("HTTP_5XX", "HTTP_ and a number"),
        ("HTTP_", "HTTP_ and a number"),
        ("HTTP_99", "three digits"),
        ("HTTP_1000", "three digits"),
        ("EXIT_ONE", "EXIT_ and a number"),
        ("503", "begin with a letter"),
        ("tranisent", "did you mean transient?"),
        ("timeout", "give a class in small letters with its module"),
        ("app.*", "written in capitals"),
        ("http_5*", "written in capitals"),
        ("app..Error", "neither a code"),
        ("app.Error ", "neither a code"),
        (".Error", "neither a code"),
        ("app-Error", "neither a code"),
    ],
)
def test_patterns_that_are_slips_are_refused_with_the_field(pattern: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as refused:
        validate_pattern(pattern, field="retry.retry_on[3]")
    assert refused.value.code == "INVALID_POLICY"
    assert refused.value.field == "retry.retry_on[3]"


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("OSError", "ConnectionRefusedError"),
        ("IOError", "builtins.TimeoutError"),
        ("Exception", "OSError"),
        ("Rejected", "app.Rejected"),
        ("app.Rejected", "app.Rejected"),
        ("HTTP_5*", "HTTP_503"),
        ("HTTP_*", "HTTP_5*"),
        ("HTTP_5??", "HTTP_50?"),
        ("permanent", "HTTP_404"),
        ("permanent", "BAD_PAYLOAD"),
        ("transient", "HTTP_502"),
        ("lost", "WORKER_LOST"),
        ("*", "app.Rejected"),
        ("transient", "transient"),
    ],
)
def test_a_wider_pattern_covers(wide: str, narrow: str) -> None:
    assert covers(wide, narrow)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("ConnectionRefusedError", "OSError"),
        ("app.Rejected", "Rejected"),
        ("OSError", "app.Rejected"),
        ("HTTP_503", "HTTP_5*"),
        ("HTTP_5?", "HTTP_5*"),
        ("HTTP_50?", "HTTP_5??"),
        ("transient", "HTTP_5*"),
        ("transient", "HTTP_404"),
        # A task's own code may have any category.
        ("transient", "CARD_REFUSED"),
        ("transient", "C*"),
        ("permanent", "transient"),
        ("HTTP_5*", "transient"),
        ("ECONNREFUSED", "ConnectionRefusedError"),
        ("OSError", "ECONNREFUSED"),
    ],
)
def test_a_pattern_that_leaves_something_out_does_not_cover(wide: str, narrow: str) -> None:
    assert not covers(wide, narrow)


GLOBS = st.text("AB*?", max_size=8)


@given(GLOBS, st.text("AB", max_size=8))
def test_globs_match_like_regular_expressions(glob: str, text: str) -> None:
    expected = re.fullmatch(glob.replace("*", ".*").replace("?", "."), text) is not None
    assert glob_contains(glob, text) == expected


@given(GLOBS, GLOBS, st.text("AB", max_size=8))
def test_a_covering_glob_matches_whatever_the_covered_one_does(wide: str, narrow: str, text: str) -> None:
    if glob_contains(wide, narrow) and glob_contains(narrow, text):
        assert glob_contains(wide, text)


def test_a_glob_of_many_stars_is_answered_at_once() -> None:
    failure = Failure(code="A" * 63 + "B", category="transient", message="")
    assert matches("*A" * 31, failure) is None
