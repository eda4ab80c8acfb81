"""Tables for people and JSON for programs, at any width and encoding (C195, C187)."""

from __future__ import annotations

import io
import json
import sys

import pytest

from ostinato.cli.output import print_json, print_table, safe, safe_lines, table_lines, text_width

_HOSTILE = "a\x1b[31mred\x07\r\nb\x9b2J\u202egnp\ud800"


def test_c187_nothing_that_a_terminal_obeys_is_left_in_data() -> None:
    shown = safe(_HOSTILE)
    assert shown == "a\\x1b[31mred\\x07\\r\\nb\\x9b2J\\u202egnp\\ud800"
    assert shown.isprintable()


def test_lines_and_tabs_of_output_stay() -> None:
    assert safe_lines("a\tb\r\nc\x1b[0m\n") == "a\tb\nc\\x1b[0m\n"


def test_table_is_aligned_also_for_wide_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["NAME", "STATE"], [["日本", "ok"], ["plain", "failed"]], empty="none")
    assert capsys.readouterr().out.splitlines() == ["NAME   STATE", "日本   ok", "plain  failed"]
    assert [text_width(text) for text in ("日本", "e\u0301", "a\u200d")] == [4, 1, 1]


def test_c195_table_that_does_not_fit_is_written_as_blocks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table(["ID", "TASK", "NOTE"], [["01abcdefgh", "backup", ""], ["02", "load", "x"]], empty="none")
    assert capsys.readouterr().out == "ID: 01abcdefgh\nTASK: backup\n\nID: 02\nTASK: load\nNOTE: x\n"


def test_pipe_without_columns_is_never_folded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(["A", "B"], [["x" * 200, "y" * 200]], empty="none")
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_table_without_rows_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["A"], [], empty="There are no tasks.")
    assert capsys.readouterr().out == "There are no tasks.\n"


def test_json_means_the_same_and_holds_no_character_that_a_terminal_obeys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_json({"name": _HOSTILE, "wide": "日本"})
    written = capsys.readouterr().out
    assert json.loads(written) == {"name": _HOSTILE, "wide": "日本"}
    assert written.replace("\n", "").isprintable()
    assert "日本" in written


def test_json_is_ascii_where_the_output_is(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", errors="backslashreplace"))
    print_json(["日本", "\U0001f600"])
    sys.stdout.flush()
    assert json.loads(raw.getvalue()) == ["日本", "\U0001f600"]


def test_a_last_column_that_is_cut_keeps_one_row_a_line() -> None:
    rows = [("report", "shell " + "x" * 200), ("tiny", "shell true")]
    lines = table_lines(("NAME", "RUNS"), rows, empty="", width=40, cuts_last=True)
    assert len(lines) == 3
    assert max(map(len, lines)) == 40
    assert lines[1].startswith("report  shell xxx")
    assert lines[1].endswith("...")
    # Too little is left to recognise it by: a block a row, with all of it.
    assert "RUNS: " + rows[0][1] in table_lines(("NAME", "RUNS"), rows, empty="", width=20, cuts_last=True)
