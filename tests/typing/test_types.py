"""The types of the public names are a contract: one file must pass, one must fail line by line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


#: What users write: it passes a strict check.
RIGHT = ("api.py", "kit.py")
#: Mistakes, each with the code that it is to be found with.
WRONG = "errors.py"


@pytest.fixture(scope="module")
def found() -> dict[str, list[tuple[int, str]]]:
    """By file: line and code of each error that mypy has for it. One run, which loads the package once."""
    names = (*RIGHT, WRONG)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            *(str(HERE / name) for name in names),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    errors = [re.search(r"(?:^|/)(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", line) for line in lines]
    assert all(error is not None and error[1] in names for error in errors), lines
    by_file: dict[str, list[tuple[int, str]]] = {name: [] for name in names}
    for error in errors:
        if error is not None:
            by_file[error[1]].append((int(error[2]), error[3]))
    return by_file


@pytest.mark.parametrize("name", RIGHT)
def test_what_users_write_passes_a_strict_check(name: str, found: dict[str, list[tuple[int, str]]]) -> None:
    assert found[name] == []


def test_each_mistake_is_found_with_its_code(found: dict[str, list[tuple[int, str]]]) -> None:
    expected = [
        (number, comment[1])
        for number, line in enumerate((HERE / WRONG).read_text(encoding="utf-8").splitlines(), start=1)
        if (comment := re.search(r"# E: ([\w-]+)$", line))
    ]
    assert len(expected) > 15
    assert found[WRONG] == expected
