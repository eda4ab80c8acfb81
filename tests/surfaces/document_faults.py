"""Faults of a task's definition, with the code and the field that every surface gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

_SHELL: dict[str, Any] = {"shell": {"command": "true"}}
_HTTP: dict[str, Any] = {"method": "GET", "url": "https://example.com/"}
_DAY_TOO_MANY = "36501d"


class DocumentFault(NamedTuple):
    """An entry of ``tasks.yaml`` with one thing wrong."""

    entry: dict[str, Any]
    code: str
    field: str
    #: False where Python has no such value, or gives it a meaning.
    in_sdk: bool = True


def task(_code: str, _field: str, *, in_sdk: bool = True, **said: Any) -> DocumentFault:
    """A command with `said`."""
    return DocumentFault({"name": "wrong", **_SHELL, **said}, _code, _field, in_sdk)


def http(_code: str, _field: str, *, in_sdk: bool = True, **said: Any) -> DocumentFault:
    """A request with `said`."""
    return DocumentFault({"name": "wrong", "http": {**_HTTP, **said}}, _code, _field, in_sdk)


def boxed(_code: str, _field: str, *, in_sdk: bool = True, **said: Any) -> DocumentFault:
    """A container with `said`."""
    entry = {"name": "wrong", "container": {"image": "postgres:17", **said}}
    return DocumentFault(entry, _code, _field, in_sdk)


def _containers() -> Mapping[str, DocumentFault]:
    field, code = "container", "INVALID_VALUE"
    target = {"source": "/srv", "target": "/data"}
    return {
        "image empty": boxed(code, f"{field}.image", image=""),
        "image of no kind": boxed(code, f"{field}.image", image="Postgres 17"),
        "container no words": boxed(code, f"{field}.command", command=[]),
        "container NUL": boxed(code, f"{field}.command", command="a\0b"),
        "container number": boxed(code, f"{field}.command", command=5),
        "entrypoint and text": boxed(code, f"{field}.entrypoint", command="a", entrypoint=["b"]),
        "container env name": boxed(code, f"{field}.env", env={"A=B": "c"}),
        "mounts no list": boxed(code, f"{field}.mounts", mounts="/srv:/data"),
        "mount relative": boxed(code, f"{field}.mounts[0].source", mounts=[{**target, "source": "./a"}]),
        "mount target": boxed(code, f"{field}.mounts[0].target", mounts=[{**target, "target": "data"}]),
        "mount of all": boxed(code, f"{field}.mounts[0].target", mounts=[{**target, "target": "/"}]),
        "mount of ours": boxed(code, f"{field}.mounts[0].target", mounts=[{**target, "target": "/ostinato"}]),
        "mount twice": boxed(code, f"{field}.mounts[1].target", mounts=[target, target]),
        "mount half": boxed(code, f"{field}.mounts[0].target", mounts=[{"source": "/srv"}]),
        "container directory": boxed(code, f"{field}.directory", directory="app"),
        "container user": boxed(code, f"{field}.user", user="a b"),
        "container network": boxed(code, f"{field}.network", network="container:other"),
        "container pull": boxed(code, f"{field}.pull", pull="often"),
        "container init": boxed(code, f"{field}.init", init="yes"),
        "container unknown": boxed(code, f"{field}.workdir", in_sdk=False, workdir="/app"),
    }


def _cron() -> Mapping[str, DocumentFault]:
    """Each of the six fields, more or fewer, names, and ``L``, ``W`` and ``#`` where they mean nothing."""
    texts = (
        "61 * * * *",
        "* 24 * * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "60 * * * * *",
        "* * * *",
        "* * * * * * *",
        "",
        "@dayly",
        "* * * JANU *",
        "* * * * MONDY",
        "5-1 * * * *",
        "*/0 * * * *",
        "1,,2 * * * *",
        "L * * * *",
        "* * * L *",
        "* * W * *",
        "* * * * 1#6",
        "* * * * 1W",
        "* * 1#2 * *",
        "0 0 31 2 *",
        "* * * * \u0661",
        "* * * * *\0",
    )
    return {
        f"cron {text!a}": task("INVALID_CRON", "triggers[0].cron", triggers=[{"cron": text}])
        for text in texts
    }


def _durations() -> Mapping[str, DocumentFault]:
    """Every field that holds one, with each way in which one can be wrong."""
    wrong: dict[str, Any] = {
        "negative": "-5s",
        "without a unit": "5",
        "of an unknown unit": "5 parsecs",
        "upside down": "5s1m",
        "empty": "",
        "absurd": _DAY_TOO_MANY,
        "huge": "999999999999999d",
    }
    rows: dict[str, DocumentFault] = {}
    for how, text in wrong.items():
        for field in ("timeout", "grace", "queue_timeout", "heartbeat_timeout"):
            rows[f"{field} {how}"] = task("INVALID_DURATION", field, **{field: text})
        for field in ("interval", "max_interval", "window"):
            rows[f"retry.{field} {how}"] = task("INVALID_DURATION", f"retry.{field}", retry={field: text})
        rows[f"delay {how}"] = task(
            "INVALID_DURATION", "retry.delays[0]", retry={"backoff": "delays", "delays": [text]}
        )
        rows[f"rule's interval {how}"] = task(
            "INVALID_DURATION",
            "retry.rules[0].interval",
            retry={"rules": [{"match": ["A"], "action": "retry", "interval": text}]},
        )
        rows[f"every {how}"] = task("INVALID_DURATION", "triggers[0].every", triggers=[{"every": text}])
        for field in ("spread", "misfire_grace"):
            rows[f"{field} {how}"] = task(
                "INVALID_DURATION", f"triggers[0].{field}", triggers=[{"cron": "* * * * *", field: text}]
            )
        for field in ("connect_timeout", "read_timeout"):
            rows[f"{field} {how}"] = http("INVALID_DURATION", f"http.{field}", **{field: text})
    for field in ("timeout", "grace", "queue_timeout", "heartbeat_timeout"):
        rows[f"{field} a number"] = task("INVALID_DURATION", field, in_sdk=False, **{field: 5})
        rows[f"{field} true"] = task("INVALID_DURATION", field, **{field: True})
        rows[f"{field} a list"] = task("INVALID_DURATION", field, **{field: ["5s"]})
    for field in ("interval", "max_interval", "window"):
        rows[f"retry.{field} a list"] = task("INVALID_DURATION", f"retry.{field}", retry={field: ["5s"]})
        rows[f"retry.{field} true"] = task("INVALID_DURATION", f"retry.{field}", retry={field: True})
    rows["every too short"] = task("INVALID_DURATION", "triggers[0].every", triggers=[{"every": "1ms"}])
    rows["spread too long"] = task(
        "INVALID_DURATION", "triggers[0].spread", triggers=[{"cron": "* * * * *", "spread": "25h"}]
    )
    rows["timeout of nothing"] = task("INVALID_DURATION", "timeout", timeout="0s")
    rows["grace too long"] = task("INVALID_DURATION", "grace", grace="61m")
    return rows


def _instants() -> Mapping[str, DocumentFault]:
    texts = (
        "2026-01-31T18:00:00",
        "0000-01-01T00:00:00Z",
        "10000-01-01T00:00:00Z",
        "2026-01-31T25:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-01-31T18:00:00+25:00",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "tomorrow",
        "",
    )
    rows: dict[str, DocumentFault] = {}
    for text in texts:
        rows[f"at {text}"] = task("INVALID_INSTANT", "triggers[0].at", in_sdk=False, triggers=[{"at": text}])
        rows[f"anchor {text}"] = task(
            "INVALID_INSTANT",
            "triggers[0].anchor",
            in_sdk=False,
            triggers=[{"every": "5m", "anchor": text}],
        )
    rows["at a number"] = task("INVALID_INSTANT", "triggers[0].at", in_sdk=False, triggers=[{"at": 5}])
    return rows


def _policies() -> Mapping[str, DocumentFault]:
    said: dict[str, tuple[str, dict[str, Any]]] = {
        "unknown backoff": ("retry.backoff", {"backoff": "cubic"}),
        "multiplier below 1": ("retry.multiplier", {"multiplier": 0.5}),
        "multiplier NaN": ("retry.multiplier", {"multiplier": math.nan}),
        "multiplier a text": ("retry.multiplier", {"multiplier": "2"}),
        "multiplier without exponential": ("retry.multiplier", {"backoff": "fixed", "multiplier": 2}),
        "delays missing": ("retry.delays", {"backoff": "delays"}),
        "delays empty": ("retry.delays", {"backoff": "delays", "delays": []}),
        "delays without their backoff": ("retry.delays", {"backoff": "fixed", "delays": ["1s"]}),
        "unknown jitter": ("retry.jitter", {"jitter": "some"}),
        "jitter over 1": ("retry.jitter", {"jitter": 1.5}),
        "jitter negative": ("retry.jitter", {"jitter": -0.1}),
        "jitter NaN": ("retry.jitter", {"jitter": math.nan}),
        "max_retry negative": ("retry.max_retry", {"max_retry": -1}),
        "max_retry half": ("retry.max_retry", {"max_retry": 1.5}),
        "max_retry true": ("retry.max_retry", {"max_retry": True}),
        "max_retry a text": ("retry.max_retry", {"max_retry": "3"}),
        "max_retry huge": ("retry.max_retry", {"max_retry": 10**12}),
        "max_lost negative": ("retry.max_lost", {"max_lost": -1}),
        "retry_on a text": ("retry.retry_on", {"retry_on": "A"}),
        "retry_on an empty pattern": ("retry.retry_on[0]", {"retry_on": [""]}),
        "retry_on a number": ("retry.retry_on[0]", {"retry_on": [5]}),
        "rule without match": ("retry.rules[0].match", {"rules": [{"action": "fail"}]}),
        "rule of an unknown action": (
            "retry.rules[0].action",
            {"rules": [{"match": ["A"], "action": "wait"}]},
        ),
        "unknown field": ("retry.max_retries", {"max_retries": 3}),
    }
    rows = {
        f"retry: {how}": task("INVALID_POLICY", field, retry=policy) for how, (field, policy) in said.items()
    }
    rows["retry: a text"] = task("INVALID_POLICY", "retry", retry="often")
    return rows


def _triggers() -> Mapping[str, DocumentFault]:
    return {
        "unknown zone": task(
            "INVALID_TIMEZONE",
            "triggers[0].timezone",
            triggers=[{"cron": "* * * * *", "timezone": "Europe/Berln"}],
        ),
        "zone that leads elsewhere": task(
            "INVALID_TIMEZONE",
            "triggers[0].timezone",
            triggers=[{"cron": "* * * * *", "timezone": "../../etc/passwd"}],
        ),
        "empty zone": task(
            "INVALID_TIMEZONE", "triggers[0].timezone", triggers=[{"cron": "* * * * *", "timezone": ""}]
        ),
        "misfire unknown": task(
            "INVALID_VALUE", "triggers[0].misfire", triggers=[{"cron": "* * * * *", "misfire": "never"}]
        ),
        "misfire_bound 0": task(
            "INVALID_VALUE", "triggers[0].misfire_bound", triggers=[{"every": "1m", "misfire_bound": 0}]
        ),
        "dst_gap unknown": task(
            "INVALID_VALUE", "triggers[0].dst_gap", triggers=[{"cron": "* * * * *", "dst_gap": "x"}]
        ),
        "dst_fold unknown": task(
            "INVALID_VALUE", "triggers[0].dst_fold", triggers=[{"cron": "* * * * *", "dst_fold": "x"}]
        ),
        "two of a trigger": task(
            "INVALID_VALUE", "triggers[1]", triggers=[{"every": "1m"}, {"every": "60s"}]
        ),
        "trigger of nothing": task("INVALID_VALUE", "triggers[0]", in_sdk=False, triggers=[{}]),
        "trigger of two kinds": task(
            "INVALID_VALUE", "triggers[0]", in_sdk=False, triggers=[{"cron": "* * * * *", "every": "1m"}]
        ),
    }


def _options() -> Mapping[str, DocumentFault]:
    rows = {
        "overlap unknown": task("INVALID_VALUE", "overlap", overlap="maybe"),
        "queue_bound 0": task("INVALID_VALUE", "queue_bound", overlap="queue", queue_bound=0),
        "shards 0": task("INVALID_VALUE", "shards", shards=0),
        "shards huge": task("INVALID_VALUE", "shards", shards=1_001),
        "shards in words": task("INVALID_VALUE", "shards", shards="many"),
        "queue_bound huge": task("INVALID_VALUE", "queue_bound", overlap="queue", queue_bound=10**6),
        "exclusive unknown": task("INVALID_VALUE", "exclusive", exclusive="yes"),
        "isolation unknown": task("INVALID_VALUE", "isolation", isolation="container"),
        "isolation of a command": task("INVALID_VALUE", "isolation", isolation="process"),
        "label's name": task("INVALID_NAME", "labels", labels={"a b": "c"}),
        "label's value": task("INVALID_VALUE", "labels.a", labels={"a": "b\0"}),
        "label a number": task("INVALID_VALUE", "labels", labels={"a": 5}),
        "labels a list": task("INVALID_VALUE", "labels", labels=["a"]),
        "description a number": task("INVALID_VALUE", "description", description=5),
        "description too long": task("INVALID_VALUE", "description", description="x" * 5_000),
        "description NUL": task("INVALID_VALUE", "description", description="a\0b"),
        "memory_limit of no unit": task("INVALID_VALUE", "memory_limit", memory_limit="512M"),
        "memory_limit negative": task("INVALID_VALUE", "memory_limit", memory_limit=-1),
        "memory_limit tiny": task("INVALID_VALUE", "memory_limit", memory_limit="1KiB"),
        "memory_limit huge": task("INVALID_VALUE", "memory_limit", memory_limit=2**60),
        "memory_limit half": task("INVALID_VALUE", "memory_limit", memory_limit=1.5),
        "cpu_limit 0": task("INVALID_VALUE", "cpu_limit", cpu_limit=0),
        "cpu_limit negative": task("INVALID_VALUE", "cpu_limit", cpu_limit=-1),
        "cpu_limit NaN": task("INVALID_VALUE", "cpu_limit", cpu_limit=math.nan),
        "cpu_limit infinite": task("INVALID_VALUE", "cpu_limit", cpu_limit=math.inf),
        "cpu_limit a text": task("INVALID_VALUE", "cpu_limit", cpu_limit="2"),
    }
    for priority in (10, -1, 5.5, True, "5", 2**70):
        rows[f"priority {priority!r}"] = task("INVALID_VALUE", "priority", priority=priority)
    return rows


def _executors() -> Mapping[str, DocumentFault]:
    return {
        "shell empty": task("INVALID_VALUE", "shell.command", shell={"command": ""}),
        "shell blank": task("INVALID_VALUE", "shell.command", shell={"command": "  "}),
        "shell no words": task("INVALID_VALUE", "shell.command", shell={"command": []}),
        "shell NUL": task("INVALID_VALUE", "shell.command", shell={"command": "a\0b"}),
        "shell word NUL": task("INVALID_VALUE", "shell.command", shell={"command": ["a", "b\0"]}),
        "env name": task("INVALID_VALUE", "shell.env", shell={"command": "a", "env": {"A=B": "c"}}),
        "env NUL": task("INVALID_VALUE", "shell.env.A", shell={"command": "a", "env": {"A": "\0"}}),
        "directory NUL": task("INVALID_VALUE", "shell.directory", shell={"command": "a", "directory": "\0"}),
        "url without scheme": http("INVALID_VALUE", "http.url", url="example.com"),
        "url of a file": http("INVALID_VALUE", "http.url", url="file:///etc/passwd"),
        "url without host": http("INVALID_VALUE", "http.url", url="http://"),
        "url of a wrong port": http("INVALID_VALUE", "http.url", url="http://example.com:99999/"),
        "url with a line": http("INVALID_VALUE", "http.url", url="http://example.com/\r\nX: y"),
        "url empty": http("INVALID_VALUE", "http.url", url=""),
        "header with a line": http("INVALID_VALUE", "http.headers.A", headers={"A": "b\r\nC: d"}),
        "header's name with a line": http("INVALID_VALUE", "http.headers", headers={"A\r\nB": "c"}),
        "header not ASCII": http("INVALID_VALUE", "http.headers.A", headers={"A": "ü"}),
        "method with a line": http("INVALID_VALUE", "http.method", method="GET\r\n"),
        "method empty": http("INVALID_VALUE", "http.method", method=""),
        "status unknown": http("INVALID_VALUE", "http.success_status", success_status=["okay"]),
        "statuses none": http("INVALID_VALUE", "http.success_status", success_status=[]),
        "follow_redirects a text": http("INVALID_VALUE", "http.follow_redirects", follow_redirects="yes"),
        "unknown option": task("INVALID_VALUE", "timeoutt", timeoutt="5m"),
        "payload a list": task("INVALID_PAYLOAD", "payload", payload=["a"]),
        "payload NaN": task("INVALID_PAYLOAD", "payload.a", payload={"a": math.nan}),
        "payload Infinity": task("INVALID_PAYLOAD", "payload.a[0]", payload={"a": [math.inf]}),
        "payload huge integer": task("INVALID_PAYLOAD", "payload.a", payload={"a": 2**70}),
        "payload too large": task("PAYLOAD_TOO_LARGE", "payload", payload={"a": "x" * 300_000}),
        "two executors": DocumentFault(
            {"name": "wrong", **_SHELL, "http": _HTTP}, "INVALID_VALUE", "", in_sdk=False
        ),
        "no executor": DocumentFault({"name": "wrong"}, "INVALID_VALUE", "", in_sdk=False),
        "command missing": DocumentFault(
            {"name": "wrong", "shell": {}}, "INVALID_VALUE", "shell.command", in_sdk=False
        ),
    }


def _types() -> Mapping[str, DocumentFault]:
    """Values of another type than the field's; Python takes any without a word until it is looked at."""
    rows: dict[str, DocumentFault] = {}
    wrong: dict[str, Any] = {"a number": 5, "true": True, "a list": [1], "a block": {"a": 1}, "a text": "x"}
    http_fields = {
        "url": "a text",
        "body": "a text",
        "method": "a text",
        "headers": "a block",
        "success_status": "a list",
        "follow_redirects": "true",
        "connect_timeout": "a duration",
    }
    for field, right in http_fields.items():
        for how, value in wrong.items():
            # Headers that are a block of numbers and statuses that are a list of one are wrong inside.
            inside = {"headers": "http.headers.a", "success_status": "http.success_status"}
            code = "INVALID_DURATION" if field == "connect_timeout" else "INVALID_VALUE"
            path = inside[field] if how == right and field in inside else f"http.{field}"
            if how == right and field not in inside:
                continue
            in_sdk = (field, how) != ("connect_timeout", "a number")
            rows[f"{field} {how}"] = http(code, path, in_sdk=in_sdk, **{field: value})
    for how, value in {"a number": 5, "true": True, "a block": {"a": 1}, "a list of numbers": [1]}.items():
        path = "shell.command[0]" if how == "a list of numbers" else "shell.command"
        rows[f"command {how}"] = task("INVALID_VALUE", path, shell={"command": value})
        if how != "a block":
            rows[f"env {how}"] = task("INVALID_VALUE", "shell.env", shell={"command": "a", "env": value})
        rows[f"directory {how}"] = task(
            "INVALID_VALUE", "shell.directory", shell={"command": "a", "directory": value}
        )
    for field in ("misfire_grace", "spread"):
        rows[f"{field} a list"] = task(
            "INVALID_DURATION",
            f"triggers[0].{field}",
            in_sdk=False,
            triggers=[{"cron": "* * * * *", field: [1]}],
        )
    for value in (True, 1.5, "5", [1], 2**70):
        rows[f"misfire_bound {value!r}"] = task(
            "INVALID_VALUE",
            "triggers[0].misfire_bound",
            in_sdk=value == 2**70,
            triggers=[{"cron": "* * * * *", "misfire_bound": value}],
        )
    return rows


#: By what is wrong.
DOCUMENT_FAULTS: Mapping[str, DocumentFault] = {
    **_cron(),
    **_durations(),
    **_instants(),
    **_policies(),
    **_triggers(),
    **_options(),
    **_executors(),
    **_containers(),
    **_types(),
}

#: Names that no task, namespace or label has; each is refused with ``INVALID_NAME``.
BAD_NAMES = {
    "empty": "",
    "too long": "x" * 201,
    "space": "a b",
    "slash": "a/b",
    "unicode": "tâche",
    "control": "a\x07b",
    "line": "a\nb",
    "dots": "..",
    "hidden": ".a",
    "option": "-a",
    "percent": "a%2Fb",
}
