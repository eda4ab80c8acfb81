"""The test plumbing itself: skips fail in CI, leaks are found, ``make help`` is complete."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from house.project import ROOT
from support.leaks import no_leaks

_SKIPPING = """
import pytest
def test_that_is_skipped():
    pytest.skip("no server here")
"""
_SKIPPING_WITH_LEAVE = """
import pytest
@pytest.mark.where_there_is_one
def test_that_is_skipped():
    pytest.skip("no engine here")
"""
_SKIPPING_MODULE = "import pytest\npytest.skip('no server here', allow_module_level=True)\n"


@pytest.mark.parametrize(
    ("text", "ci", "status"),
    [
        (_SKIPPING, "true", 1),
        (_SKIPPING, "", 0),
        (_SKIPPING_MODULE, "true", 1),
        (_SKIPPING_MODULE, "", 0),
        (_SKIPPING_WITH_LEAVE, "true", 0),
    ],
    ids=["test-ci", "test", "module-ci", "module", "with-leave-ci"],
)
def test_skip_passes_at_home_and_fails_in_ci(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, text: str, ci: str, status: int
) -> None:
    monkeypatch.setenv("CI", ci)
    pytester.makeconftest((ROOT / "tests/conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(test_example=text, test_passing="def test_passes(): assert True")
    # A process of its own, as users run it; pytest would otherwise see our conftest twice.
    command = [
        sys.executable,
        "-m",
        "pytest",
        *("-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:faker", "-p", "no:anyio"),
        "-o",
        f"pythonpath={ROOT / 'tests'}",
        ".",
    ]
    finished = subprocess.run(command, cwd=pytester.path, capture_output=True, text=True, check=False)
    assert (finished.returncode != 0) == bool(status), finished.stdout
    assert ("skipped, which CI does not allow" in finished.stdout) == bool(status)


def test_leaked_child_process_is_found() -> None:
    with pytest.raises(AssertionError, match=r"child process: .*sleep"), no_leaks(settle_seconds=0.1):
        child = subprocess.Popen(["sleep", "60"])
    child.kill()
    child.wait()


def test_leaked_thread_is_found() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="leaked", daemon=True)
    with pytest.raises(AssertionError, match="thread: leaked"), no_leaks(settle_seconds=0.1):
        thread.start()
    release.set()
    thread.join()


def test_leaked_file_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"open file \d+: .*leaked"), no_leaks(settle_seconds=0.1):
        file = (tmp_path / "leaked").open("w")
    file.close()


def test_clean_block_leaks_nothing(tmp_path: Path) -> None:
    with no_leaks():
        (tmp_path / "a").write_text("a", encoding="utf-8")
        subprocess.run(["true"], check=True)
    assert (tmp_path / "a").exists()


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(re.findall(r"^  make (\S+)", listed.stdout, re.MULTILINE)) == set(phony[1].split())
