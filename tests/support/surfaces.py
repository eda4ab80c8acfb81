"""One running node and every way to ask it: REST, the command line, files, and the SDK by both of its ways.

`Told` is what a way says of a fault. Fields are compared as they are, but for what `plain_field` undoes.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from support.rest import Rest, running_rest
from typer.testing import CliRunner

from ostinato import App
from ostinato.errors import CODES, OstinatoError

#: What people ask for and what is recorded of it. What a node does by itself stands in other tables.
_QUERIES = {
    "task": "select namespace, name, version, paused, disabled from task",
    "task_definition": "select * from task_definition",
    "task_trigger": "select namespace, task, id from task_trigger",
    "instance": "select id, namespace, task, priority, due_us, payload from instance",
    "request": "select id, kind, task, instance_id, body from request",
    "idempotency_key": "select * from idempotency_key",
}
#: The words of the command line for what the API calls by another name.
_SAME_FIELD = {
    "since": "created_from",
    "until": "created_before",
    "tz": "timezone",
    "Idempotency-Key": "key",
}
#: What the SDK's makers of triggers and policies say of their own arguments, which know no task.
_MADE = re.compile(r"^(cron|timezone|every|at|anchor|misfire\w*|dst_\w+|spread)\b")


class Told(NamedTuple):
    """What was said of a fault."""

    code: str
    field: str
    message: str
    hint: str


class Surfaces:
    """The ways, all to one node; each method gives what is told, None where nothing was wrong."""

    def __init__(self, rest: Rest, *, loop: asyncio.AbstractEventLoop, directory: Path) -> None:
        self.rest = rest
        self.loop = loop
        self.directory = directory
        host, port = rest.address
        self.api = f"http://{host}:{port}"
        self.database = f"sqlite:///{directory / 'rest.db'}"
        self._client = httpx.Client(base_url=f"{self.api}/api/v1", timeout=30)
        #: Ids of what has failed, what succeeded, what waits, and what ended because its task was disabled.
        self.ended = self.ended_add = self.waiting = self.ended_of_disabled = ""
        #: Name of the worker.
        self.worker = ""
        self.apps = {"sdk": App("shop", self.database), "sdk_http": App("shop", self.api)}

    def prepare(self) -> None:
        """Tasks and instances that faults are about."""
        document = {
            "version": 1,
            "tasks": [
                {"name": "strict", "python": {"call": "shop:strict", "parameters": ["day"]}},
                {"name": "off", "shell": {"command": "true"}},
            ],
        }
        assert self.rest_told("POST", "/apply", body=document) is None
        app = self.apps["sdk"]
        self.ended = app.submit("closed").id
        self.ended_add = app.submit("add", {"second": 1}).id
        self.waiting = app.submit("add", {"second": 1}, key="live", delay="1h").id
        self.on_loop(lambda: self.rest.in_state(self.ended, "failed"))
        self.on_loop(lambda: self.rest.in_state(self.ended_add, "success"))
        self.ended_of_disabled = app.submit("off", delay="1h").id
        assert self.rest_told("POST", "/namespaces/default/tasks/off/disable") is None
        self.worker = self._client.get("/workers").json()["items"][0]["name"]

    def close(self) -> None:
        self._client.close()
        for app in self.apps.values():
            app.close()

    def on_loop(self, make: Callable[[], Any]) -> Any:
        """What a coroutine of the node's loop returns."""
        return asyncio.run_coroutine_threadsafe(make(), self.loop).result(60)

    def rest_told(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        raw: bytes | None = None,
        headers: Mapping[str, str | bytes] | None = None,
    ) -> Told | None:
        """Ask the API; `raw` is a body as it stands."""
        content = json.dumps(body).encode() if raw is None and body is not None else raw
        sent: dict[str, Any] = {} if content is None else {"content": content}
        given: dict[str, Any] = {**({"content-type": "application/json"} if sent else {}), **(headers or {})}
        answer = self._client.request(method, path, headers=given, **sent)
        if answer.status_code < 400:
            return None
        problem = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.status_code == problem["status"] == status_of(problem["code"])
        assert "Traceback" not in answer.text
        return Told(problem["code"], problem.get("field", ""), problem["detail"], problem.get("hint", ""))

    def cli_told(
        self, *arguments: str, env: Mapping[str, str] | None = None, stdin: bytes | None = None
    ) -> Told | None:
        """Run a command in this process; it must end as the code that it tells demands."""
        return told_by_command(
            *arguments, env={"OSTINATO_DATABASE": self.database, **(env or {})}, stdin=stdin
        )

    def apply_told(self, text: str | bytes, *options: str) -> Told | None:
        """Apply a file that holds `text`."""
        file = self.directory / "tasks.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        return self.cli_told("apply", "-f", str(file), *options)

    def sdk_told(self, way: str, use: Callable[[App], object]) -> Told | None:
        """Use an app that reaches the node in one of its ways."""
        return sdk_told(lambda: use(self.apps[way]))

    def made_told(self, use: Callable[[], object]) -> Told | None:
        """What is told without asking the node at all."""
        return sdk_told(use)

    def written(self) -> dict[str, list[tuple[object, ...]]]:
        """Everything that somebody could have written."""
        connection = sqlite3.connect(f"file:{self.directory / 'rest.db'}?mode=ro", uri=True, timeout=10)
        try:
            return {table: sorted(connection.execute(query), key=repr) for table, query in _QUERIES.items()}
        finally:
            connection.close()


def sdk_told(use: Callable[[], object]) -> Told | None:
    """What a call of the SDK raises."""
    try:
        use()
    except OstinatoError as error:
        return Told(error.code, error.field, error.message, error.hint)
    return None


def status_of(code: str) -> int:
    """The status that REST answers with for a code."""
    return OstinatoError(code, "").http_status


def told_by_command(
    *arguments: str, env: Mapping[str, str] | None = None, stdin: bytes | None = None
) -> Told | None:
    """What a command says that is run in this process."""
    from ostinato.cli.main import app

    result = CliRunner().invoke(
        app, ["--json", *arguments], env=dict(env or {}), input=stdin, prog_name="ostinato"
    )
    return told_by_process(result.exit_code, result.stderr)


def told_by_process(exit_code: int, stderr: str) -> Told | None:
    """What the last line of stderr says; the exit code must be that of what is told."""
    assert "Traceback" not in stderr, stderr
    if exit_code == 0:
        return None
    error = json.loads(stderr.strip().splitlines()[-1])["error"]
    assert exit_code == CODES[error["code"]].exit_code, stderr
    return Told(error["code"], error["field"] or "", error["message"], error["hint"] or "")


def plain_field(field: str, *, made_by_sdk: bool = False) -> str:
    """The name of a field without what only its surface adds.

    That is: ``tasks[0].`` of a document with one task and ``submissions[0].`` of a list with one entry; the
    dashes of an option, with ``since`` and ``until`` for what the API calls ``created_from`` and
    ``created_before``, and ``tz`` for ``timezone``; ``filter.`` of a body; the header's name of a key; and
    ``triggers[0].`` for what the makers `cron`, `every` and `at` of the SDK say of their own arguments.
    """
    for prefix in ("tasks[0]", "submissions[0]", "submissions[]", "filter"):
        if field == prefix or field.startswith(f"{prefix}."):
            field = field.removeprefix(prefix).removeprefix(".")
    if field.startswith("--"):
        field = field.removeprefix("--").replace("-", "_")
    field = _SAME_FIELD.get(field, field)
    return f"triggers[0].{field}" if made_by_sdk and _MADE.match(field) else field


def declare(entry: Mapping[str, Any]) -> object:
    """Declare an entry of ``tasks.yaml`` with the SDK, its triggers made by their makers."""
    from ostinato import at, cron, every

    app = App("shop", "memory:", namespace=entry.get("namespace", "default"))
    said = {
        key: value
        for key, value in entry.items()
        if key not in ("name", "namespace", "shell", "http", "container")
    }
    makers: dict[str, Callable[..., Any]] = {"cron": cron, "every": every, "at": at}
    if isinstance(said.get("triggers"), Sequence):
        made = []
        for trigger in said["triggers"]:
            options = dict(trigger)
            kind = next(kind for kind in makers if kind in options)
            made.append(makers[kind](options.pop(kind), **options))
        said["triggers"] = made
    if "container" in entry:
        options = dict(entry["container"])
        return app.container(entry["name"], options.pop("image"), **options, **said)
    if "http" in entry:
        options = dict(entry["http"])
        return app.http(entry["name"], options.pop("method"), **options, **said)
    options = dict(entry["shell"])
    return app.shell(entry["name"], options.pop("command"), **options, **said)


@contextmanager
def running_surfaces(directory: Path) -> Iterator[Surfaces]:
    """A node with its API and a worker, on a loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    running = running_rest(directory)
    with ExitStack() as stack:
        stack.callback(_end, loop, thread)
        rest = asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result(30)
        stack.callback(
            lambda: asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result(30)
        )
        surfaces = Surfaces(rest, loop=loop, directory=directory)
        stack.callback(surfaces.close)
        surfaces.prepare()
        yield surfaces


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()
