"""The example suite of examples/testing passes where it stands, and in seconds."""

from __future__ import annotations

import shutil

import pytest
from house.project import ROOT


def test_the_example_suite_passes(pytester: pytest.Pytester) -> None:
    for path in (ROOT / "examples/testing").glob("*.py"):
        shutil.copy(path, pytester.path)
    pytester.makeini("[pytest]\nfilterwarnings = error")
    result = pytester.runpytest_subprocess(
        *("-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:hypothesispytest", "-p", "no:asyncio"),
        *("-p", "no:faker", "-p", "no:anyio"),
    )
    result.assert_outcomes(passed=8)
