"""C187: what is said beside answers: log lines, words that a shell completes, what a reload has changed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.dev import clean_environment

from ostinato.cli.reload import Teller
from ostinato.clock import SystemClock
from ostinato.control.document.yaml_text import read_yaml, write_yaml
from ostinato.core.definition import ShellSpec, TaskDefinition, TaskRef
from ostinato.core.failure.text import escape_unseen, escape_unseen_in_json, has_unseen
from ostinato.errors import UserError
from ostinato.store.batches import NodeRow, WorkerRow
from ostinato.store.from_url import open_store_from_url

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\x9b2J\r\u202egnp\u200b\ufeff\U000e0041\x7f"


def seen(text: str) -> bool:
    """Whether each character is shown, but for ends of lines."""
    return all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.parametrize("form", ["json", "text"])
def test_c187_log_lines_hold_nothing_that_a_terminal_obeys_or_nobody_sees(form: str) -> None:
    program = f"""
import logging
from ostinato.observe.logs import configure_logging
configure_logging(level="info", form={form!r}, service_name="test")
text = {HOSTILE!r}
logging.getLogger("ostinato.test").warning("said", extra={{"error_message": text, "more": text}})
try:
    raise ValueError(text)
except ValueError:
    logging.getLogger(text).exception(text)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment() | {"PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
        timeout=60,
    )
    assert "<img src=x" in done.stderr
    assert seen(done.stderr)
    if form == "json":
        lines = [json.loads(line) for line in done.stderr.splitlines()]
        assert lines[0]["error_message"] == HOSTILE


def test_c187_shell_completes_no_name_that_it_would_carry_out(tmp_path: Path) -> None:
    """A worker chooses its name, and a shell puts what it completes into the line as it stands."""
    names = {
        "w1": "plain-1.eu",
        "w2": "$(touch owned)",
        "w3": "a;reboot",
        "w4": "`id`",
        "w5": "two words",
        "w6": "--yes",
    }

    async def make() -> None:
        store = open_store_from_url(f"sqlite:///{tmp_path}/ostinato.db", clock=SystemClock())
        await store.open()
        await store.register_node(NodeRow(id="n1", renewals=1, address="here", started_us=1))
        rows = [
            WorkerRow(worker_id=identity, worker_name=name, node_id="n1", state="connected")
            for identity, name in names.items()
        ]
        await store.record_workers(rows, gone_before_us=0)
        await store.close()

    asyncio.run(make())
    done = subprocess.run(
        [sys.executable, "-m", "ostinato.cli"],
        cwd=tmp_path,
        env=clean_environment()
        | {
            "_OSTINATO_COMPLETE": "complete_bash",
            "COMP_WORDS": "ostinato worker show ",
            "COMP_CWORD": "3",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert sorted(done.stdout.split("\n")[: len(names)]) == ["plain-1.eu", "w2", "w3", "w4", "w5", "w6"]


def test_c187_what_a_reload_has_changed_is_told_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    ref = TaskRef("default", "job")
    for in_json in (False, True):
        teller = Teller(in_json=in_json, namespace="default")
        teller.reloaded({ref: _job("true")}, {ref: _job(HOSTILE)}, code=True)
        teller.refused(
            UserError("INVALID_APP", HOSTILE, field=HOSTILE), tracebacks=[f"Traceback\n  {HOSTILE}\n"]
        )
        teller.unwatched(HOSTILE)
    told = capsys.readouterr()
    assert seen(told.out)
    assert seen(told.err)
    assert "<img src=x" in told.out
    assert "\\u202egnp" in told.err


def _job(command: str) -> TaskDefinition:
    return TaskDefinition(namespace="default", name="job", executor=ShellSpec(command), description=command)


# ── the rule itself ───────────────────────────────────────────────────────────────────────────────────

ANY_TEXT = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from(
            "\x00\x1b\x85\u00ad\u200b\u200c\u200d\u200e\u2028\u202e\u2060\u3164\ufeff\U000e0041 a\n\tש日"
        ),
    )
)


@given(ANY_TEXT)
def test_c187_escaped_text_has_nothing_unseen_and_escaping_it_again_changes_nothing(text: str) -> None:
    shown = escape_unseen(text)
    assert not has_unseen(shown)
    assert escape_unseen(shown) == shown
    assert has_unseen(text) == (shown != text)


@given(st.recursive(ANY_TEXT, lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner)))
def test_c187_json_whose_characters_are_escaped_means_the_same(value: object) -> None:
    for text in (json.dumps(value, ensure_ascii=False), json.dumps(value, indent=2)):
        assert json.loads(escape_unseen_in_json(text)) == value


@given(ANY_TEXT.filter(lambda text: text.isprintable() or not _refused(text)))
def test_c187_description_of_any_characters_is_written_as_yaml_that_hides_none(text: str) -> None:
    document = {"version": 1, "tasks": [{"name": "job", "shell": {"command": "true"}, "description": text}]}
    for ascii_only in (False, True):
        written = write_yaml(document, ascii_only=ascii_only)
        assert not has_unseen(written.replace("\n", ""))
        assert written.isascii() or not ascii_only
        (read,) = read_yaml(written, name="tasks.yaml")
        assert read.definitions[0].description == text


def _refused(text: str) -> bool:
    """Whether texts for people may not hold it: controls but ends of lines and tabs, lone surrogates."""
    return any(
        (character < " " and character not in "\n\t")
        or "\x7f" <= character <= "\x9f"
        or "\ud800" <= character <= "\udfff"
        for character in text
    )
