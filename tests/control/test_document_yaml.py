"""YAML texts: each fault has its line and column, and nothing means what its author did not write."""

from __future__ import annotations

import time

import pytest

from ostinato.control.document.errors import InvalidDocument
from ostinato.control.document.read import Document
from ostinato.control.document.yaml_text import TEXT_BYTES_MAX, read_yaml
from ostinato.core.definition import ShellSpec
from ostinato.core.schedule.trigger import DateTrigger
from ostinato.errors import UserError

TASK = "version: 1\ntasks:\n- name: t\n  shell: {command: 'true'}\n"


def faults_of(text: str | bytes) -> list[UserError]:
    with pytest.raises(InvalidDocument) as caught:
        read_yaml(text, name="tasks.yaml")
    assert all(fault.place.startswith("tasks.yaml:") for fault in caught.value.errors)
    return list(caught.value.errors)


def only(text: str | bytes) -> UserError:
    (fault,) = faults_of(text)
    return fault


def read(text: str | bytes) -> list[Document]:
    return read_yaml(text, name="tasks.yaml")


def test_faults_stand_in_the_order_of_the_file_with_line_and_column() -> None:
    faults = faults_of(
        """\
version: 1
namespace: shop
tasks:
  - name: backup
    shell: {command: pg_dump, env: {PORT: 8080}}
    triggers:
      - {cron: "0 2 * 13 *", timezone: Europe/Berln}
    retry:
      interval: 5
      max_retries: 3
    timeout: 1 hour
  - name: backup
    shel: {command: "true"}
"""
    )
    assert [(fault.place.removeprefix("tasks.yaml:"), fault.field) for fault in faults] == [
        ("5:37", "tasks[0].shell.env.PORT"),
        ("7:10", "tasks[0].triggers[0].cron"),
        ("7:30", "tasks[0].triggers[0].timezone"),
        ("9:7", "tasks[0].retry.interval"),
        ("10:7", "tasks[0].retry.max_retries"),
        ("11:5", "tasks[0].timeout"),
        ("12:5", "tasks[1]"),
        ("12:5", "tasks[1].name"),
        ("13:5", "tasks[1].shel"),
    ]
    assert str(faults[3]).startswith("tasks.yaml:9:7: tasks[0].retry.interval: 5 has no unit")


def test_several_documents_may_stand_in_one_file_and_empty_ones_do_not_count() -> None:
    first, second = read(f"---\n{TASK}---\nversion: 1\nnamespace: shop\ntasks: []\n---\n")
    assert (first.namespace, len(first.definitions), first.places) == ("default", 1, ("tasks.yaml:4:3",))
    assert (second.namespace, second.definitions) == ("shop", [])
    faults = faults_of("version: 2\ntasks: []\n---\nversion: 3\ntasks: []\n")
    assert [fault.place for fault in faults] == ["tasks.yaml:1:1", "tasks.yaml:4:1"]


def test_a_task_in_two_documents_of_a_file_is_refused_with_both_places() -> None:
    fault = only(f"{TASK}---\n{TASK}")
    assert fault.place == "tasks.yaml:8:3"
    assert "first at tasks.yaml:3:3" in fault.hint


@pytest.mark.parametrize(
    ("value", "words", "hint"),
    [
        ("on", "on means true", 'write true, or "on" for the text'),
        ("No", "No means false", 'write false, or "No" for the text'),
        ("0123", "0123 means an octal number", 'write "0123" for the text, 123 for the number'),
        ("10:30", "10:30 means a number of base 60", 'write "10:30" for the text'),
        ("!!python/object:os.system x", "the tag !!python/object:os.system is not allowed", "without it"),
        ("1e3", "1e3 means a text to YAML 1.1", 'write "1e3" for the text'),
        ("!!binary aGk=", "the tag !!binary is not allowed", "without it"),
        ("!secret x", "the tag !secret is not allowed", "without it"),
        ("9" * 5000, "is an integer of 5000 digits", "quotes"),
    ],
)
def test_a_value_that_yaml_would_change_is_refused_with_what_to_write(
    value: str, words: str, hint: str
) -> None:
    fault = only(f"{TASK}  payload: {{a: {value}}}\n")
    assert (fault.code, fault.field, fault.place) == (
        "INVALID_DOCUMENT",
        "tasks[0].payload.a",
        "tasks.yaml:5:16",
    )
    assert words in fault.message
    assert hint in fault.hint


def test_an_instant_keeps_its_offset_and_without_one_is_refused() -> None:
    (document,) = read(
        f"{TASK}  triggers: [{{at: 2026-01-01 01:00:00+01:00}}, {{at: 2026-01-02T00:00:00Z}}]\n"
    )
    assert document.definitions[0].triggers == (
        DateTrigger(at_us=1_767_225_600_000_000),
        DateTrigger(at_us=1_767_312_000_000_000),
    )
    fault = only(f"{TASK}  triggers: [{{at: 2026-01-01 00:00:00}}]\n")
    assert (fault.code, fault.field) == ("INVALID_INSTANT", "tasks[0].triggers[0].at")
    assert "2026-01-01T00:00:00Z for UTC" in fault.hint


def test_words_are_names_where_keys_stand_and_quoted_ones_are_texts() -> None:
    (document,) = read(f"{TASK}  payload: {{on: 1, no: 2, 1: 3, '<<': 'off', y: \"0123\"}}\n")
    assert bytes(document.definitions[0].payload) == b'{"on":1,"no":2,"1":3,"<<":"off","y":"0123"}'


def test_a_key_that_is_said_twice_is_refused_with_both_lines() -> None:
    fault = only(f"{TASK}  timeout: 1h\n  grace: 5s\n  timeout: 2h\n")
    assert (fault.field, fault.place) == ("tasks[0].timeout", "tasks.yaml:7:3")
    assert "in lines 5 and 7" in fault.message


def test_aliases_and_merges_are_read_and_what_is_said_wins_over_what_is_merged() -> None:
    (document,) = read(
        """\
version: 1
tasks:
  - name: a
    shell: &run {command: "true", env: {A: x}}
    retry: &often {max_retry: 9, interval: 1s}
  - name: b
    shell: {<<: *run, command: "false"}
    retry:
      max_retry: 1
      <<: [*often]
"""
    )
    first, second = document.definitions
    assert second.executor == ShellSpec("false", env={"A": "x"})
    assert (second.retry.max_retry, second.retry.interval_us) == (1, first.retry.interval_us)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<<: 5\n", "only blocks can be merged in"),
        ("a: *b\n", "the alias *b names nothing before it"),
        ("a: &a [*a]\n", "the alias *a names nothing before it"),
        ("? [a]\n: b\n", "a key is a text, not a list or block"),
        ("~: b\n", "a key is missing"),
        ("\ta: 1\n", "a tab indents"),
        ("a: @daily\n", "cannot start any token"),
        ("cron: * * * * *\n", "alphabetic or numeric"),
        ("a: b: c\n", "mapping values are not allowed"),
        ("a: [1, 2\n", "is not YAML"),
        ("a: '\n", "is not YAML"),
        ("a: %b\n", "cannot start any token"),
        ("[" * 500, "nested more than 110 deep"),
        ("[" * 100_000, "nest"),
        ("- " * 100_000, "nest"),
        ("", "holds no document"),
        ("# only a remark\n", "holds no document"),
        ("---\n---\n", "holds no document"),
        ("- a\n", "is a list, not a document"),
        ("tasks\n", "'tasks' is a text, not a document"),
        ("a\0b", "holds the control character"),
        ("a: \x1b", "holds the control character"),
        ("a: \ud800", "holds a lone surrogate"),
        (b"version: 1\na: \xff", "the byte 0xff is not UTF-8"),
        ("version: 1".encode("utf-16"), "the byte 0xff is not UTF-8"),
    ],
)
def test_what_is_no_document_is_refused_in_words(text: str | bytes, words: str) -> None:
    faults = faults_of(text)
    matching = [fault for fault in faults if words in fault.message]
    assert [fault.code for fault in matching] == ["INVALID_DOCUMENT"]


def test_what_must_be_quoted_is_said() -> None:
    for text in ("a: @daily\n", "a: * * * * *\n"):
        assert only(text).hint == 'put the text in quotes, as "* * * * *" or "@daily"'


@pytest.mark.parametrize(
    "text",
    [
        "tasks:\n  - name: a\n    timeout: 5m\n     grace: 5s\n",
        "tasks:\n  - name: a\n   timeout: 5m\n",
        "tasks:\n  - name: a\n  timeout: 5m\n",
        "tasks:\n    - name: a\n  - name: b\n",
    ],
)
def test_a_line_in_a_column_where_none_begins_is_told_to_look_at_the_indentation(text: str) -> None:
    assert "indentation" in only("version: 1\n" + text).hint


def test_a_field_of_a_task_in_the_column_of_the_document_is_told_where_it_belongs() -> None:
    text = 'version: 1\ntasks:\n- name: a\nshell: {command: "true"}\n'
    (fault,) = [fault for fault in faults_of(text) if fault.field == "shell"]
    assert fault.hint == "shell belongs to a task: indent it to the column of the task's name"


def test_a_byte_order_mark_and_windows_lines_do_no_harm() -> None:
    (document,) = read(("\ufeff" + TASK.replace("\n", "\r\n")).encode())
    assert [definition.name for definition in document.definitions] == ["t"]


def test_a_file_over_the_limit_is_refused() -> None:
    fault = only(TASK + "#" * TEXT_BYTES_MAX)
    assert (fault.code, fault.http_status) == ("BODY_TOO_LARGE", 413)


def test_aliases_that_would_make_thousands_of_millions_of_values_are_refused_before_they_do() -> None:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    started = time.monotonic()
    fault = only("\n".join(lines))
    assert "more than 1,000,000 values" in fault.message
    merged = "\n".join(["a: &a {" + ",".join(f"k{n}: 1" for n in range(1000)) + "}"] + ["b: {<<: *a}"] * 5000)
    assert any("more than 1,000,000 values" in fault.message for fault in faults_of(merged))
    assert time.monotonic() - started < 30


def test_depth_counts_what_an_alias_brings_along() -> None:
    deep = "[" * 60 + "]" * 60
    fault = only(f"a: &a {deep}\nb: {'[' * 60}*a{']' * 60}\n")
    assert "nested more than 110 deep" in fault.message


def test_what_can_still_be_read_after_a_fault_of_the_text_is_checked_too() -> None:
    faults = faults_of(f"{TASK}  payload: {{a: on}}\n  timeout: 5\n---\nversion: 1\ntasks: [\n")
    assert [fault.field for fault in faults] == ["tasks[0].payload.a", "tasks[0].timeout", ""]
