"""Every fault of a document is found at once, once a field, with its path, its code and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato import App
from ostinato.control.document.errors import InvalidDocument
from ostinato.control.document.read import Document, read_document, read_task, refuse_repeats
from ostinato.core.definition import PythonSpec, ShellSpec, TaskDefinition
from ostinato.core.instants import HOUR, MINUTE, SECOND
from ostinato.core.retry.policy import DEFAULT_POLICY, RetryPolicy
from ostinato.core.schedule.trigger import CronTrigger, DateTrigger, IntervalTrigger
from ostinato.errors import UserError
from ostinato.sdk.declaration import TaskOptions

SHELL = {"command": "true"}


def task(**changes: Any) -> dict[str, Any]:
    return {"name": "t", "shell": SHELL, **changes}


def faults_of(value: object) -> list[UserError]:
    with pytest.raises(InvalidDocument) as caught:
        read_document(value)
    first, *_ = caught.value.errors
    assert (caught.value.code, caught.value.field) == (first.code, first.field)
    return list(caught.value.errors)


def task_faults(**changes: Any) -> list[UserError]:
    with pytest.raises(InvalidDocument) as caught:
        read_task(task(**changes), namespace="default", field="")
    return list(caught.value.errors)


def test_a_document_of_the_design_is_read() -> None:
    document = read_document(
        {
            "version": 1,
            "tasks": [
                {
                    "name": "backup",
                    "shell": {"command": "pg_dump shop", "env": {}},
                    "triggers": [
                        {"cron": "0 2 * * *", "timezone": "Europe/Berlin", "misfire_grace": "30m"},
                        {"every": "5m"},
                        {"at": "2026-01-01T01:00:00+01:00"},
                    ],
                    "retry": {"interval": "5s", "max_retry": 0},
                    "timeout": "none",
                }
            ],
        }
    )
    assert document == Document(
        "default",
        [
            TaskDefinition(
                "default",
                "backup",
                ShellSpec("pg_dump shop"),
                triggers=(
                    CronTrigger(cron="0 2 * * *", timezone="Europe/Berlin", misfire_grace_us=30 * MINUTE),
                    IntervalTrigger(every_us=5 * MINUTE),
                    DateTrigger(at_us=1_767_225_600 * SECOND),
                ),
                retry=RetryPolicy(max_retry=0),
                timeout_us=None,
            )
        ],
    )


def test_null_is_the_same_as_left_out_but_none_must_be_said() -> None:
    read = read_task(task(timeout=None, retry=None, labels=None, http=None), namespace="default", field="")
    assert (read.timeout_us, read.retry) == (HOUR, DEFAULT_POLICY)
    assert read_task(task(retry={}), namespace="default", field="").retry == RetryPolicy()
    assert [fault.field for fault in task_faults(name=None)] == ["name"]


def test_all_faults_are_told_at_once_and_one_a_field() -> None:
    faults = faults_of(
        {
            "version": 1,
            "tsks": [],
            "tasks": [
                task(
                    timeout=30,
                    priority="5",
                    triggers=[
                        {"cron": "0 2 * 13 *", "timezone": "Nowhere", "misfire": "never"},
                        {"every": "1"},
                    ],
                    retry={"max_retry": -1, "interval": "x", "rules": [{"match": ["A"]}, 5]},
                    labels={"zone": 1},
                    shell={"command": "", "env": {"A": 1, "B": True}, "directory": "a\0b"},
                ),
                {"name": "u", "python": {"call": ""}, "memory_limit": "1KiB", "payload": {"x": float("nan")}},
                5,
            ],
        }
    )
    fields = [fault.field for fault in faults]
    assert len(fields) == len(set(fields))
    assert set(fields) == {
        "tsks",
        "tasks[0].timeout",
        "tasks[0].priority",
        "tasks[0].triggers[0].cron",
        "tasks[0].triggers[0].timezone",
        "tasks[0].triggers[0].misfire",
        "tasks[0].triggers[1].every",
        "tasks[0].retry.max_retry",
        "tasks[0].retry.interval",
        "tasks[0].retry.rules[0].action",
        "tasks[0].retry.rules[1]",
        "tasks[0].labels",
        "tasks[0].shell.command",
        "tasks[0].shell.env.A",
        "tasks[0].shell.env.B",
        "tasks[0].shell.directory",
        "tasks[1].python.call",
        "tasks[1].memory_limit",
        "tasks[1].payload.x",
        "tasks[2]",
    }
    assert {fault.subject for fault in faults if "[1]" in fault.field[:8]} == {"default/u"}


ONE_FAULT: list[tuple[dict[str, Any], str, str, str]] = [
    (
        {"timeuot": "1m"},
        "timeuot",
        "INVALID_VALUE",
        "'timeuot' is not a field of a task (did you mean timeout?)",
    ),
    ({"timeout": "1 minute"}, "timeout", "INVALID_DURATION", "'1 minute' is not a duration"),
    ({"timeout": 30}, "timeout", "INVALID_DURATION", "30 has no unit (write 30s for seconds)"),
    ({"timeout": True}, "timeout", "INVALID_DURATION", "is true, not a duration"),
    ({"timeout": "0s"}, "timeout", "INVALID_DURATION", "0s is out of range"),
    ({"grace": "none"}, "grace", "INVALID_DURATION", "'none' is not a duration"),
    ({"priority": "5"}, "priority", "INVALID_VALUE", "'5' is a text, not a whole number (write it without"),
    ({"priority": 5.5}, "priority", "INVALID_VALUE", "5.5 is not a whole number"),
    ({"priority": 10}, "priority", "INVALID_VALUE", "10 is not a whole number from 0 to 9"),
    ({"queue_bound": 10**5000}, "queue_bound", "INVALID_VALUE", "the integer is not a whole number from"),
    ({"cpu_limit": "2"}, "cpu_limit", "INVALID_VALUE", "'2' is a text, not a number"),
    ({"cpu_limit": 10**5000}, "cpu_limit", "INVALID_VALUE", "out of range"),
    ({"cpu_limit": float("nan")}, "cpu_limit", "INVALID_VALUE", "out of range"),
    ({"overlap": "Queue"}, "overlap", "INVALID_VALUE", "'Queue' is not known (one of allow, forbid"),
    ({"overlap": False}, "overlap", "INVALID_VALUE", "is false, not a word"),
    ({"description": 5}, "description", "INVALID_VALUE", '5 is a number, not a text (put it in quotes: "5")'),
    ({"description": "\ud800"}, "description", "INVALID_VALUE", "lone surrogate"),
    ({"labels": ["a"]}, "labels", "INVALID_VALUE", "is a list, not a block of fields"),
    ({"payload": []}, "payload", "INVALID_PAYLOAD", "a JSON object is needed, not an array"),
    ({"payload": {"a": 2**64}}, "payload.a", "INVALID_PAYLOAD", "does not fit in 64 bits"),
    ({"triggers": {"cron": "@daily"}}, "triggers", "INVALID_VALUE", "is a block of fields, not a list"),
    ({"triggers": ["@daily"]}, "triggers[0]", "INVALID_VALUE", "'@daily' is a text, not a trigger"),
    ({"triggers": [{}]}, "triggers[0]", "INVALID_VALUE", "says neither cron nor every nor at"),
    ({"triggers": [{"at": "2026-01-01 00:00:00"}]}, "triggers[0].at", "INVALID_INSTANT", "has no UTC offset"),
    ({"triggers": [{"at": 1767225600}]}, "triggers[0].at", "INVALID_INSTANT", "is a number, not an instant"),
    (
        {"triggers": [{"every": "5m", "timezone": "UTC"}]},
        "triggers[0].timezone",
        "INVALID_VALUE",
        "not a field",
    ),
    ({"retry": 3}, "retry", "INVALID_POLICY", "3 is a number, not a retry policy"),
    ({"retry": {"interval": 5}}, "retry.interval", "INVALID_DURATION", "5 has no unit"),
    (
        {"retry": {"backoff": "delays", "delays": ["1s", 2]}},
        "retry.delays[1]",
        "INVALID_DURATION",
        "2 has no unit",
    ),
    ({"retry": {"maxretry": 5}}, "retry.maxretry", "INVALID_POLICY", "did you mean max_retry?"),
    ({"retry": {"\ud800": 5}}, "retry.\\ud800", "INVALID_POLICY", "is not a field of a retry policy"),
    ({"http": {"method": "GET", "url": "http://x"}}, "", "INVALID_VALUE", "has shell and http (write one of"),
    (
        {"shell": None},
        "",
        "INVALID_VALUE",
        "has nothing to run (write one of shell, http, python, container)",
    ),
    ({"shell": "true"}, "shell", "INVALID_VALUE", "'true' is a text, not a block of fields"),
    ({"shell": {}}, "shell.command", "INVALID_VALUE", "is missing"),
    ({"shell": {"command": ["a", 5]}}, "shell.command[1]", "INVALID_VALUE", "5 is a number, not a text"),
    ({"isolation": "process"}, "isolation", "INVALID_VALUE", "is for Python functions"),
    ({"name": "a b"}, "name", "INVALID_NAME", "'a b' is not a name"),
]


@pytest.mark.parametrize(
    ("changes", "field", "code", "words"),
    ONE_FAULT,
    ids=[f"{entry[1]}-{index}" for index, entry in enumerate(ONE_FAULT)],
)
def test_a_fault_is_told_with_code_field_and_what_to_do(
    changes: dict[str, Any], field: str, code: str, words: str
) -> None:
    (fault,) = task_faults(**changes)
    assert (fault.field, fault.code) == (field, code)
    assert words in f"{fault.message} ({fault.hint})"
    assert f"{fault.field}{fault.message}{fault.hint}".isprintable()


@pytest.mark.parametrize(
    ("value", "field", "code"),
    [
        ([], "", "INVALID_DOCUMENT"),
        (None, "", "INVALID_DOCUMENT"),
        ("tasks", "", "INVALID_DOCUMENT"),
        ({"tasks": []}, "version", "INVALID_VALUE"),
        ({"version": 1}, "tasks", "INVALID_VALUE"),
        ({"version": 1, "tasks": None}, "tasks", "INVALID_VALUE"),
        ({"version": 1, "tasks": {}}, "tasks", "INVALID_VALUE"),
        ({"version": 2, "tasks": []}, "version", "INVALID_DOCUMENT"),
        ({"version": "1", "tasks": []}, "version", "INVALID_VALUE"),
        ({"version": True, "tasks": []}, "version", "INVALID_VALUE"),
        ({"version": 1, "namespace": "a/b", "tasks": [task()]}, "namespace", "INVALID_NAME"),
        ({"version": 1, "namespace": 5, "tasks": [task()]}, "namespace", "INVALID_VALUE"),
        ({"version": 1, "tasks": [task(), task()]}, "tasks[1].name", "INVALID_VALUE"),
        ({"version": 1, "tasks": [], 5: 6}, "5", "INVALID_VALUE"),
    ],
)
def test_a_fault_of_the_document_itself_is_told_once(value: object, field: str, code: str) -> None:
    (fault,) = faults_of(value)
    assert (fault.field, fault.code) == (field, code)


def test_a_task_in_two_documents_of_one_apply_is_refused_with_both_places() -> None:
    one = read_document({"version": 1, "tasks": [task()]})
    other = read_document({"version": 1, "namespace": "shop", "tasks": [task()]})
    refuse_repeats([one, other])
    with pytest.raises(InvalidDocument, match="first at document 1, tasks"):
        refuse_repeats([one, other, one])


def test_a_limit_implies_a_process_for_a_function_only() -> None:
    said = {"name": "t", "python": {"call": "shop:f"}, "memory_limit": "64MiB"}
    assert read_task(said, namespace="n", field="").isolation == "process"
    assert read_task(task(memory_limit="64MiB"), namespace="n", field="").isolation == "shared"


def test_a_block_with_thousands_of_faults_is_refused_in_no_time() -> None:
    faults = task_faults(retry={"retry_on": ["x y"] * 100, "rules": [5] * 100})
    assert 10 < len(faults) <= 20


#: Options of the SDK and the same in a document: one code, so one answer.
SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"timeuot": "1m"}, {"timeuot": "1m"}),
    ({"timeout": "1 minute"}, {"timeout": "1 minute"}),
    ({"timeout": []}, {"timeout": []}),
    ({"priority": "5"}, {"priority": "5"}),
    ({"priority": 10}, {"priority": 10}),
    ({"overlap": "some"}, {"overlap": "some"}),
    ({"queue_bound": 0}, {"queue_bound": 0}),
    ({"shards": 0}, {"shards": 0}),
    ({"labels": {"a": 1}}, {"labels": {"a": 1}}),
    ({"retry": {"max_retry": "x"}}, {"retry": {"max_retry": "x"}}),
    ({"retry": 3}, {"retry": 3}),
    ({"memory_limit": "lots"}, {"memory_limit": "lots"}),
    ({"cpu_limit": "2"}, {"cpu_limit": "2"}),
    ({"isolation": "none"}, {"isolation": "none"}),
    ({"description": 5}, {"description": 5}),
]


@pytest.mark.parametrize(("options", "said"), SAME, ids=[str(entry[0]) for entry in SAME])
def test_python_and_a_document_refuse_a_fault_in_the_same_words(
    options: TaskOptions, said: dict[str, Any]
) -> None:
    (fault,) = task_faults(**said)
    with pytest.raises(UserError) as caught:
        App("shop").shell("t", "true", **options)
    declared = caught.value
    assert (declared.code, declared.field, declared.message, declared.hint, declared.subject) == (
        fault.code,
        fault.field,
        fault.message,
        fault.hint,
        fault.subject,
    )


def test_python_may_write_seconds_and_none_where_a_document_writes_texts() -> None:
    declared = App("shop").shell("t", "true", timeout=None, grace=1.5, retry={"interval": 5}, cpu_limit=2)
    said = task(timeout="none", grace="1s500ms", retry={"interval": "5s"}, cpu_limit=2)
    assert declared.definition == read_task(said, namespace="default", field="")


def test_a_task_of_an_app_is_read_back_from_its_document_as_the_same_version() -> None:
    app = App("shop")

    @app.task(cron="@daily", payload={"day": "x"})
    async def report(day: str, limit: int = 5) -> None: ...

    from ostinato.control.document.write import task_document
    from ostinato.core.definition import encode_definition

    definition = report.definition
    assert isinstance(definition.executor, PythonSpec)
    written = task_document(definition)
    assert written["python"]["parameters"] == [
        {"name": "day", "type": "str"},
        {"name": "limit", "required": False, "type": "int"},
    ]
    read = read_task(written, namespace="default", field="")
    assert encode_definition(read) == encode_definition(definition)
