"""The house rules of the project, applied to every file of the checkout."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from house import content_rules, honesty_rules, shape_rules
from house.exceptions import EXCEPTIONS
from house.project import Project, Violation

Rule = Callable[[Project], Iterator[Violation]]

RULES: tuple[Rule, ...] = (
    shape_rules.module_docstrings,
    shape_rules.file_length,
    shape_rules.function_length,
    shape_rules.positional_parameters,
    shape_rules.boolean_parameters,
    content_rules.leftovers,
    content_rules.swallowed_errors,
    content_rules.banned_calls,
    content_rules.test_sleeps,
    content_rules.machine_paths,
    honesty_rules.silenced_checks,
    honesty_rules.error_codes,
    honesty_rules.dead_files,
    honesty_rules.hollow_tests,
)


@pytest.fixture(scope="module")
def checkout() -> Project:
    return Project.from_checkout()


@pytest.fixture(scope="module")
def found_by(checkout: Project) -> Callable[[Rule], list[Violation]]:
    """What a rule finds in the checkout, which is read once for the rule and for all exceptions to it."""

    @cache
    def found(rule: Rule) -> list[Violation]:
        return list(rule(checkout))

    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds_in_the_whole_checkout(rule: Rule, found_by: Callable[[Rule], list[Violation]]) -> None:
    violations = [
        str(violation)
        for violation in found_by(rule)
        if (rule.__name__, violation.path, violation.name) not in EXCEPTIONS
    ]
    assert not violations, f"{rule.__doc__}\n  " + "\n  ".join(violations)


@pytest.mark.parametrize("key", EXCEPTIONS, ids=" ".join)
def test_exception_is_still_needed_and_gives_a_reason(
    key: tuple[str, str, str], found_by: Callable[[Rule], list[Violation]]
) -> None:
    name, path, place = key
    rule = next(rule for rule in RULES if rule.__name__ == name)
    assert (path, place) in {(violation.path, violation.name) for violation in found_by(rule)}
    assert len(EXCEPTIONS[key].split()) >= 3


def test_checkout_that_is_read_is_not_empty(checkout: Project) -> None:
    """A rule over no files would hold for ever."""
    assert {"src", "tests"} <= {file.path.split("/")[0] for file in checkout.python()}
    assert len(list(checkout.python("src"))) > 20


def test_import_ostinato_loads_neither_a_database_nor_the_wire() -> None:
    """`import ostinato` stays light in a user's web process."""
    heavy = {"sqlalchemy", "grpc", "alembic", "uvicorn", "typer"}
    # The façade loads its names when they are first used, so all of them are used here.
    program = f"import sys; from ostinato import *; print(sorted({heavy} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
