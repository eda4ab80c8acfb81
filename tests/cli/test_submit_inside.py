"""A task that submits another reaches the scheduler that runs it, wherever that listens."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support import dev as dev_support
from support.dev import Dev, running_dev
from support.services import Services

from ostinato.worker.task_environment import submitting_to, task_environment

APP = """
from ostinato import App

app = App("chain")


@app.task
def second(number: int) -> int:
    return number * 2


@app.task
def first(number: int) -> str:
    return second.submit(number).id


@app.task
async def first_async(number: int) -> str:
    return (await second.submit_async(number)).id
"""


def _result(dev: Dev, task: str, *options: str) -> str:
    """Result of an instance of `task` that has been waited for."""
    done = dev.run("task", "trigger", task, "--arg", "number:=21", "--wait", "--json", *options)
    assert done.returncode == 0, done.stderr + done.stdout
    result: str = json.loads(done.stdout)["result"]
    return result


@pytest.mark.parametrize("options", [(), ("--database", "sqlite:///elsewhere.db")], ids=["plain", "database"])
def test_a_task_of_dev_submits_to_the_dev_that_runs_it(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dev_support, "APP", APP)
    with running_dev(tmp_path, *options) as dev:
        for task in ("first", "first_async"):
            identity = _result(dev, task, *options)
            shown = dev.run("instance", "show", identity, "--json", *options)
            assert shown.returncode == 0, shown.stderr
            assert '"task": "second"' in shown.stdout


def test_a_worker_passes_on_where_its_tasks_submit_to(tmp_path: Path) -> None:
    services = Services(tmp_path, APP, preamble="")
    try:
        services.start_scheduler()
        # The worker knows of no database.
        environment = dict(services.environment)
        del services.environment["OSTINATO_DATABASE"]
        services.environment["OSTINATO_URL"] = f"http://127.0.0.1:{services.health_port}"
        services.start_worker()
        services.environment = environment
        identity = services.run("print(first.submit(21).id)")
        services.until(lambda: services.state(identity) == ("success", 1))
        ended = "select count(*) from instance where task = 'second' and state = 'success'"
        services.until(lambda: services.rows(ended) != [(0,)])
        assert services.rows(ended) == [(1,)]
    finally:
        services.close()


def test_where_tasks_submit_to_passes_to_their_processes() -> None:
    said = {"OSTINATO_URL": "http://node:8640", "OSTINATO_JOIN_TOKEN_FILE": "secret", "PATH": "/bin"}
    assert task_environment(said) == {"OSTINATO_URL": "http://node:8640", "PATH": "/bin"}


@pytest.mark.parametrize("before", [None, "http://elsewhere:1"])
def test_a_process_says_where_to_submit_only_while_its_scheduler_runs(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OSTINATO_URL", raising=False)
    if before is not None:
        monkeypatch.setenv("OSTINATO_URL", before)
    with submitting_to("http://127.0.0.1:4711"):
        assert task_environment(os.environ)["OSTINATO_URL"] == "http://127.0.0.1:4711"
    assert os.environ.get("OSTINATO_URL") == before
