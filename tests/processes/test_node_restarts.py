"""The scheduler is killed and started again at once, under the same address, time after time.

``OSTINATO_CASES_FULL=1`` runs 50 rounds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.services import Services

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"
ROUND_COUNT = 50 if FULL else 5

APP = """
@app.task(timeout="1h")
async def lasting(context: Context) -> str:
    witness(context, "start")
    while not (HERE / "go").exists():
        await asyncio.sleep(0.05)
    witness(context, "end")
    return "done"


@app.task(timeout="1h")
async def brief(context: Context, what: str) -> str:
    witness(context, "start")
    while not (HERE / what).exists():
        await asyncio.sleep(0.02)
    witness(context, "end")
    return "done"


@app.task(triggers=[every("1s", misfire="fire_all")], overlap="allow")
async def tick(context: Context) -> None:
    witness(context, "start")
"""
#: Around the instant of a fire: the kill falls before, into and after what the fire sets going.
KILL_OFFSETS_US = (-5_000, 0, 1_000, 3_000, 8_000)


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    started = Services(tmp_path, "import asyncio\n" + APP, environment={"OSTINATO_WORKER_LEASE": "60s"})
    yield started
    for name in ("go", *(f"round-{number}" for number in range(ROUND_COUNT))):
        (tmp_path / name).touch()
    started.close()


def _epochs(services: Services) -> set[int]:
    return {int(str(epoch)) for (epoch,) in services.rows("select distinct epoch from partition_owner")}


def _kill_at(services: Services, instant_us: int) -> None:
    """Kill -9 at an instant, to the millisecond: a poll would be too coarse."""
    while time.time_ns() // 1000 < instant_us:
        os.sched_yield()
    services.kill("scheduler")


def _next_fire_us(services: Services) -> int:
    ((next_us,),) = services.rows("select next_us from task_trigger where task = 'tick'")
    return int(str(next_us))


def test_c097_a_node_killed_and_back_within_a_second_adopts_what_runs_every_time(services: Services) -> None:
    """C087, C097, C111: the epoch rises, attempts go on as they are, a fire due at the kill runs once."""
    services.start_scheduler()
    services.start_worker()
    lasting = services.run("print(*[lasting.submit().id for _ in range(5)])").split()
    services.until(lambda: all(services.witnessed(each) for each in lasting))
    briefs: list[str] = []
    for number in range(ROUND_COUNT):
        # One that ends while the node is away.
        (brief,) = services.run(f"print(brief.submit('round-{number}').id)").split()
        briefs.append(brief)
        services.until(lambda each=brief: services.state(each) == ("running", 1) and services.witnessed(each))
        before = _epochs(services)
        fire_us = _next_fire_us(services)
        _kill_at(services, fire_us + KILL_OFFSETS_US[number % len(KILL_OFFSETS_US)])
        (services.folder / f"round-{number}").touch()
        services.start_scheduler()
        services.until(lambda old=before: _epochs(services) == {epoch + 1 for epoch in old})
        services.until(lambda each=brief: services.state(each) == ("success", 1))
        assert all(services.state(each) == ("running", 1) for each in lasting)
        services.until(lambda us=fire_us: _fired(services, us) == ["success"])
    assert _epochs(services) == {ROUND_COUNT + 1}
    (services.folder / "go").touch()
    for each in (*lasting, *briefs):
        services.until(lambda each=each: services.state(each) == ("success", 1))
        assert services.witnessed(each) == {1: ["start", "end"]}
        assert services.rows("select count(*) from history where instance_id = ?", each) == [(0,)]
    _assert_every_fire_ran_once(services)


def _fired(services: Services, fire_us: int) -> list[str]:
    """States of the instances of one fire."""
    query = "select state from instance where task = 'tick' and fire_us = ?"
    return [str(state) for (state,) in services.rows(query, fire_us)]


def _assert_every_fire_ran_once(services: Services) -> None:
    def open_ones() -> list[tuple[object, ...]]:
        return services.rows("select 1 from instance where task = 'tick' and state <> 'success'")

    services.until(lambda: not open_ones())
    rows = services.rows("select fire_us, id from instance where task = 'tick' order by fire_us")
    fires = [int(str(fire_us)) for fire_us, _ in rows]
    assert fires == list(range(fires[0], fires[-1] + 1, 1_000_000))
    for _, identity in rows:
        # The number is another than 1 where the kill came between an assignment's commit and its sending.
        assert list(services.witnessed(str(identity)).values()) == [["start"]]


def test_c087_a_fire_missed_while_the_node_was_away_runs_once_and_its_lateness_is_told(
    services: Services,
) -> None:
    services.start_scheduler()
    services.start_worker()
    services.until(lambda: services.rows("select 1 from instance where task = 'tick' and state = 'success'"))
    missed_us = _next_fire_us(services) + 1_000_000
    _kill_at(services, missed_us - 200_000)
    services.until(lambda: time.time_ns() // 1000 > missed_us + 1_500_000)
    services.start_scheduler()
    services.until(lambda: _fired(services, missed_us) == ["success"])
    lines = (services.folder / "scheduler.log").read_text().splitlines()
    (line,) = [line for line in lines if '"event":"fired"' in line and f'"fire_us":{missed_us}' in line]
    lateness_us = int(line.split('"lateness_us":')[1].split(",")[0])
    assert lateness_us > 1_500_000
    _assert_every_fire_ran_once(services)


def test_c111_a_second_node_on_the_same_file_is_refused_with_the_holder_s_process_and_harms_nothing(
    services: Services,
) -> None:
    services.start_scheduler()
    services.start_worker()
    (brief,) = services.run("print(brief.submit('round-0').id)").split()
    services.until(lambda: services.state(brief) == ("running", 1))
    before = _epochs(services)
    second = subprocess.run(
        [
            *(sys.executable, "-m", "ostinato.cli", "scheduler"),
            *("--worker-bind", "127.0.0.1:0", "--bind", "127.0.0.1:0"),
        ],
        cwd=services.folder,
        env=services.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert second.returncode == 4, second
    assert "NODE_ALREADY_RUNNING" in second.stderr
    assert f"process {services.processes['scheduler'].pid}" in second.stderr
    assert _epochs(services) == before
    # A node that is frozen has its lock still: nobody takes over from it.
    services.processes["scheduler"].send_signal(signal.SIGSTOP)
    try:
        frozen = subprocess.run(
            [*second.args],
            cwd=services.folder,
            env=services.environment,
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert frozen.returncode == 4
    finally:
        services.processes["scheduler"].send_signal(signal.SIGCONT)
    (services.folder / "round-0").touch()
    services.until(lambda: services.state(brief) == ("success", 1))
    assert services.witnessed(brief) == {1: ["start", "end"]}
    assert _epochs(services) == before
