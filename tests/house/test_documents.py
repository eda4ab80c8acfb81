"""The pages agree with the code: settings, hard cases, make targets, and links."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from house.project import ROOT, Project

from ostinato.settings import SETTINGS

#: | C001 | what | where |
_CASE_ROW = re.compile(r"^\| (C\d{3}) \|.*\| ([^|]*) \|$", re.MULTILINE)


def _page(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_operations_page_lists_every_setting_and_no_other() -> None:
    listed = re.findall(
        r"^\| `(--[a-z-]+)` \| `(OSTINATO_[A-Z_]+)` \|", _page("docs/operations.md"), re.MULTILINE
    )
    assert listed == [(setting.flag, setting.variable) for setting in SETTINGS]


def test_every_hard_case_that_the_page_calls_tested_is_named_by_the_file_it_points_to() -> None:
    rows = _CASE_ROW.findall(_page("docs/cases.md"))
    assert len(rows) > 30
    for case, where in rows:
        for path in re.findall(r"`(tests/[^`]+)`", where):
            assert re.search(case, _page(path), re.IGNORECASE), f"{path} does not name {case}"


def test_every_hard_case_has_a_test_or_says_what_it_waits_for() -> None:
    rows = _CASE_ROW.findall(_page("docs/cases.md"))
    unclear = [case for case, where in rows if not where.strip(" \u2013")]
    assert unclear == []


def test_no_hard_case_is_listed_twice() -> None:
    cases = [case for case, _ in _CASE_ROW.findall(_page("docs/cases.md"))]
    assert sorted(cases) == sorted(set(cases))


def test_first_task_of_the_readme_is_an_app_that_can_be_registered(tmp_path: Path) -> None:
    block = re.search(r"```python\n(# shop.py\n.*?)```", _page("README.md"), re.DOTALL)
    assert block is not None
    (tmp_path / "shop.py").write_text(block[1], encoding="utf-8")
    app = runpy.run_path(str(tmp_path / "shop.py"))["app"]
    assert [definition.name for definition in app.definitions()] == [
        "greet",
        "fetch_prices",
        "backup",
        "ping",
    ]


@pytest.mark.parametrize("path", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_on_a_page_exist(path: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", _page("Makefile"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)\b(?=\s{2,}#|`)", _page(path)))
    assert named
    assert named <= targets


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for path, text in Project.from_checkout().texts.items():
        if path.endswith(".md"):
            folder = (ROOT / path).parent
            links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
            broken += [f"{path}: {link}" for link in links if not (folder / link).exists()]
    assert broken == []
