"""``instance logs`` shows what was written as it was written, with a tail and without."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
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
    # The worker ends the last line.
    assert whole == "a\\x0cb\\x0bc\\x85d\\u2028e\\x1cf\n\nlast \\r word\n"
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 3
    for count in (1, 2, 3, 9):
        assert _text(dev, identity, "--attempt", "1", "--tail", str(count)) == "".join(lines[-count:])
    assert _text(dev, identity) == f"--- attempt 1 ---\n{whole}"


def test_line_in_pieces_is_one_line_of_a_tail_and_nothing_is_put_between_them(dev: ReloadingDev) -> None:
    identity: str = dev.json("task", "trigger", "odd", "--delay", "1h")["instance_id"]
    pieces = [(1, "first\nhalf "), (1, "of"), (1, " it\nun"), (1, "ended"), (2, "anew")]
    with closing(sqlite3.connect(dev.directory / "ostinato.db", timeout=30)) as connection, connection:
        connection.executemany(
            "INSERT INTO output (instance_id, attempt, sequence, attempt_id, at_us, stream, text)"
            " VALUES (?, ?, ?, 'a', 1, 'stdout', ?)",
            [(identity, attempt, number, text) for number, (attempt, text) in enumerate(pieces)],
        )
    heads = ("--- attempt 1 ---\n", "--- attempt 2 ---\n")
    assert _text(dev, identity) == f"{heads[0]}first\nhalf of it\nunended\n{heads[1]}anew"
    assert _text(dev, identity, "--tail", "1") == f"{heads[1]}anew"
    assert _text(dev, identity, "--tail", "3") == f"{heads[0]}half of it\nunended\n{heads[1]}anew"
    kept: list[dict[str, Any]] = dev.json("instance", "logs", identity, "--tail", "3")
    assert [item["text"] for item in kept] == ["half ", "of", " it\n", "un", "ended", "anew"]


def test_last_words_of_a_command_are_lines_as_it_wrote_them(dev: ReloadingDev) -> None:
    identity = _ended(dev, "fails")
    story = dev.json("instance", "show", identity)
    assert story["attempts"][-1]["error_output"] == ["a\fb", "\u2028c"]


def test_following_one_that_has_not_started_says_once_that_it_waits_and_why(dev: ReloadingDev) -> None:
    identity: str = dev.json("task", "trigger", "odd", "--delay", "1h")["instance_id"]
    following = subprocess.Popen(
        [sys.executable, "-m", "ostinato.cli", "instance", "logs", identity, "--follow"],
        cwd=dev.directory,
        env=clean_environment() | {"PYTHONIOENCODING": "utf-8"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with following:
        assert following.stderr is not None
        said = following.stderr.readline()
        assert said.startswith(f"instance {identity} waits (pending): attempt 1 is due at ")
        dev.json("instance", "cancel", identity)
        _, rest = following.communicate(timeout=60)
    assert "waits" not in rest
