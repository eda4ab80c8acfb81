"""Isolation, limits and scratch directories through a real scheduler and worker, as their options say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.services import Services

APP = """
import asyncio, time


@app.task(isolation="process", retry=Retry.none())
async def alone(context: Context):
    await asyncio.sleep(0)
    return [os.getpid(), os.getppid(), str(context.scratch_directory)]


@app.task
def where():
    return [os.getpid(), os.getppid()]


@app.task(memory_limit="64MiB", cpu_limit=0.5, retry=Retry.none())
def hog(context: Context):
    (context.scratch_directory / "large").write_bytes(b"x" * 100_000)
    return len(bytearray(2**30))


limited = app.shell("limited", 'ulimit -v; nproc; echo "$TMPDIR"', memory_limit="64MiB", cpu_limit=1)
"""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    services = Services(tmp_path, APP)
    try:
        services.start_scheduler()
        services.start_worker(slots=2)
        yield services
        services.close()
    finally:
        services.kill_all()


def _end_of(services: Services, task: str) -> dict[str, Any]:
    instance_id = services.run(f"print({task}.submit().id)")
    services.until(lambda: services.state(instance_id)[0] in ("success", "failed"))
    shown = services.command("instance", "show", instance_id)
    assert isinstance(shown, dict)
    return shown


def _how(services: Services) -> str:
    lines = (services.folder / "worker.log").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    (said,) = [line for line in events if line.get("event") == "resource_limits"]
    assert said["why"]
    return str(said["how"])


def test_isolated_and_limited_tasks_run_as_declared_and_leave_nothing(services: Services) -> None:
    pid, guardian_pid = _end_of(services, "where")["result"]
    first, second = _end_of(services, "alone")["result"], _end_of(services, "alone")["result"]
    assert len({pid, first[0], second[0]}) == 3
    assert {first[1], second[1]} == {guardian_pid}
    how = _how(services)
    hog = json.dumps(_end_of(services, "hog"))
    assert '"OOM"' in hog
    assert f"memory_limit 64MiB ({how}: " in hog
    memory, count, scratch = _end_of(services, "limited")["result"]["stdout_tail"].split("\n")
    if how == "rlimits":
        assert (memory, count) == ("65536", "1")
    for path in (first[2], second[2], scratch):
        assert str(services.folder / "worker") in path
    assert [path for path in (services.folder / "worker").rglob("attempts/*")] == []
