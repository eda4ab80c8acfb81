"""What is drawn over and asked at a terminal."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec
import pytest
from support.dev import Dev

from ostinato.cli.output import cut, text_width
from ostinato.cli.status_line import status_of
from ostinato.cli.watching import fitted
from ostinato.core.model import Instance
from ostinato.core.states import Hold, State

_S = 1_000_000


class Terminal(Protocol):
    """A command that has a terminal for stdin, stdout and stderr."""

    shown: str
    process: subprocess.Popen[bytes]

    def read_until(self, *texts: str) -> str: ...
    def type(self, text: str) -> None: ...
    def end(self) -> int: ...


class OpenTerminal(Protocol):
    """Runs a command at a terminal of its own."""

    def __call__(self, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> Terminal: ...


def _identity(talk: Dev, task: str, *options: str) -> str:
    identity: str = talk.json("task", "trigger", task, *options)["instance_id"]
    return identity


def test_wait_draws_one_line_with_state_attempt_and_newest_output(talk: Dev, terminal: OpenTerminal) -> None:
    at = terminal("task", "trigger", "endless", "--wait", cwd=talk.directory)
    shown = at.read_until("\r\x1b[Krunning: attempt 1 for ", ": still here")
    identity = shown.split()[0]
    at.process.send_signal(signal.SIGINT)
    assert at.end() == 130
    assert f"instance {identity} goes on" in at.shown
    assert f"ostinato instance logs --follow {identity}" in at.shown
    assert f"ostinato instance cancel {identity}" in at.shown
    assert "Traceback" not in at.shown
    assert talk.json("instance", "show", identity)["state"] == "running"
    assert talk.run("instance", "cancel", identity).returncode == 0


def test_wait_says_when_the_next_attempt_is_due_on_a_line_that_fits(
    talk: Dev, terminal: OpenTerminal
) -> None:
    at = terminal("task", "trigger", "later", "--wait", cwd=talk.directory, env={"COLUMNS": "40"})
    shown = at.read_until("attempt 1 failed", "retry_waiting: attempt 2 is due in ")
    at.process.send_signal(signal.SIGINT)
    assert at.end() == 130
    drawn = re.findall("\r\x1b\\[K([^\r\n]+)(?=\r\x1b)", shown)  # remarks end a line of their own
    assert drawn
    assert max(map(text_width, drawn)) < 40
    assert talk.run("instance", "cancel", shown.split()[0]).returncode == 0


def test_watch_draws_over_what_it_drew_and_ctrl_c_ends_it_well(talk: Dev, terminal: OpenTerminal) -> None:
    at = terminal("task", "list", "--watch", "--interval", "100ms", cwd=talk.directory)
    shown = at.read_until("NAME", "\x1b[J")
    count = int(re.findall("\x1b\\[(\\d+)F", shown)[0])
    first = shown.partition("\x1b[")[0]
    assert first.count("\n") == count
    at.process.send_signal(signal.SIGINT)
    assert at.end() == 0


def test_watch_of_an_instance_ends_when_it_has_ended(talk: Dev, terminal: OpenTerminal) -> None:
    identity = _identity(talk, "add")
    at = terminal("instance", "show", identity, "--watch", cwd=talk.directory)
    assert at.end() == 0
    assert "state    success" in at.shown


@pytest.mark.parametrize(("answer", "status", "stays"), [("n\n", 1, True), ("y\n", 0, False)])
def test_delete_asks_at_a_terminal(
    talk: Dev, terminal: OpenTerminal, *, answer: str, status: int, stays: bool
) -> None:
    document = {"version": 1, "tasks": [{"name": "doomed", "shell": {"command": "true"}}]}
    (talk.directory / "doomed.yaml").write_text(json.dumps(document), encoding="utf-8")
    assert talk.run("apply", "-f", "doomed.yaml", "--yes").returncode == 0
    at = terminal("task", "delete", "doomed", cwd=talk.directory)
    at.read_until("delete task default/doomed, with 0 waiting instances", "[y/N] ")
    at.type(answer)
    assert at.end() == status
    assert (talk.run("task", "show", "doomed").returncode == 0) is stays


# ── what fits ─────────────────────────────────────────────────────────────────────────────────────────


def _stream(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding)


@pytest.mark.parametrize(
    "text", ["日本語日本語日本語", "שלום שלום שלום", "e\u0301" * 30, "a\x1b[31m\u202eb" * 5]
)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 10])
def test_c195_line_is_cut_to_its_columns_in_every_encoding(text: str, encoding: str, width: int) -> None:
    shown = cut(text, width, stream=_stream(encoding))
    written = shown.encode(encoding, "backslashreplace").decode(encoding)
    assert text_width(written) <= width
    assert shown.isprintable() or text.startswith("e")


def test_line_that_fits_is_not_cut() -> None:
    assert cut("日本", 4, stream=_stream("utf-8")) == "日本"


def test_answer_higher_than_the_terminal_says_how_much_is_hidden() -> None:
    lines = fitted([f"line {number}" for number in range(10)], width=80, height=4)
    assert lines == ["line 0", "line 1", "line 2", "... 7 more lines; without --watch all are shown"]
    assert fitted(["a", "b"], width=80, height=2) == ["a", "b"]


def _instance(state: State, **more: object) -> Instance:
    plain = Instance(
        id="01",
        namespace="default",
        task="t",
        task_version=1,
        partition=0,
        state=state,
        priority=4,
        due_us=10 * _S,
        created_us=0,
    )
    return msgspec.structs.replace(plain, **more)


@pytest.mark.parametrize(
    ("instance", "line"),
    [
        (_instance(State.PENDING), "pending: attempt 1 is due in 5s, at 1970-01-01T00:00:10Z"),
        (
            _instance(State.PENDING, hold=Hold.BUSY, reason="all slots are taken"),
            "pending: attempt 1 waits for 5s: all slots are taken",
        ),
        (
            _instance(State.RETRY_WAITING, attempt=2),
            "retry_waiting: attempt 3 is due in 5s, at 1970-01-01T00:00:10Z",
        ),
        (
            _instance(State.RUNNING, attempt=2, started_us=2 * _S, worker_name="w1"),
            "running: attempt 2 for 3s on w1: 40 %",
        ),
        (
            _instance(State.RUNNING, attempt=1, started_us=2 * _S, cancel_requested_us=3 * _S),
            "running: attempt 1 for 3s, asked to end: 40 %",
        ),
    ],
)
def test_status_says_how_long_why_and_when(instance: Instance, line: str) -> None:
    assert status_of(instance, now_us=5 * _S, words="40 %") == line
