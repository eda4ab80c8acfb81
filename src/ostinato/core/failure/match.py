"""Patterns of failures, as they stand in ``retry_on``, ``no_retry_on`` and rules.

What a pattern is, is read from its spelling, in this order:

1. one of the five category words, in small letters: that category;
2. capitals, digits and underscores, perhaps with ``*`` or ``?``: a code, or a glob over codes. If no code
   fits, the same word is tried as the bare name of a class (``EOF``);
3. anything else: a Python exception class, by qualified name (``app.errors.Rejected``; builtins also without
   their module) or by bare name. Subclasses match.

Classes are looked for in the outermost exception first, then along the whole recorded chain: causes,
contexts, members of exception groups (C067). Codes and categories belong to the failure as a whole. Design
section 4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache

from ostinato.core.failure.categories import CATEGORIES, is_category
from ostinato.core.failure.codes import CODE_LENGTH_MAX
from ostinato.core.failure.failure import Failure
from ostinato.errors import UserError

PATTERN_LENGTH_MAX = 256

_CODE_PATTERN = re.compile(r"[A-Z0-9_*?]+", re.ASCII)
_CLASS_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_FAMILY_START = re.compile(r"(HTTP|EXIT|SIGNAL)_(.*)", re.ASCII | re.DOTALL)
_FAMILY_REST = re.compile(r"[0-9*?]+", re.ASCII)
#: Names that Python keeps for classes which were renamed or moved into builtins.
_ALIASES = {
    "IOError": "OSError",
    "EnvironmentError": "OSError",
    "WindowsError": "OSError",
    "socket.error": "OSError",
    "select.error": "OSError",
    "socket.timeout": "TimeoutError",
    "asyncio.TimeoutError": "TimeoutError",
    "asyncio.exceptions.TimeoutError": "TimeoutError",
    "concurrent.futures.TimeoutError": "TimeoutError",
}


def is_code_pattern(pattern: str) -> bool:
    """Whether the spelling is that of a code or a glob over codes."""
    return _CODE_PATTERN.fullmatch(pattern) is not None


def is_glob(pattern: str) -> bool:
    """Whether the pattern holds a wildcard."""
    return "*" in pattern or "?" in pattern


def class_pattern_name(pattern: str) -> str:
    """The name under which a class pattern is looked for: without ``builtins.``, aliases resolved."""
    bare = pattern.removeprefix("builtins.")
    return _ALIASES.get(bare, bare)


def matches(pattern: str, failure: Failure) -> str | None:
    """The element of `failure` that `pattern` fits, in words for the history, or None.

    As ``code HTTP_503``, ``code HTTP_503 of category transient``, ``class app.Rejected``,
    ``class ConnectionRefusedError (subclass of OSError)``, ``cause app.Rejected``.
    """
    if is_category(pattern):
        return f"code {failure.code} of category {pattern}" if failure.category == pattern else None
    if is_code_pattern(pattern):
        if is_glob(pattern):
            return f"code {failure.code}" if glob_contains(pattern, failure.code) else None
        if failure.code == pattern:
            return f"code {failure.code}"
    return _matching_class(class_pattern_name(pattern), failure)


@lru_cache(maxsize=4096)
def glob_contains(wide: str, narrow: str) -> bool:
    """Whether the glob `wide` matches `narrow`; if that is a glob itself, whether it matches all of it.

    A ``*`` of `narrow` can be met only by a ``*``, its ``?`` by ``*`` or ``?``. Takes time proportional to
    both lengths, where a regular expression of many stars could take for ever.
    """
    # For each prefix of `narrow`: whether what has been read of `wide` matches it.
    row = [True] + [False] * len(narrow)
    for sign in wide:
        if sign == "*":
            for index in range(1, len(row)):
                row[index] = row[index] or row[index - 1]
            continue
        shifted = [
            row[index] and (letter == sign or (sign == "?" and letter != "*"))
            for index, letter in enumerate(narrow)
        ]
        row = [False, *shifted]
    return row[-1]


def first_match(patterns: Iterable[str], failure: Failure) -> tuple[str, str] | None:
    """The first of `patterns` that fits, and the matched element in words; None if none does."""
    for pattern in patterns:
        element = matches(pattern, failure)
        if element is not None:
            return pattern, element
    return None


def validate_pattern(pattern: str, *, field: str) -> None:
    """Refuse what could never match or is likely a slip. Raises ``INVALID_POLICY`` naming `field`."""
    if not pattern or len(pattern) > PATTERN_LENGTH_MAX:
        raise _refusal(f"a pattern has 1 to {PATTERN_LENGTH_MAX} characters", field)
    if is_category(pattern):
        return
    if is_code_pattern(pattern):
        _validate_code_pattern(pattern, field)
        return
    if is_glob(pattern):
        raise _refusal(
            f"{pattern!r} is no glob over codes", field, hint="globs are written in capitals, such as HTTP_5*"
        )
    if _CLASS_NAME.fullmatch(pattern) is None:
        raise _refusal(
            f"{pattern!r} is neither a code, a category nor a class",
            field,
            hint="write ECONNREFUSED, HTTP_5*, transient or app.errors.Rejected",
        )
    if "." not in pattern and pattern == pattern.lower():
        close = get_close_matches(pattern, CATEGORIES, n=1)
        raise _refusal(
            f"{pattern!r} is not a category",
            field,
            hint=f"did you mean {close[0]}?"
            if close
            else f"categories are {', '.join(CATEGORIES)}; give a class in small letters with its module",
        )
    family = _FAMILY_START.fullmatch(pattern)
    if family is not None:
        raise _refusal(f"{pattern!r} is not a code", field, hint=f"write {family[1]}_ and a number or a glob")


def _validate_code_pattern(pattern: str, field: str) -> None:
    if len(pattern) > CODE_LENGTH_MAX:
        raise _refusal(f"a code has at most {CODE_LENGTH_MAX} characters", field)
    if pattern[0].isdigit() or pattern[0] == "_":
        raise _refusal(
            f"{pattern!r} is not a code", field, hint="codes begin with a letter, such as HTTP_503"
        )
    family = _FAMILY_START.fullmatch(pattern)
    if family is None:
        return
    if _FAMILY_REST.fullmatch(family[2]) is None:
        raise _refusal(
            f"{pattern!r} is not a code",
            field,
            hint=f"write {family[1]}_ and a number or a glob, such as HTTP_5*",
        )
    if family[1] == "HTTP" and not is_glob(pattern) and not 100 <= int(family[2][:9]) <= 999:
        raise _refusal(f"{pattern!r} names no HTTP status", field, hint="a status has three digits")


def _matching_class(name: str, failure: Failure) -> str | None:
    for position, known in enumerate(failure.classes):
        if _same_class(name, known):
            own = failure.classes[0]
            return f"class {own}" if position == 0 else f"class {own} (subclass of {known})"
    for cause in failure.chain:
        for known in cause.classes or (cause.class_name,):
            if _same_class(name, known):
                same = known == cause.class_name
                return (
                    f"cause {cause.class_name}" if same else f"cause {cause.class_name} (subclass of {known})"
                )
    return None


def _same_class(name: str, known: str) -> bool:
    return known == name or ("." not in name and known.rpartition(".")[2] == name)


def _refusal(message: str, field: str, *, hint: str = "") -> UserError:
    return UserError("INVALID_POLICY", message, field=field, hint=hint)
