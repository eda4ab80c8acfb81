"""Every example of docs/testing.md runs, as a user has it: an app, and a file of tests beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_page_pass(pytester: pytest.Pytester) -> None:
    app, *tests = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    pytester.makepyfile(shop=app)
    pytester.makepyfile(test_shop="\n\n".join(tests))
    pytester.makeini(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error"
    )
    result = pytester.runpytest_subprocess(
        *("-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:hypothesispytest"),
        *("-p", "no:faker", "-p", "no:anyio"),
    )
    result.assert_outcomes(passed=sum(block.count("def test_") for block in tests) + 2)


def test_every_call_of_the_page_is_one_of_the_cluster() -> None:
    from ostinato.testing import Cluster

    named = set(re.findall(r"\| `(?:cluster\.)?(\w+)\(", PAGE.read_text(encoding="utf-8")))
    assert {"fail", "hang", "stub", "advance", "finish"} <= named
    assert {name for name in named if not hasattr(Cluster, name)} <= {"raise_failure"}
