"""Definitions are checked whole, and applied once."""

from __future__ import annotations

import msgspec
import pytest

from ostinato.control.apply import apply, validate_definition
from ostinato.control.names import validate_key
from ostinato.core.definition import HttpSpec, Parameter, PythonSpec, ShellSpec, TaskDefinition, TaskRef
from ostinato.core.instants import SECOND
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.schedule.trigger import CronTrigger, IntervalTrigger
from ostinato.errors import UserError
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import START_US, VirtualClock, run_virtual


def definition(**changes: object) -> TaskDefinition:
    base: dict[str, object] = {"namespace": "default", "name": "t", "executor": ShellSpec("true")}
    return TaskDefinition(**{**base, **changes})  # type: ignore[arg-type]  # wrong ones are the point


WRONG: list[tuple[dict[str, object], str, str]] = [
    ({"name": ""}, "INVALID_NAME", "name"),
    ({"name": "-x"}, "INVALID_NAME", "name"),
    ({"name": "a b"}, "INVALID_NAME", "name"),
    ({"name": "a\0"}, "INVALID_NAME", "name"),
    ({"name": "a\n"}, "INVALID_NAME", "name"),
    ({"name": "ä"}, "INVALID_NAME", "name"),
    ({"name": "a" * 201}, "INVALID_NAME", "name"),
    ({"namespace": "x/y"}, "INVALID_NAME", "namespace"),
    ({"priority": 10}, "INVALID_VALUE", "priority"),
    ({"priority": -1}, "INVALID_VALUE", "priority"),
    ({"priority": True}, "INVALID_VALUE", "priority"),
    ({"priority": 1.5}, "INVALID_VALUE", "priority"),
    ({"priority": "5"}, "INVALID_VALUE", "priority"),
    ({"overlap": "maybe"}, "INVALID_VALUE", "overlap"),
    ({"queue_bound": 0}, "INVALID_VALUE", "queue_bound"),
    ({"shards": 0}, "INVALID_VALUE", "shards"),
    ({"shards": 1_001}, "INVALID_VALUE", "shards"),
    ({"timeout_us": 0}, "INVALID_DURATION", "timeout"),
    ({"grace_us": -1}, "INVALID_DURATION", "grace"),
    ({"heartbeat_timeout_us": 0}, "INVALID_DURATION", "heartbeat_timeout"),
    ({"labels": {"zone": "a\0b"}}, "INVALID_VALUE", "labels.zone"),
    ({"labels": {"": "a"}}, "INVALID_NAME", "labels"),
    ({"retry": RetryPolicy(max_retry=-1)}, "INVALID_POLICY", "retry.max_retry"),
    ({"triggers": (CronTrigger(cron="61 * * * *"),)}, "INVALID_CRON", "triggers[0].cron"),
    (
        {"triggers": (IntervalTrigger(every_us=SECOND), IntervalTrigger(every_us=SECOND))},
        "INVALID_VALUE",
        "triggers[1]",
    ),
    ({"payload": msgspec.Raw(b"[]")}, "INVALID_PAYLOAD", "payload"),
    ({"executor": ShellSpec("")}, "INVALID_VALUE", "shell.command"),
    ({"executor": ShellSpec("a\0b")}, "INVALID_VALUE", "shell.command"),
    ({"executor": ShellSpec("true", env={"A=B": "c"})}, "INVALID_VALUE", "shell.env"),
    ({"executor": HttpSpec("get", "http://x")}, "INVALID_VALUE", "http.method"),
    ({"executor": HttpSpec("GET", "ftp://x")}, "INVALID_VALUE", "http.url"),
    ({"executor": HttpSpec("GET", "http://x y")}, "INVALID_VALUE", "http.url"),
    ({"executor": HttpSpec("GET", "http://x:99999/")}, "INVALID_VALUE", "http.url"),
    ({"executor": HttpSpec("GET", "http://x:0/")}, "INVALID_VALUE", "http.url"),
    ({"executor": HttpSpec("GET", "http://x:port/")}, "INVALID_VALUE", "http.url"),
    ({"executor": HttpSpec("GET", "http://[::1/")}, "INVALID_VALUE", "http.url"),
    ({"executor": HttpSpec("GET", "http:///path")}, "INVALID_VALUE", "http.url"),
    (
        {"executor": HttpSpec("GET", "http://x", headers={"A": "b\r\nc"})},
        "INVALID_VALUE",
        "http.headers.A",
    ),
    (
        {"executor": HttpSpec("GET", "http://x", success_status=("20",))},
        "INVALID_VALUE",
        "http.success_status",
    ),
    ({"executor": PythonSpec("")}, "INVALID_VALUE", "python.call"),
    (
        {"executor": PythonSpec("m:f"), "payload": msgspec.Raw(b'{"day": 1}')},
        "INVALID_PAYLOAD",
        "payload.day",
    ),
    (
        {
            "executor": PythonSpec("m:f", parameters=(Parameter("day"),)),
            "triggers": (IntervalTrigger(every_us=SECOND),),
        },
        "INVALID_PAYLOAD",
        "payload.day",
    ),
]


@pytest.mark.parametrize(("changes", "code", "field"), WRONG, ids=lambda entry: str(entry)[:50])
def test_a_wrong_definition_is_refused_and_its_field_named(
    changes: dict[str, object], code: str, field: str
) -> None:
    with pytest.raises(UserError) as caught:
        validate_definition(definition(**changes))
    assert (caught.value.code, caught.value.field) == (code, field)


@pytest.mark.parametrize(
    ("name", "value"),
    [("Content-Length", "3"), ("transfer-encoding", "chunked"), ("A", "caf\u00e9"), ("A", " b")],
)
def test_a_header_that_no_request_could_be_sent_with_is_refused(name: str, value: str) -> None:
    with pytest.raises(UserError) as caught:
        validate_definition(definition(executor=HttpSpec("POST", "http://x", headers={name: value})))
    assert (caught.value.code, caught.value.field) == ("INVALID_VALUE", f"http.headers.{name}")


def test_a_task_without_triggers_may_leave_required_parameters_to_its_submitters() -> None:
    async def story() -> None:
        executor = PythonSpec("m:f", parameters=(Parameter("day"), Parameter("force", required=False)))
        task = definition(executor=executor, payload=msgspec.Raw(b'{"force":true}'))
        receipts = await apply(MemoryStore(VirtualClock()), [task], now_us=START_US)
        assert receipts[0].outcome == "created"

    run_virtual(story())


@pytest.mark.parametrize("key", ["", "a\0b", "a\nb", "\ud800", "x" * 513])
def test_c157_a_key_that_no_store_could_hold_is_refused(key: str) -> None:
    with pytest.raises(UserError) as caught:
        validate_key(key)
    assert (caught.value.code, caught.value.field) == ("INVALID_NAME", "key")


@pytest.mark.parametrize("key", [" ", "\u3000 ", 5, 0, b"k", None])
def test_a_key_that_shows_nothing_or_is_no_text_is_refused(key: object) -> None:
    with pytest.raises(UserError) as caught:
        validate_key(key)
    assert (caught.value.code, caught.value.field) == ("INVALID_VALUE", "key")


def test_c041_applying_the_same_definition_again_makes_no_new_version() -> None:
    async def story() -> None:
        store = MemoryStore(VirtualClock())
        task = definition(triggers=(CronTrigger(cron="0 2 * * *"),))
        first = await apply(store, [task], now_us=START_US)
        again = await apply(store, [task], now_us=START_US + SECOND)
        changed = await apply(store, [definition(priority=9)], now_us=START_US)
        outcomes = [(receipt.version, receipt.outcome) for receipt in [*first, *again, *changed]]
        assert outcomes == [(1, "created"), (1, "unchanged"), (2, "changed")]
        assert await apply(store, [], now_us=START_US) == []

    run_virtual(story())


def test_one_wrong_definition_keeps_all_others_out() -> None:
    async def story() -> None:
        store = MemoryStore(VirtualClock())
        for wrong in (definition(name="u", priority=10), definition()):
            with pytest.raises(UserError) as caught:
                await apply(store, [definition(), wrong], now_us=START_US)
            assert caught.value.code == "INVALID_VALUE"
        assert await store.get_tasks([TaskRef("default", "t")]) == {}

    run_virtual(story())
