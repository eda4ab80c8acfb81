"""The types of the public names are a contract: one file must pass, one must fail line by line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def mypy(name: str) -> list[tuple[int, str]]:
    """Line and code of each error that mypy has for a file."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(HERE / name)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    errors = [re.search(rf"{re.escape(name)}:(\d+): error: .*\[([\w-]+)\]$", line) for line in lines]
    assert all(errors), lines
    return [(int(found[1]), found[2]) for found in errors if found is not None]


@pytest.mark.parametrize("name", ["api.py", "kit.py"])
def test_what_users_write_passes_a_strict_check(name: str) -> None:
    assert mypy(name) == []


def test_each_mistake_is_found_with_its_code() -> None:
    expected = [
        (number, found[1])
        for number, line in enumerate((HERE / "errors.py").read_text(encoding="utf-8").splitlines(), start=1)
        if (found := re.search(r"# E: ([\w-]+)$", line))
    ]
    assert len(expected) > 15
    assert mypy("errors.py") == expected
