"""``isolation``, ``memory_limit`` and ``cpu_limit`` where tasks are declared."""

from __future__ import annotations

import pytest

from ostinato import App, UserError
from ostinato.control.apply import validate_definition
from ostinato.core.definition import PythonSpec, TaskDefinition, decode_definition, encode_definition
from ostinato.core.sizes import MIB
from ostinato.sdk.declaration import TaskOptions


def declared(options: TaskOptions, kind: str = "python") -> TaskDefinition:
    app = App("shop")
    if kind == "shell":
        return app.shell("task", "true", **options).definition
    if kind == "http":
        return app.http("task", "GET", url="http://example.com", **options).definition

    @app.task(name="task", **options)
    async def task() -> None:
        return

    return task.definition


def refused(options: TaskOptions, kind: str = "python") -> UserError:
    with pytest.raises(UserError) as caught:
        declared(options, kind)
    assert caught.value.code == "INVALID_VALUE"
    assert caught.value.subject == "default/task" or not caught.value.subject
    return caught.value


def test_a_task_says_its_isolation_and_limits() -> None:
    definition = declared({"isolation": "process", "memory_limit": "512MiB", "cpu_limit": 0.5})
    assert definition.isolation == "process"
    assert (definition.memory_limit_bytes, definition.cpu_limit) == (512 * MIB, 0.5)
    assert definition.pool == "process", "although it is a coroutine: it has a process of its own"
    assert declared({}).pool == "async"


def test_a_definition_without_them_is_the_same_version_as_before_they_existed() -> None:
    definition = declared({"isolation": "shared", "memory_limit": None, "cpu_limit": None})
    assert definition == declared({})
    encoded = encode_definition(definition)
    assert not any(word in encoded for word in (b"isolation", b"memory", b"cpu"))
    limited = declared({"memory_limit": 64 * MIB, "cpu_limit": 2})
    assert decode_definition(encode_definition(limited)) == limited
    assert encode_definition(limited) == encode_definition(
        declared({"memory_limit": "64MiB", "cpu_limit": 2.0})
    )


@pytest.mark.parametrize("options", [{"memory_limit": "64MiB"}, {"cpu_limit": 1}])
def test_a_limit_gives_a_function_a_process_of_its_own(options: TaskOptions) -> None:
    assert declared(options).isolation == "process"
    assert declared(options, "shell").isolation == "shared", "a command has processes of its own anyway"


def test_a_limit_for_a_function_that_shares_its_process_is_refused() -> None:
    error = refused({"isolation": "shared", "memory_limit": "64MiB"})
    assert error.field == "isolation"
    assert "memory_limit limits a process" in error.message
    # As the definition file and other programs write it.
    with pytest.raises(UserError, match="cpu_limit limits a process"):
        validate_definition(TaskDefinition("default", "task", PythonSpec("m:f"), cpu_limit=1.0))


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"isolation": "none"}, "isolation", "'none' is not known"),
        ({"memory_limit": "lots"}, "memory_limit", "'lots' is not a size"),
        ({"memory_limit": "15MiB"}, "memory_limit", "15MiB is out of range"),
        ({"memory_limit": 0}, "memory_limit", "0B is out of range"),
        ({"memory_limit": 2**60}, "memory_limit", "out of range"),
        ({"cpu_limit": 0}, "cpu_limit", "0.0 cores are out of range"),
        ({"cpu_limit": -1}, "cpu_limit", "out of range"),
        ({"cpu_limit": float("nan")}, "cpu_limit", "out of range"),
        ({"cpu_limit": float("inf")}, "cpu_limit", "out of range"),
        ({"cpu_limit": "2"}, "cpu_limit", "'2' is a text, not a number"),
    ],
)
@pytest.mark.parametrize("kind", ["python", "shell"])
def test_what_cannot_be_is_refused_by_field(options: TaskOptions, field: str, words: str, kind: str) -> None:
    error = refused(options, kind)
    assert error.field == field
    assert words in error.message


@pytest.mark.parametrize(
    ("options", "kind", "field"),
    [
        ({"isolation": "process"}, "shell", "isolation"),
        ({"isolation": "process"}, "http", "isolation"),
        ({"memory_limit": "64MiB"}, "http", "memory_limit"),
        ({"cpu_limit": 1}, "http", "cpu_limit"),
    ],
)
def test_what_means_nothing_to_a_kind_of_task_is_refused(options: TaskOptions, kind: str, field: str) -> None:
    error = refused(options, kind)
    assert error.field == field
    assert error.hint
