"""Real processes: the scheduler is killed in mid-run, a task runs into its time-out; nothing is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.services import Services

APP = """
@app.task(timeout="5m")
def slow(context: Context) -> str:
    witness(context, "start")
    while not (HERE / "go").exists():
        time.sleep(0.02)
    witness(context, "end")
    return "done"


@app.task(retry=Retry.fixed(3, max_retry=3))
async def flaky(context: Context) -> int:
    witness(context, "start")
    if context.attempt < 2:
        raise ConnectionResetError("reset")
    return context.attempt


@app.task(triggers=[every("1s", misfire="fire_all")], overlap="allow")
async def tick(context: Context) -> None:
    witness(context, "start")


@app.task(timeout="2s", retry=Retry.none())
def endless(context: Context) -> None:
    witness(context, "start")
    while True:
        pass


@app.task()
def neighbour(context: Context) -> int:
    witness(context, "start")
    while not (HERE / "go").exists():
        time.sleep(0.02)
    return os.getpid()
"""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    started = Services(tmp_path, APP)
    yield started
    (tmp_path / "go").touch()
    started.close()


def test_a_scheduler_killed_in_mid_run_loses_nothing_and_doubles_nothing(services: Services) -> None:
    """C087, C097: due fires, waiting retries and running attempts are all there after the restart."""
    services.start_scheduler()
    services.start_worker()
    slow, flaky = services.run("print(slow.submit().id, flaky.submit().id)").split()
    services.until(lambda: services.state(slow) == ("running", 1) and services.witnessed(slow))
    services.until(lambda: services.state(flaky) == ("retry_waiting", 1))
    services.until(lambda: _ticks(services))
    services.kill("scheduler")
    killed_us = max(_ticks(services))
    after_kill = services.run("print(slow.submit().id)")
    services.start_scheduler()
    services.until(lambda: services.state(flaky) == ("success", 2))
    assert services.state(slow) == ("running", 1)
    services.until(lambda: services.state(after_kill) == ("running", 1))
    (services.folder / "go").touch()
    services.until(lambda: services.state(slow) == ("success", 1))
    services.until(lambda: services.state(after_kill) == ("success", 1))
    assert services.witnessed(slow) == {1: ["start", "end"]}
    assert services.witnessed(flaky) == {1: ["start"], 2: ["start"]}
    assert services.rows("select count(*) from history where instance_id = ?", slow) == [(0,)]
    services.until(lambda: max(_ticks(services)) > killed_us + 2_000_000)
    _every_fire_ran_once(services)


def _ticks(services: Services) -> list[int]:
    """Instants of the interval's fires that have run."""
    query = "select fire_us from instance where task = 'tick' and state = 'success' order by fire_us"
    return [int(str(fire_us)) for (fire_us,) in services.rows(query)]


def _every_fire_ran_once(services: Services) -> None:
    assert {later - earlier for earlier, later in pairwise(_ticks(services))} == {1_000_000}
    for (identity,) in services.rows("select id from instance where task = 'tick' and state = 'success'"):
        assert services.witnessed(str(identity)) == {1: ["start"]}


def test_an_endless_loop_is_killed_at_its_time_out_and_its_neighbours_are_unharmed(
    services: Services,
) -> None:
    services.start_scheduler()
    services.start_worker(slots=2)
    neighbour, endless = services.run("print(neighbour.submit().id, endless.submit().id)").split()
    services.until(lambda: services.witnessed(neighbour) and services.witnessed(endless))
    services.until(lambda: services.state(endless)[0] == "failed", within_s=10)
    story = services.command("instance", "show", endless)
    assert "TIMEOUT" in str(story)
    ((started_us, finished_us),) = services.rows(
        "select started_us, finished_us from instance where id = ?", endless
    )
    assert 1_900_000 <= int(str(finished_us)) - int(str(started_us)) <= 3_000_000
    (services.folder / "go").touch()
    services.until(lambda: services.state(neighbour) == ("success", 1))
    again = services.run("print(neighbour.submit().id)")
    services.until(lambda: services.state(again) == ("success", 1))


def test_a_clean_stop_of_the_scheduler_hands_over_at_once(services: Services) -> None:
    services.start_scheduler()
    services.start_worker()
    slow = services.run("print(slow.submit().id)")
    services.until(lambda: services.state(slow) == ("running", 1))
    services.kill("scheduler", signal.SIGTERM)
    services.start_scheduler()
    (services.folder / "go").touch()
    services.until(lambda: services.state(slow) == ("success", 1))
    assert services.witnessed(slow) == {1: ["start", "end"]}
