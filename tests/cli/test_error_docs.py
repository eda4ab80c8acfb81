"""The page of errors is what the catalogue says."""

from __future__ import annotations

import runpy

from house.project import ROOT

from ostinato.errors import CODES


def test_page_of_errors_is_current() -> None:
    generator = runpy.run_path(str(ROOT / "tools/generate_error_docs.py"))
    written = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    assert written == generator["rendered"](), "run: python tools/generate_error_docs.py"


def test_exit_codes_are_those_of_the_design() -> None:
    assert {entry.exit_code for entry in CODES.values()} == {1, 2, 3, 4, 5}
