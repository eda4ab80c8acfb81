"""``instance logs`` shows what was written as it was written, with a tail and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.dev import clean_environment
from support.reloading import ReloadingDev, reloading_dev

TASKS = r"""
version: 1
tasks:
  - name: odd
    # What other programs take for the end of a line, and a last line without one.
    shell: {command: "printf 'a\\fb\\vc\\302\\205d\\342\\200\\250e\\034f\\n\\nlast \\r word'"}
  - name: pieces
    shell: {command: "echo first; printf 'one '; sleep 0.5; printf 'two '; sleep 0.5; echo three"}
  - name: fails
    shell: {command: "printf 'a\\fb\\r\\n\\342\\200\\250c\\n' >&2; exit 3"}
    retry: {max_retry: 0}
"""


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReloadingDev]:
    folder = tmp_path_factory.mktemp("logs")
    (folder / "tasks.yaml").write_text(TASKS, encoding="utf-8")
    with reloading_dev(folder, "tasks.yaml", "--no-reload") as running:
        yield running


def _ended(dev: ReloadingDev, task: str) -> str:
    identity: str = dev.json("task", "trigger", task)["instance_id"]
    _text(dev, identity, "--follow")
    return identity


def _text(dev: ReloadingDev, identity: str, *options: str) -> str:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "ostinato.cli", "instance", "logs", identity, *options],
        cwd=dev.directory,
        env=clean_environment() | {"PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_lines_end_at_line_feeds_alone_and_a_tail_changes_nothing_of_them(dev: ReloadingDev) -> None:
    identity = _ended(dev, "odd")
    whole = _text(dev, identity, "--attempt", "1")
    assert whole == "a\\x0cb\\x0bc\\x85d\\u2028e\\x1cf\n\nlast \\r word".replace("\\x0c", "\\x0c")
    lines = whole.split("\n")
    for count in (1, 2, 3, 9):
        assert _text(dev, identity, "--attempt", "1", "--tail", str(count)) == "\n".join(lines[-count:])
    assert _text(dev, identity) == f"--- attempt 1 ---\n{whole}"


def test_line_that_came_in_pieces_is_one_line(dev: ReloadingDev) -> None:
    identity = _ended(dev, "pieces")
    assert _text(dev, identity, "--attempt", "1") == "first\none two three\n"
    assert _text(dev, identity, "--attempt", "1", "--tail", "1") == "one two three\n"
    kept: list[dict[str, Any]] = dev.json("instance", "logs", identity, "--tail", "1")
    assert "".join(item["text"] for item in kept) == "one two three\n"
    assert len(kept) > 1


def test_last_words_of_a_command_are_lines_as_it_wrote_them(dev: ReloadingDev) -> None:
    identity = _ended(dev, "fails")
    story = dev.json("instance", "show", identity)
    assert story["story"]["attempts"][-1]["error_output"] == ["a\fb", "\u2028c"]
