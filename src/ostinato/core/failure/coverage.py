"""Whether one failure pattern covers another wholly: all that the second matches, the first matches too.

Used to refuse policies that contradict themselves (C073). Sound, not complete: a True is certain, a False may
mean only that it cannot be known from the names. Codes of the catalogue are taken to have its category.
"""

from __future__ import annotations

import builtins

from ostinato.core.failure.categories import category_of, is_category
from ostinato.core.failure.codes import CATALOGUE, code_family
from ostinato.core.failure.match import class_pattern_name, glob_contains, is_code_pattern, is_glob

_FAMILY_CODES = tuple(
    [f"HTTP_{status}" for status in range(100, 1000)]
    + [f"EXIT_{status}" for status in range(256)]
    + [f"SIGNAL_{number}" for number in range(1, 65)]
)


def covers(wide: str, narrow: str) -> bool:
    """Whether every failure that `narrow` matches is certainly matched by `wide` too."""
    if wide == narrow or set(wide) == {"*"}:
        return True
    if is_category(wide):
        return is_code_pattern(narrow) and _codes_are_all(wide, narrow)
    if is_code_pattern(wide) and is_glob(wide):
        return is_code_pattern(narrow) and glob_contains(wide, narrow)
    if is_code_pattern(wide) or is_code_pattern(narrow) or is_category(narrow):
        return False
    return _class_covers(class_pattern_name(wide), class_pattern_name(narrow))


def _codes_are_all(category: str, pattern: str) -> bool:
    """Whether every code of `pattern` has `category`; a task's own codes may have any."""
    if not is_glob(pattern):
        known = pattern in CATALOGUE or code_family(pattern) is not None
        return known and category_of(pattern) == category
    if not pattern.startswith(("HTTP_", "EXIT_", "SIGNAL_")):
        return False
    fitting = [code for code in _FAMILY_CODES if glob_contains(pattern, code)]
    return bool(fitting) and all(category_of(code) == category for code in fitting)


def _class_covers(wide: str, narrow: str) -> bool:
    if wide == narrow or ("." not in wide and narrow.rpartition(".")[2] == wide):
        return True
    wide_class, narrow_class = _builtin(wide), _builtin(narrow)
    return wide_class is not None and narrow_class is not None and issubclass(narrow_class, wide_class)


def _builtin(name: str) -> type[BaseException] | None:
    found = getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
