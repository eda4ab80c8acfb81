"""Rules for every test: none is skipped in CI, and those that start processes leave nothing behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from support.leaks import no_leaks

# A shell starts what it puts into the background with SIGINT ignored, and every command under test would
# inherit that: Ctrl-C could not be tried.
signal.signal(signal.SIGINT, signal.default_int_handler)

_TESTS = Path(__file__).parent

#: Folders whose tests start processes, threads or connections.
_LEAK_CHECKED = (_TESTS / "worker", _TESTS / "processes")


def skips_fail() -> bool:
    """At home a missing service skips its tests; in CI nothing may go untested."""
    return os.environ.get("CI") == "true"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    is_allowed = hasattr(report, "wasxfail") or item.get_closest_marker("where_there_is_one") is not None
    if report.skipped and skips_fail() and not is_allowed:
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped and skips_fail():
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    if not any(request.node.path.is_relative_to(folder) for folder in _LEAK_CHECKED):
        yield
        return
    with no_leaks():
        yield
