"""What is written of a definition is read back as the same definition, as plain values, JSON and YAML."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from jsonschema import Draft202012Validator

from ostinato.control.apply import definition_faults
from ostinato.control.document.json_schema import json_schema
from ostinato.control.document.read import Document, read_document, read_task
from ostinato.control.document.write import document, task_document
from ostinato.control.document.yaml_text import read_yaml, write_yaml
from ostinato.core.definition import (
    ContainerSpec,
    ExecutorSpec,
    HttpSpec,
    Mount,
    Parameter,
    PythonSpec,
    ShellSpec,
    TaskDefinition,
    encode_definition,
)
from ostinato.core.instants import DURATION_MAX_US, INSTANT_MAX_US, INSTANT_MIN_US, MILLISECOND
from ostinato.core.retry.policy import DEFAULT_POLICY, RetryPolicy, RetryRule, effective_policy
from ostinato.core.retry.policy_model import DELAY_MAX_US
from ostinato.core.schedule.trigger import CronTrigger, DateTrigger, IntervalTrigger, Trigger

VALIDATOR = Draft202012Validator(json_schema())

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,12}", fullmatch=True)
#: With the words and characters that YAML reads as something else.
texts = st.one_of(
    st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20),
    st.text(st.sampled_from("ab \n\t:#-'\"|>&*!%@`{}[],?~é\ufeff\U0001f600"), max_size=20),
    st.sampled_from(
        [
            "on",
            "no",
            "Yes",
            "~",
            "null",
            "0123",
            "10:30",
            "1e3",
            ".inf",
            "=",
            "<<",
            "2026-01-01",
            "1_0",
            "0x1F",
        ]
    ),
)
durations = st.integers(MILLISECOND, DURATION_MAX_US)
delays = st.integers(0, DELAY_MAX_US)
misfire = {
    "misfire": st.sampled_from(["fire_once", "fire_all", "skip"]),
    "misfire_grace_us": durations,
    "misfire_bound": st.integers(1, 1000),
}
triggers: SearchStrategy[Trigger] = st.one_of(
    st.builds(
        CronTrigger,
        cron=st.sampled_from(["0 2 * * *", "*/5 9-17 * * MON-FRI", "@daily", "0 0 L * *", "30 0 0 1 1 *"]),
        timezone=st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns"]),
        dst_gap=st.sampled_from(["run_after", "skip"]),
        dst_fold=st.sampled_from(["first", "second", "both"]),
        spread_us=st.integers(0, 86_400_000_000),
        **misfire,
    ),
    st.builds(
        IntervalTrigger,
        every_us=st.integers(100 * MILLISECOND, DURATION_MAX_US),
        anchor_us=st.none() | st.integers(INSTANT_MIN_US, INSTANT_MAX_US),
        **misfire,
    ),
    st.builds(DateTrigger, at_us=st.integers(INSTANT_MIN_US, INSTANT_MAX_US), **misfire),
)
json_values: SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
patterns = st.lists(
    st.sampled_from(["HTTP_5*", "TIMEOUT", "transient", "app.errors.Rejected", "ECONNREFUSED"]),
    max_size=3,
    unique=True,
).map(tuple)


def _jitters() -> SearchStrategy[dict[str, Any]]:
    words = st.sampled_from(["none", "full", "equal"]).map(lambda word: {"jitter": word})
    factors = st.floats(0.001, 1).map(lambda factor: {"jitter": "proportional", "jitter_factor": factor})
    return words | factors


def _backoffs() -> SearchStrategy[dict[str, Any]]:
    return st.one_of(
        st.fixed_dictionaries({"backoff": st.sampled_from(["fixed", "linear"]), "interval_us": delays}),
        st.fixed_dictionaries(
            {"backoff": st.just("exponential"), "interval_us": delays, "multiplier": st.floats(1, 1e300)}
        ),
        st.fixed_dictionaries(
            {"backoff": st.just("delays"), "delays_us": st.lists(delays, min_size=1, max_size=3).map(tuple)}
        ),
    )


@st.composite
def policies(draw: st.DrawFn) -> RetryPolicy:
    if draw(st.booleans()):
        return DEFAULT_POLICY
    retry_on = draw(patterns)
    rules = draw(
        st.sampled_from(
            [
                (),
                (RetryRule(match=("EXIT_3",), action="fail"),),
                (RetryRule(match=("EXIT_4", "EXIT_5"), max_interval_us=1, jitter="full", jitter_factor=0.0),),
            ]
        )
    )
    return RetryPolicy(
        **draw(_backoffs()),
        **draw(_jitters()),
        max_interval_us=draw(st.none() | delays),
        max_retry=draw(st.integers(0, 1_000_000)),
        max_lost=draw(st.integers(0, 1_000_000)),
        window_us=draw(st.none() | durations),
        retry_on=retry_on,
        no_retry_on=draw(st.sampled_from([(), ("permanent",), ("ostinato.Permanent",), ("EXIT_9",)])),
        rules=rules,
    )


@st.composite
def containers(draw: st.DrawFn, pairs: SearchStrategy[dict[str, str]]) -> ContainerSpec:
    words = st.lists(texts, max_size=3).map(lambda rest: ("report", *rest))
    entrypoint = draw(st.sampled_from([(), ("python", "-m")]))
    text = st.nothing() if entrypoint else texts.map(lambda text: f"echo {text}")
    mounts = st.lists(
        st.builds(
            Mount,
            st.sampled_from(["/srv/shop", "cache"]),
            st.sampled_from(["/a", "/b", "/c/d"]),
            st.booleans(),
        ),
        max_size=3,
        unique_by=lambda mount: mount.target,
    )
    return ContainerSpec(
        draw(st.sampled_from(["postgres", "registry.example.com:5000/shop/report:1.4"])),
        draw(st.none() | text | words),
        entrypoint=entrypoint,
        env=draw(pairs),
        mounts=tuple(draw(mounts)),
        directory=draw(st.sampled_from(["", "/app"])),
        user=draw(st.sampled_from(["", "1000:1000"])),
        network=draw(st.sampled_from(["", "none", "backend"])),
        pull=draw(st.sampled_from(["missing", "always", "never"])),
        init=draw(st.booleans()),
    )


@st.composite
def executors(draw: st.DrawFn) -> ExecutorSpec:
    kind = draw(st.sampled_from(["shell", "http", "python", "container"]))
    pairs = st.dictionaries(st.from_regex(r"[A-Z][A-Z_]{0,8}", fullmatch=True), texts, max_size=3)
    if kind == "shell":
        words = st.lists(texts, max_size=3).map(lambda rest: ("pg_dump", *rest))
        command = draw(texts.map(lambda text: f"echo {text}") | words)
        return ShellSpec(command, env=draw(pairs), directory=draw(texts))
    if kind == "container":
        return draw(containers(pairs))
    if kind == "http":
        return HttpSpec(
            draw(st.sampled_from(["GET", "POST"])),
            "https://example.com/a?b=c",
            headers=draw(st.sampled_from([{}, {"Accept": "a/b", "X-Yes": "on"}])),
            body=draw(texts),
            success_status=draw(st.sampled_from([("2xx",), ("200", "300-304"), ("418",)])),
            connect_timeout_us=draw(durations),
            read_timeout_us=draw(durations),
            follow_redirects=draw(st.booleans()),
        )
    parameters = st.lists(
        st.builds(Parameter, st.sampled_from(["day", "limit", "on"]), st.booleans()),
        max_size=3,
        unique_by=lambda parameter: parameter.name,
    )
    return PythonSpec(
        "shop:report",
        is_async=draw(st.booleans()),
        parameters=tuple(draw(parameters)),
        accepts_any=draw(st.booleans()),
    )


@st.composite
def definitions(draw: st.DrawFn) -> TaskDefinition:
    executor = draw(executors())
    is_python = isinstance(executor, PythonSpec)
    parameters = executor.parameters if isinstance(executor, PythonSpec) else ()
    is_limited = not isinstance(executor, HttpSpec) and draw(st.booleans())
    payload = draw(st.dictionaries(texts, json_values, max_size=3))
    if is_python:
        payload = {parameter.name: 1 for parameter in parameters}
    return TaskDefinition(
        namespace=draw(st.just("default") | names),
        name=draw(names),
        executor=executor,
        triggers=tuple(draw(st.lists(triggers, max_size=1))),
        retry=draw(policies()),
        timeout_us=draw(st.none() | durations),
        grace_us=draw(st.integers(0, 3_600_000_000)),
        queue_timeout_us=draw(st.none() | durations),
        heartbeat_timeout_us=draw(st.none() | durations),
        overlap=draw(st.sampled_from([None, "allow", "forbid", "queue", "replace"])),
        queue_bound=draw(st.integers(1, 100_000)),
        shards=draw(st.integers(1, 1_000)),
        priority=draw(st.integers(0, 9)),
        labels=draw(st.dictionaries(names, st.sampled_from(["", "eu", "on", "1"]), max_size=2)),
        exclusive=draw(st.sampled_from(["strict", "relaxed"])),
        isolation="process" if is_python and is_limited else "shared",
        memory_limit_bytes=draw(st.integers(2**24, 2**50)) if is_limited else None,
        cpu_limit=draw(st.floats(0.01, 4096)) if is_limited else None,
        payload=msgspec.Raw(msgspec.json.encode(payload)),
        description=draw(texts),
    )


@settings(max_examples=60, deadline=None)
@given(definitions())
def test_a_written_definition_is_read_back_as_the_same(definition: TaskDefinition) -> None:
    assert definition_faults(definition) == []
    written = task_document(definition)
    read = read_task(written, namespace=definition.namespace, field="")
    assert read == definition
    again = read_task(task_document(read), namespace=definition.namespace, field="")
    assert encode_definition(again) == encode_definition(read), "or an unchanged one would be a new version"


@settings(max_examples=60, deadline=None)
@given(definitions())
def test_a_document_survives_yaml_and_json(definition: TaskDefinition) -> None:
    plain = document(definition.namespace, [definition])
    VALIDATOR.validate(plain)
    (read,) = read_yaml(write_yaml(plain), name="tasks.yaml")
    assert (read.namespace, read.definitions) == (definition.namespace, [definition])
    through_json = json.loads(json.dumps(plain))
    assert read_document(through_json) == Document(definition.namespace, [definition])


@settings(max_examples=40, deadline=None)
@given(definitions())
def test_other_readers_of_yaml_see_the_same_document(definition: TaskDefinition) -> None:
    plain = document(definition.namespace, [definition])
    assert yaml.safe_load(write_yaml(plain)) == plain


def test_defaults_are_left_out() -> None:
    definition = TaskDefinition("default", "backup", ShellSpec("pg_dump shop"))
    assert task_document(definition) == {"name": "backup", "shell": {"command": "pg_dump shop"}}


def test_a_policy_is_written_without_its_defaults_and_stays_explicit() -> None:
    def written(**block: Any) -> object:
        definition = TaskDefinition("default", "t", ShellSpec("true"), retry=effective_policy(block))
        return task_document(definition)["retry"]

    assert written() == {}
    assert written(max_retry=5) == {"max_retry": 5}
    assert written(backoff="delays", delays=["1s", "2s"]) == {"backoff": "delays", "delays": ["1s", "2s"]}
    assert written(retry_on=["TIMEOUT"]) == {"retry_on": ["TIMEOUT"]}
    assert "retry" not in task_document(TaskDefinition("default", "t", ShellSpec("true")))


def test_a_function_whose_parameters_are_not_said_takes_any_payload_and_one_without_any_takes_none() -> None:
    unsaid = read_task(
        {"name": "t", "python": {"call": "shop:f"}, "payload": {"a": 1}}, namespace="n", field=""
    )
    assert unsaid.executor == PythonSpec("shop:f", accepts_any=True)
    none = TaskDefinition("n", "t", PythonSpec("shop:f"))
    assert task_document(none)["python"] == {"call": "shop:f", "parameters": []}


@pytest.mark.parametrize("word", ["on", "2026-01-01 00:00:00", "10:30", "0123", "~", "<<", "="])
def test_a_text_that_yaml_could_misread_is_quoted(word: str) -> None:
    text = write_yaml({"version": 1, "tasks": [{"name": "t", "shell": {"command": word}}]})
    assert f"command: '{word}'" in text
    (read,) = read_yaml(text, name="tasks.yaml")
    assert read.definitions[0].executor == ShellSpec(word)


def test_a_command_of_several_lines_is_written_as_a_block() -> None:
    plain = {"version": 1, "tasks": [{"name": "t", "shell": {"command": "set -e\npg_dump shop\n"}}]}
    assert "command: |\n" in write_yaml(plain)
    (read,) = read_yaml(write_yaml(plain), name="tasks.yaml")
    assert read.definitions == read_document(plain).definitions


def test_a_default_that_is_said_makes_no_other_version_than_one_that_is_left_out() -> None:
    said = {
        "name": "t",
        "http": {"method": "GET", "url": "http://x", "connect_timeout": "10s", "success_status": ["2xx"]},
        "timeout": "1h",
        "grace": "10s",
        "isolation": "".join(["sha", "red"]),
        "queue_bound": int("100"),
        "shards": int("1"),
        "payload": {},
        "retry": {"max_interval": "10m", "jitter": "10%"},
    }
    unsaid = {"name": "t", "http": {"method": "GET", "url": "http://x"}}
    left, right = (encode_definition(read_task(task, namespace="n", field="")) for task in (said, unsaid))
    assert left == right
