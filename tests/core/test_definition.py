"""Definitions as bytes: what is equal is written alike, or an unchanged task would become a new version."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.definition import (
    ExecutorSpec,
    HttpSpec,
    Parameter,
    PythonSpec,
    ShellSpec,
    TaskDefinition,
    decode_definition,
    encode_definition,
)
from ostinato.core.instants import HOUR, SECOND
from ostinato.core.retry.policy import DEFAULT_POLICY, RetryPolicy, RetryRule
from ostinato.core.schedule.trigger import CronTrigger, DateTrigger, IntervalTrigger


def _or(default: Any, *others: Any) -> st.SearchStrategy[Any]:
    """The default as often as anything else: what is said and is the default is what this is about."""
    return st.just(default) | st.sampled_from(others)


pairs = _or({}, {"A": "1"}, {"b": "2", "a": "1"})
executors: st.SearchStrategy[ExecutorSpec] = st.one_of(
    st.builds(
        PythonSpec,
        st.just("shop:report"),
        is_async=st.booleans(),
        parameters=st.lists(
            st.builds(Parameter, st.sampled_from(["day", "limit"]), st.booleans()), max_size=2
        ).map(tuple),
        accepts_any=st.booleans(),
    ),
    st.builds(ShellSpec, _or("pg_dump shop", ("pg_dump", "shop")), env=pairs, directory=_or("", "/srv")),
    st.builds(
        HttpSpec,
        st.just("POST"),
        st.just("https://example.org/a"),
        headers=pairs,
        body=_or("", "{}"),
        success_status=_or(("2xx",), ("200", "204")),
        connect_timeout_us=_or(10 * SECOND, SECOND),
        read_timeout_us=_or(60 * SECOND, SECOND),
        follow_redirects=st.booleans(),
    ),
)
triggers = st.one_of(
    st.builds(CronTrigger, cron=st.just("0 2 * * *"), timezone=_or("UTC", "Europe/Berlin")),
    st.builds(IntervalTrigger, every_us=st.just(HOUR), misfire=_or("fire_once", "skip")),
    st.builds(DateTrigger, at_us=st.just(HOUR), misfire_grace_us=_or(HOUR, SECOND)),
)
policies = _or(
    DEFAULT_POLICY,
    RetryPolicy(),
    RetryPolicy(retry_on=("TIMEOUT",), rules=(RetryRule(match=("EXIT_3",), action="fail"),)),
)
definitions = st.builds(
    TaskDefinition,
    st.just("default"),
    st.just("report"),
    executors,
    triggers=st.lists(triggers, max_size=2).map(tuple),
    retry=policies,
    timeout_us=_or(HOUR, None, SECOND),
    grace_us=_or(10 * SECOND, 0),
    queue_timeout_us=_or(None, HOUR),
    overlap=_or(None, "forbid"),
    queue_bound=_or(100, 1_000),
    shards=_or(1, 8),
    priority=_or(5, 9),
    labels=pairs,
    exclusive=_or("strict", "relaxed"),
    heartbeat_timeout_us=_or(None, SECOND),
    isolation=_or("shared", "process"),
    memory_limit_bytes=_or(None, 2**30),
    cpu_limit=_or(None, 0.5),
    payload=_or(msgspec.Raw(b"{}"), msgspec.Raw(b'{"day":1}')),
    description=_or("", "Yesterday's numbers"),
)


def retold(value: Any) -> Any:
    """An equal value, made anew down to its last string, as if it had been read from somewhere else."""
    if isinstance(value, msgspec.Raw):
        return msgspec.Raw(b"".join([bytes(value)[:1], bytes(value)[1:]]))
    if isinstance(value, msgspec.Struct):
        return type(value)(**{name: retold(getattr(value, name)) for name in value.__struct_fields__})
    if isinstance(value, tuple):
        return tuple(retold(entry) for entry in value)
    if isinstance(value, dict):
        return {retold(name): retold(value[name]) for name in reversed(value)}
    if isinstance(value, bool) or value is None or value is msgspec.UNSET:
        return value
    return type(value)(str(value)) if isinstance(value, int | float) else "".join([*value])


@given(definitions)
def test_equal_definitions_give_equal_bytes(definition: TaskDefinition) -> None:
    again = retold(definition)
    assert again == definition
    assert encode_definition(again) == encode_definition(definition)


@given(definitions)
def test_a_definition_survives_its_bytes_which_stay_the_same(definition: TaskDefinition) -> None:
    encoded = encode_definition(definition)
    assert decode_definition(encoded) == definition
    assert encode_definition(decode_definition(encoded)) == encoded


def test_what_is_said_and_is_the_default_is_left_out() -> None:
    plain = TaskDefinition("default", "report", ShellSpec("true"))
    assert encode_definition(retold(plain)) == (
        b'{"executor":{"command":"true","kind":"shell"},"name":"report","namespace":"default"}'
    )
