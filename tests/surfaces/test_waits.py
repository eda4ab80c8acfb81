"""What is no fault but a wait, and what becomes of a task that runs: told in the same words everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from support.surfaces import Surfaces
from typer.testing import CliRunner

from ostinato.clock import SystemClock
from ostinato.core.instants import MILLISECOND, SECOND

SHELL = {"shell": {"command": "true"}}
PYTHON = {"python": {"call": "shop:elsewhere"}}


def _rest(surfaces: Surfaces, method: str, path: str, body: object = None) -> Any:
    answer = httpx.request(method, f"{surfaces.api}/api/v1{path}", json=body, timeout=30)
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


def _put(surfaces: Surfaces, name: str, **said: object) -> int:
    """Version of the task, once it is stored."""
    return int(_rest(surfaces, "PUT", f"/namespaces/default/tasks/{name}", said)["version"])


def _show(surfaces: Surfaces, instance_id: str, *options: str) -> str:
    from ostinato.cli.main import app

    arguments = ["instance", "show", instance_id, "--database", surfaces.database, *options]
    result = CliRunner().invoke(app, arguments, prog_name="ostinato")
    assert result.exit_code == 0, result.stderr
    return result.stdout


def _stories(surfaces: Surfaces, instance_id: str) -> dict[str, dict[str, Any]]:
    """State, version and wait of an instance, as each surface tells them."""
    rest = _rest(surfaces, "GET", f"/instances/{instance_id}")
    shown = json.loads(_show(surfaces, instance_id, "--json"))
    told = {
        name: {key: story[key] for key in ("state", "task_version", "waits", "next")}
        for name, story in {"rest": rest, "cli": shown}.items()
    }
    for name, app in surfaces.apps.items():
        story = app.handle(instance_id).story()
        told[name] = {
            "state": str(story.state),
            "task_version": story.task_version,
            "waits": story.waits or None,
            "next": story.next,
        }
    return told


def _until(surfaces: Surfaces, look: Callable[[], Any]) -> Any:
    """What `look` gives once it is something."""

    async def wait() -> None:
        clock = SystemClock()
        await clock.sleep_until_us(clock.boot_us() + 20 * MILLISECOND)

    clock = SystemClock()
    end_us = clock.boot_us() + 20 * SECOND
    while not (found := look()):
        assert clock.boot_us() < end_us, "the condition did not come true in time"
        surfaces.on_loop(wait)
    return found


def _in_state(surfaces: Surfaces, instance_id: str, state: str) -> None:
    _until(surfaces, lambda: _rest(surfaces, "GET", f"/instances/{instance_id}")["state"] == state)


def _same(surfaces: Surfaces, instance_id: str) -> dict[str, Any]:
    """The one thing that all surfaces say of an instance."""
    told = _stories(surfaces, instance_id)
    assert told == dict.fromkeys(told, told["rest"])
    return told["rest"]


@pytest.mark.parametrize(
    ("name", "said", "words"),
    [
        ("unknown", PYTHON, "no worker can run default/unknown: none of the 1 connected knows it"),
        (
            "labelled",
            {**SHELL, "labels": {"zone": "nowhere"}},
            "no worker can run default/labelled: none of the 1 that know it has labels zone=nowhere",
        ),
        ("paused", SHELL, "task default/paused is paused"),
    ],
)
def test_a_wait_is_told_with_its_reason_everywhere(
    surfaces: Surfaces, name: str, said: dict[str, object], words: str
) -> None:
    _put(surfaces, name, **said)
    if name == "paused":
        _rest(surfaces, "POST", f"/namespaces/default/tasks/{name}/pause")
    instance_id = surfaces.apps["sdk"].submit(name).id
    _until(surfaces, lambda: _rest(surfaces, "GET", f"/instances/{instance_id}")["waits"])
    same = _same(surfaces, instance_id)
    assert same["state"] == "pending"
    assert same["waits"] == words
    assert words in _show(surfaces, instance_id)


def test_a_task_edited_while_it_runs_goes_on_as_it_began(surfaces: Surfaces) -> None:
    _put(surfaces, "edited", **SHELL)
    instance_id = surfaces.apps["sdk_http"].submit("edited").id
    _in_state(surfaces, instance_id, "running")
    assert _put(surfaces, "edited", **SHELL, timeout="7m") == 2
    same = _same(surfaces, instance_id)
    assert (same["state"], same["task_version"], same["waits"]) == ("running", 1, None)
    later = surfaces.apps["sdk"].submit("edited").id
    _in_state(surfaces, later, "running")
    assert _same(surfaces, later)["task_version"] == 2


def test_a_task_deleted_while_it_runs_goes_on_to_its_end_and_is_told(surfaces: Surfaces) -> None:
    _put(surfaces, "deleted", **SHELL)
    instance_id = surfaces.apps["sdk"].submit("deleted").id
    _in_state(surfaces, instance_id, "running")
    _rest(surfaces, "DELETE", "/namespaces/default/tasks/deleted")
    same = _same(surfaces, instance_id)
    assert (same["state"], same["task_version"]) == ("running", 1)
    told = {
        "show": surfaces.cli_told("task", "show", "deleted"),
        "trigger": surfaces.cli_told("task", "trigger", "deleted"),
        "rest": surfaces.rest_told("GET", "/namespaces/default/tasks/deleted"),
        "sdk": surfaces.sdk_told("sdk", lambda app: app.submit("deleted")),
        "sdk_http": surfaces.sdk_told("sdk_http", lambda app: app.submit("deleted")),
    }
    codes = {way: one and (one.code, one.message) for way, one in told.items()}
    assert codes == dict.fromkeys(codes, ("TASK_NOT_FOUND", "task default/deleted does not exist"))


def test_a_task_turned_from_shell_to_python_runs_on_and_then_waits_for_a_worker(surfaces: Surfaces) -> None:
    _put(surfaces, "turned", **SHELL)
    before = surfaces.apps["sdk"].submit("turned").id
    _in_state(surfaces, before, "running")
    assert _put(surfaces, "turned", **PYTHON) == 2
    after = surfaces.apps["sdk_http"].submit("turned").id
    _until(surfaces, lambda: _rest(surfaces, "GET", f"/instances/{after}")["waits"])
    old, new = _same(surfaces, before), _same(surfaces, after)
    assert (old["state"], old["task_version"]) == ("running", 1)
    assert (new["state"], new["task_version"]) == ("pending", 2)
    assert new["waits"] == "no worker can run default/turned: none of the 1 connected knows it"
