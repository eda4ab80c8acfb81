"""Faults of what is asked for: submissions, lists, acts; by surface, how it is asked there."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode

from support.surfaces import Surfaces, Told
from surfaces.document_faults import BAD_NAMES

from ostinato import App, Submission

Way: TypeAlias = Callable[[Surfaces], "Told | None"]
_UNSAID: Any = object()
NOBODY = "01jd0000000000000000000000"
#: What Python programs write for them, and what JSON does.
_SURROGATE = "\ud800"


class RequestFault(NamedTuple):
    """How each surface is asked, and what all of them must say."""

    code: str
    field: str
    ways: Mapping[str, Way]
    #: Only the owner of the task knows the answer, so that the question itself is recorded.
    asks_owner: bool = False


def submission(
    _code: str,
    _field: str,
    *,
    task: str = "add",
    namespace: str = "default",
    text: str = "",
    python: Any = _UNSAID,
    without: tuple[str, ...] = (),
    **said: Any,
) -> RequestFault:
    """A submission. `text` is the payload's JSON, `python` its value; `without` names who cannot say it."""
    payload = text or json.dumps({} if python is _UNSAID else python, separators=(",", ":"))
    members = "".join(f", {json.dumps(key)}: {json.dumps(value)}" for key, value in said.items())
    place = f"/namespaces/{quote(namespace, safe='')}"
    one = f'{{"payload": {payload}{members}}}'.encode()
    many = f'{{"submissions": [{{"task": {json.dumps(task)}, "payload": {payload}{members}}}]}}'.encode()
    options = [f"--{key}={value}" for key, value in said.items()]
    ways: dict[str, Way] = {
        "rest": lambda s: s.rest_told("POST", f"{place}/tasks/{quote(task, safe='')}/instances", raw=one),
        "rest_many": lambda s: s.rest_told("POST", f"{place}/instances", raw=many),
        "cli": lambda s: s.cli_told(
            "task", "trigger", f"--namespace={namespace}", f"--payload={payload}", *options, "--", task
        ),
    }
    if python is not _UNSAID or not text:
        given = {} if python is _UNSAID else python

        def submit(app: App) -> object:
            return app.submit(task, given, **said)

        def submit_many(app: App) -> object:
            return app.submit_many(task, [Submission(given, **said)])

        if namespace == "default":
            ways["sdk"] = lambda s: s.sdk_told("sdk", submit)
            ways["sdk_http"] = lambda s: s.sdk_told("sdk_http", submit)
            ways["sdk_many"] = lambda s: s.sdk_told("sdk", submit_many)
            ways["sdk_http_many"] = lambda s: s.sdk_told("sdk_http", submit_many)
    return RequestFault(_code, _field, {name: way for name, way in ways.items() if name not in without})


_SDK = ("sdk", "sdk_http", "sdk_many", "sdk_http_many")
_REST = ("rest", "rest_many")


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def _payloads() -> Mapping[str, RequestFault]:
    def wrong(field: str, **how: Any) -> RequestFault:
        return submission("INVALID_PAYLOAD", field, **how)

    return {
        "payload a list": wrong("payload", python=[1]),
        "payload a text": wrong("payload", python="x"),
        "payload a number": wrong("payload", python=5),
        "payload null": wrong("payload", text="null"),
        "unknown parameter": wrong("payload.frist", python={"frist": 1}),
        "unknown parameter of a hostile name": wrong("payload", python={"a\nb": 1}),
        "missing parameter": wrong("payload.day", task="strict"),
        # The path is cut at 200 characters, and that of a list of submissions begins with where it stands.
        "payload too deep": wrong(
            f"{'payload.second' + '[0]' * 62}…", python={"second": _deep(101)}, without=("rest_many",)
        ),
        "payload far too deep": wrong("payload", text='{"second": ' + "[" * 60_000 + "]" * 60_000 + "}"),
        "payload over the limit": submission(
            "PAYLOAD_TOO_LARGE", "payload", python={"second": "x" * 300_000}
        ),
        "NaN": wrong("payload.second", python={"second": math.nan}),
        "Infinity": wrong("payload.second[1].a", python={"second": [1, {"a": math.inf}]}),
        "minus Infinity": wrong("payload.second", python={"second": -math.inf}),
        "lone surrogate": wrong("payload.second", python={"second": _SURROGATE}),
        "lone surrogate in a key": wrong("payload.second", python={"second": {_SURROGATE: 1}}),
        "huge integer": wrong("payload.second", python={"second": 2**70}),
        "huge negative integer": wrong("payload.second", python={"second": -(2**70)}),
    }


def _options() -> Mapping[str, RequestFault]:
    rows = {
        "key empty": submission("INVALID_NAME", "key", key=""),
        "key blank": submission("INVALID_VALUE", "key", key="  "),
        "key with a control character": submission("INVALID_NAME", "key", key="a\x07"),
        "key with a line": submission("INVALID_NAME", "key", key="a\nb"),
        "key too long": submission("INVALID_NAME", "key", key="ü" * 257),
        "key of a lone surrogate": submission("INVALID_NAME", "key", key=_SURROGATE, without=("cli",)),
        "key a number": submission("INVALID_VALUE", "key", key=5, without=("cli",)),
        "key that is live": submission("KEY_CONFLICT", "key", key="live", python={"second": 2}),
        "delay negative": submission("INVALID_DURATION", "delay", delay="-5s"),
        "delay without a unit": submission("INVALID_DURATION", "delay", delay="5"),
        "delay empty": submission("INVALID_DURATION", "delay", delay=""),
        "delay of 101 years": submission("INVALID_DURATION", "delay", delay="36865d"),
        "delay huge": submission("INVALID_DURATION", "delay", delay="999999999999999d"),
        "delay a number": submission("INVALID_DURATION", "delay", delay=5, without=("cli", *_SDK)),
        "delay a list": submission("INVALID_DURATION", "delay", delay=["5s"], without=("cli", *_REST)),
        "reason too long": submission("INVALID_VALUE", "reason", reason="x" * 1_001, without=_SDK),
        "reason with NUL": submission("INVALID_VALUE", "reason", reason="a\0b", without=_SDK),
        "reason with an escape": submission("INVALID_VALUE", "reason", reason="a\x1b[31m", without=_SDK),
        "task disabled": submission("TASK_DISABLED", "", task="off"),
        "unknown task": submission("TASK_NOT_FOUND", "", task="ad"),
        "unknown namespace": submission("TASK_NOT_FOUND", "", namespace="nowhere"),
    }
    for at in ("2026-01-31T18:00:00", "0000-01-01T00:00:00Z", "2026-01-31T25:00:00Z", "tomorrow", ""):
        rows[f"at {at}"] = submission("INVALID_INSTANT", "at", at=at, without=_SDK)
    rows["delay and at"] = submission(
        "INVALID_VALUE", "at", delay="5m", at="2100-01-01T00:00:00Z", without=_SDK
    )
    for priority in (10, -1):
        rows[f"priority {priority}"] = submission("INVALID_VALUE", "priority", priority=priority)
    rows["priority 5.5"] = submission("INVALID_VALUE", "priority", priority=5.5)
    rows["priority huge"] = submission("INVALID_VALUE", "priority", priority=2**70)
    rows["priority true"] = submission("INVALID_VALUE", "priority", priority=True, without=("cli",))
    rows["priority a text"] = submission("INVALID_VALUE", "priority", priority="5", without=("cli",))
    return rows


def _names() -> Mapping[str, RequestFault]:
    rows: dict[str, RequestFault] = {}
    for how, name in BAD_NAMES.items():
        document = {"version": 1, "namespace": name, "tasks": [{"name": "t", "shell": {"command": "true"}}]}
        task = {"version": 1, "tasks": [{"name": name, "shell": {"command": "true"}}]}
        rows[f"task's name {how}"] = RequestFault("INVALID_NAME", "name", _of_documents(task, name))
        ways = _of_documents(document, name, namespace=True)
        ways["sdk"] = lambda s, name=name: s.made_told(lambda: App("shop", "memory:", namespace=name))
        rows[f"namespace {how}"] = RequestFault("INVALID_NAME", "namespace", ways)
        rows[f"task of a submission {how}"] = submission(
            "INVALID_NAME", "task", task=name, without=("rest",) if how in ("empty", "slash", "dots") else ()
        )
    return rows


def _of_documents(document: dict[str, Any], name: str, *, namespace: bool = False) -> dict[str, Way]:
    ways: dict[str, Way] = {
        "yaml": lambda s: s.apply_told(json.dumps(document)),
        "apply": lambda s: s.rest_told("POST", "/apply", body=document),
    }
    if not namespace:
        ways["sdk"] = lambda s: s.made_told(lambda: App("shop", "memory:").shell(name, "true"))
    elif name:
        ways["cli"] = lambda s: s.cli_told("task", "list", f"--namespace={name}")
    if namespace and name not in ("", "..", "a/b"):
        place = f"/namespaces/{quote(name, safe='')}/tasks"
        ways["rest"] = lambda s: s.rest_told("GET", place)
        ways["put"] = lambda s: s.rest_told("PUT", f"{place}/t", body=document["tasks"][0])
    return ways


def listing(_code: str, _field: str, *, cli: Mapping[str, str] | None = None, **said: str) -> RequestFault:
    """A list of instances; `cli` says what is called by another name there."""
    query = urlencode({"namespace": "default", **said})
    given = {key: value for key, value in said.items() if key not in ("created_from", "created_before")}
    if "created_from" in said:
        given["since"] = said["created_from"]
    if "created_before" in said:
        given["until"] = said["created_before"]
    options = [f"--{key}={value}" for key, value in {**given, **(cli or {})}.items()]
    ways: dict[str, Way] = {
        "rest": lambda s: s.rest_told("GET", f"/instances?{query}"),
        "cli": lambda s: s.cli_told("instance", "list", *options),
    }
    if not said.keys() & {"limit", "cursor"}:
        ways["rest_counts"] = lambda s: s.rest_told("GET", f"/instances/counts?{query}")
        ways["cli_count"] = lambda s: s.cli_told("instance", "list", "--count", *options)
    if not said.keys() & {"limit", "cursor", "key"}:
        where: dict[str, Any] = {**said, **({"state": [said["state"]]} if "state" in said else {})}
        body = {"filter": {"namespace": "default", **where}}
        ways["rest_cancel"] = lambda s: s.rest_told("POST", "/instances/cancel", body=body)
        ways["rest_retry"] = lambda s: s.rest_told("POST", "/instances/retry", body=body)
        ways["cli_cancel"] = lambda s: s.cli_told("instance", "cancel", "--yes", *options)
        ways["cli_retry"] = lambda s: s.cli_told("instance", "retry", "--yes", *options)
    return RequestFault(_code, _field, ways)


def _lists() -> Mapping[str, RequestFault]:
    rows = {f"limit {limit}": listing("INVALID_VALUE", "limit", limit=limit) for limit in ("0", "1001", "-1")}
    rows |= {
        f"limit {limit!a}": listing("INVALID_VALUE", "limit", limit=limit) for limit in ("ten", "", "1.5")
    }
    rows |= {
        f"cursor {cursor[:10]!a}": listing("INVALID_VALUE", "cursor", cursor=cursor)
        for cursor in ("garbage", "", "W10", "x" * 3_000, "ü", "\0")
    }
    rows |= {
        "state unknown": listing("INVALID_VALUE", "state", state="finished"),
        "state empty": listing("INVALID_VALUE", "state", state=""),
        "code with a control character": listing("INVALID_VALUE", "code", code="A\x07"),
        "code too long": listing("INVALID_VALUE", "code", code="A" * 201),
        "key of a list with a control character": listing("INVALID_NAME", "key", key="a\x07"),
        "key of a list that is empty": listing("INVALID_NAME", "key", key=""),
        "key of a list too long": listing("INVALID_NAME", "key", key="x" * 513),
        "task of a list": listing("INVALID_NAME", "task", task="a b"),
        "task of a list that is empty": listing("INVALID_NAME", "task", task=""),
        "since tomorrow": listing("INVALID_INSTANT", "created_from", created_from="tomorrow"),
        "since without offset": listing(
            "INVALID_INSTANT", "created_from", created_from="2026-01-31T18:00:00"
        ),
        "until hour 25": listing("INVALID_INSTANT", "created_before", created_before="2026-01-31T25:00:00Z"),
        "since after until": listing(
            "INVALID_VALUE",
            "created_before",
            created_from="2026-01-02T00:00:00Z",
            created_before="2026-01-01T00:00:00Z",
        ),
        "since until": listing(
            "INVALID_VALUE",
            "created_before",
            created_from="2026-01-01T00:00:00Z",
            created_before="2026-01-01T00:00:00Z",
        ),
        "search with a control character": RequestFault(
            "INVALID_VALUE",
            "search",
            {
                "rest": lambda s: s.rest_told("GET", "/namespaces/default/tasks?search=a%07"),
                "cli": lambda s: s.cli_told("task", "list", "--search=a\x07"),
            },
        ),
        "limit of tasks": RequestFault(
            "INVALID_VALUE",
            "limit",
            {
                "rest": lambda s: s.rest_told("GET", "/namespaces/default/tasks?limit=0"),
                "cli": lambda s: s.cli_told("task", "list", "--limit=0"),
            },
        ),
    }
    return rows


def _acts_on_tasks() -> Mapping[str, RequestFault]:
    rows: dict[str, RequestFault] = {}
    for verb in ("pause", "resume", "disable", "enable"):
        rows[f"{verb} an unknown task"] = RequestFault(
            "TASK_NOT_FOUND",
            "",
            {
                "rest": lambda s, verb=verb: s.rest_told("POST", f"/namespaces/default/tasks/ad/{verb}"),
                "cli": lambda s, verb=verb: s.cli_told("task", verb, "ad"),
            },
        )
    rows["delete an unknown task"] = RequestFault(
        "TASK_NOT_FOUND",
        "",
        {
            "rest": lambda s: s.rest_told("DELETE", "/namespaces/default/tasks/ad"),
            "cli": lambda s: s.cli_told("task", "delete", "ad", "--yes"),
        },
    )
    rows["show an unknown task"] = RequestFault(
        "TASK_NOT_FOUND",
        "",
        {
            "rest": lambda s: s.rest_told("GET", "/namespaces/default/tasks/ad"),
            "cli": lambda s: s.cli_told("task", "show", "ad"),
        },
    )
    return rows


def _acts_on_instances() -> Mapping[str, RequestFault]:
    rows: dict[str, RequestFault] = {}
    for how, identity in {"unknown": NOBODY, "no id": "nonsense", "not ASCII": "ä"}.items():
        path = quote(identity)
        rows[f"show an instance {how}"] = RequestFault(
            "INSTANCE_NOT_FOUND",
            "",
            {
                "rest": lambda s, path=path: s.rest_told("GET", f"/instances/{path}"),
                "output": lambda s, path=path: s.rest_told("GET", f"/instances/{path}/output"),
                "text": lambda s, path=path: s.rest_told("GET", f"/instances/{path}/output.txt"),
                "cli": lambda s, identity=identity: s.cli_told("instance", "show", identity),
                "logs": lambda s, identity=identity: s.cli_told("instance", "logs", identity),
                **{
                    way: lambda s, way=way, identity=identity: s.sdk_told(
                        way, lambda app: app.handle(identity).story()
                    )
                    for way in ("sdk", "sdk_http")
                },
            },
        )
        rows[f"cancel an instance {how}"] = _cancel("INSTANCE_NOT_FOUND", "", lambda s, i=identity: i)
        rows[f"retry an instance {how}"] = _retry("INSTANCE_NOT_FOUND", "", lambda s, i=identity: i)
    rows["cancel what has ended"] = _cancel("INSTANCE_TERMINAL", "", lambda s: s.ended)._replace(
        asks_owner=True
    )
    rows["retry what has not ended"] = _retry("INSTANCE_NOT_TERMINAL", "", lambda s: s.waiting)._replace(
        asks_owner=True
    )
    rows["retry of a disabled task"] = _retry("TASK_DISABLED", "", lambda s: s.ended_of_disabled)
    rows["retry with a payload that is a list"] = _retry(
        "INVALID_PAYLOAD", "payload", lambda s: s.ended, payload=[1]
    )
    rows["retry with an unknown parameter"] = _retry(
        "INVALID_PAYLOAD", "payload.frist", lambda s: s.ended_add, payload={"frist": 1}, force=True
    )
    rows["retry of what succeeded"] = _retry("INSTANCE_SUCCEEDED", "", lambda s: s.ended_add)
    rows["retry with NaN"] = _retry(
        "INVALID_PAYLOAD", "payload.second", lambda s: s.ended, payload={"second": math.nan}
    )
    rows["retry with too large a payload"] = _retry(
        "PAYLOAD_TOO_LARGE", "payload", lambda s: s.ended, payload={"second": "x" * 300_000}
    )
    return rows


def _acts_for_a_reason() -> Mapping[str, RequestFault]:
    rows: dict[str, RequestFault] = {}
    for how, reason in {"too long": "x" * 1_001, "with NUL": "a\0"}.items():
        rows[f"cancel for a reason {how}"] = _cancel(
            "INVALID_VALUE", "reason", lambda s: s.waiting, reason=reason
        )
        rows[f"retry for a reason {how}"] = _retry(
            "INVALID_VALUE", "reason", lambda s: s.ended, reason=reason
        )
        rows[f"drain for a reason {how}"] = RequestFault(
            "INVALID_VALUE",
            "reason",
            {
                "rest": lambda s, reason=reason: s.rest_told(
                    "POST", f"/workers/{s.worker}/drain", body={"reason": reason}
                ),
                "cli": lambda s, reason=reason: s.cli_told("worker", "drain", s.worker, f"--reason={reason}"),
            },
        )
    for how, worker in {"unknown": "nobody", "of spaces": "a b", "not ASCII": "ä"}.items():
        path = quote(worker, safe="")
        rows[f"show a worker {how}"] = RequestFault(
            "WORKER_NOT_FOUND",
            "",
            {
                "rest": lambda s, path=path: s.rest_told("GET", f"/workers/{path}"),
                "cli": lambda s, worker=worker: s.cli_told("worker", "show", worker),
                "rest_drain": lambda s, path=path: s.rest_told("POST", f"/workers/{path}/drain"),
                "cli_drain": lambda s, worker=worker: s.cli_told("worker", "drain", worker),
            },
        )
    return rows


def _cancel(code: str, field: str, of: Callable[[Surfaces], str], *, reason: str = "") -> RequestFault:
    return RequestFault(
        code,
        field,
        {
            "rest": lambda s: s.rest_told(
                "POST", f"/instances/{quote(of(s))}/cancel", body={"reason": reason}
            ),
            "cli": lambda s: s.cli_told("instance", "cancel", of(s), f"--reason={reason}"),
            "sdk": lambda s: s.sdk_told("sdk", lambda app: app.handle(of(s)).cancel(reason)),
            "sdk_http": lambda s: s.sdk_told("sdk_http", lambda app: app.handle(of(s)).cancel(reason)),
        },
    )


def _retry(
    code: str,
    field: str,
    of: Callable[[Surfaces], str],
    *,
    reason: str = "",
    payload: Any = None,
    force: bool = False,
) -> RequestFault:
    body = {"reason": reason, "force": force, **({} if payload is None else {"payload": payload})}
    options = [] if payload is None else [f"--payload={json.dumps(payload, separators=(',', ':'))}"]
    options += ["--force"] if force else []
    return RequestFault(
        code,
        field,
        {
            "rest": lambda s: s.rest_told("POST", f"/instances/{quote(of(s))}/retry", body=body),
            "cli": lambda s: s.cli_told("instance", "retry", of(s), f"--reason={reason}", *options),
        },
    )


def _cron() -> Mapping[str, RequestFault]:
    def preview(code: str, field: str, *, expression: str = "* * * * *", **said: Any) -> RequestFault:
        words = {"timezone": "tz"}
        options = [f"--{words.get(key, key)}={value}" for key, value in said.items()]
        body = {"expression": expression, **said}
        return RequestFault(
            code,
            field,
            {
                "rest": lambda s: s.rest_told("POST", "/cron/preview", body=body),
                "cli": lambda s: s.cli_told("cron", "next", *options, "--", expression),
            },
        )

    return {
        "preview of minute 61": preview("INVALID_CRON", "expression", expression="61 * * * *"),
        "preview of four fields": preview("INVALID_CRON", "expression", expression="* * * *"),
        "preview of nothing": preview("INVALID_CRON", "expression", expression=""),
        "preview in no zone": preview("INVALID_TIMEZONE", "timezone", timezone="Europe/Berln"),
        "preview of 1001": preview("INVALID_VALUE", "count", count=1001),
        "preview of -1": preview("INVALID_VALUE", "count", count=-1),
        "preview of many": preview("INVALID_VALUE", "count", count="many"),
        "preview from tomorrow": preview("INVALID_INSTANT", "start", start="tomorrow"),
    }


#: By what is wrong.
REQUEST_FAULTS: Mapping[str, RequestFault] = {
    **_payloads(),
    **_options(),
    **_names(),
    **_lists(),
    **_acts_on_tasks(),
    **_acts_on_instances(),
    **_acts_for_a_reason(),
    **_cron(),
}
