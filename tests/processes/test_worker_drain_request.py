"""``ostinato worker drain`` on a real scheduler and worker, and whether ``worker list`` tells the truth."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.services import Services

APP = """
@app.task(overlap="allow")
def gated(context: Context) -> None:
    witness(context, "start")
    while not (HERE / "gate").exists():
        time.sleep(0.02)
    witness(context, "end")
"""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    started = Services(tmp_path, APP)
    yield started
    started.close()


def _workers(services: Services) -> list[dict[str, Any]]:
    listed: Any = services.command("worker", "list", "--all")
    found: list[dict[str, Any]] = listed["items"] if isinstance(listed, dict) else listed
    return found


def _states(services: Services) -> dict[str, str]:
    """State by id."""
    return {worker["id"]: worker["state"] for worker in _workers(services)}


def _is_only(services: Services, state: str) -> bool:
    return list(_states(services).values()) == [state]


def _submit(services: Services) -> str:
    return services.run("print(gated.submit().id)")


def _refused(services: Services, *arguments: str) -> str:
    """What a command that must fail says."""
    done = subprocess.run(
        [sys.executable, "-m", "ostinato.cli", *arguments],
        cwd=services.folder,
        env=services.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode not in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_worker_that_is_drained_ends_its_work_takes_no_more_and_exits_with_0(services: Services) -> None:
    services.start_scheduler()
    services.start_worker()
    first = _submit(services)
    services.until(lambda: services.witnessed(first) == {1: ["start"]})
    assert _is_only(services, "connected")
    answer: Any = services.command("worker", "drain", "worker", "--reason", "new machine")
    assert answer["code"] == "OK"
    services.until(lambda: _is_only(services, "draining"), within_s=10)
    second = _submit(services)
    held = "select hold from instance where id = ?"
    services.until(lambda: services.rows(held, second) == [("no_worker",)])
    process = services.processes.pop("worker")
    assert process.poll() is None
    assert services.state(first) == ("running", 1)
    (services.folder / "gate").touch()
    assert process.wait(30) == 0
    services.until(lambda: services.state(first) == ("success", 1))
    assert services.witnessed(first) == {1: ["start", "end"]}
    services.until(lambda: _is_only(services, "gone"), within_s=10)
    assert services.state(second) == ("pending", 0)
    assert "WORKER_NOT_FOUND" in _refused(services, "worker", "drain", "worker")
    services.start_worker("another")
    services.until(lambda: services.state(second) == ("success", 1))


def test_one_of_two_workers_of_a_name_is_drained_by_its_id(services: Services) -> None:
    services.start_scheduler()
    services.start_worker("one", options=("--worker-name", "twin"))
    services.until(lambda: _is_only(services, "connected"))
    (first,) = _states(services)
    services.start_worker("two", options=("--worker-name", "twin"))
    services.until(lambda: list(_states(services).values()) == ["connected", "connected"])
    said = _refused(services, "worker", "drain", "twin")
    assert "INVALID_VALUE" in said
    for identity in _states(services):
        assert identity in said
    answer: Any = services.command("worker", "drain", first)
    assert answer["code"] == "OK"
    assert services.processes.pop("one").wait(30) == 0
    services.until(lambda: _states(services)[first] == "gone", within_s=10)
    assert sorted(_states(services).values()) == ["connected", "gone"]
    # The name is no longer shared by any that are connected.
    answer = services.command("worker", "drain", "twin")
    assert answer["code"] == "OK"
    assert services.processes.pop("two").wait(30) == 0


def test_the_list_tells_the_truth_after_a_worker_and_a_scheduler_were_killed(services: Services) -> None:
    services.start_scheduler()
    services.start_worker("one")
    services.start_worker("two")
    services.until(lambda: sorted(_states(services).values()) == ["connected", "connected"])
    identities = {worker["name"]: worker["id"] for worker in _workers(services)}
    (node,) = {node for worker in _workers(services) for node in worker["nodes"]}
    services.kill("one")
    expected = {identities["one"]: "gone", identities["two"]: "connected"}
    services.until(lambda: _states(services) == expected, within_s=10)
    services.kill("scheduler")
    services.start_scheduler()

    def is_with_the_new_node() -> bool:
        two = next(worker for worker in _workers(services) if worker["name"] == "two")
        return two["state"] == "connected" and node not in two["nodes"]

    services.until(is_with_the_new_node, within_s=30)
    assert _states(services) == expected
    # And a wish reaches it there.
    answer: Any = services.command("worker", "drain", "two")
    assert answer["code"] == "OK"
    assert services.processes.pop("two").wait(30) == 0
    services.until(lambda: set(_states(services).values()) == {"gone"}, within_s=10)
