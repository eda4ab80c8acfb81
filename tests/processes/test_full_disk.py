"""Real processes on a small disk that fills up under them: nothing is lost, nothing runs twice (C123)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest
from support.services import Services
from support.small_disk import SmallDisk, small_disk

APP = """
@app.task(timeout="5m")
def waits(context: Context, what: str) -> str:
    witness(context, "start")
    while not (HERE / what).exists():
        time.sleep(0.02)
    witness(context, "end")
    return "x" * 20_000


@app.task(triggers=[every("2s", misfire="fire_all")], overlap="allow")
async def tick(context: Context) -> None:
    witness(context, "start")
"""
#: Longer than the workers' lease, which is 6 s here.
FULL_SECONDS = 9.0
#: Of one processor, while the disk is full.
IDLE_SHARE_MAX = 0.2


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as mounted:
        yield mounted


@pytest.fixture
def services(tmp_path: Path, disk: SmallDisk) -> Iterator[Services]:
    database = disk.path / "services.db"
    # Where the outsider looks.
    (tmp_path / "services.db").symlink_to(database)
    started = Services(tmp_path, APP, environment={"OSTINATO_DATABASE": f"sqlite:///{database}"})
    yield started
    for name in ("now", "later"):
        (tmp_path / name).touch()
    started.close()


def _command(services: Services, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ostinato.cli", *arguments],
        cwd=services.folder,
        env=services.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def _asked(services: Services, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{services.health_port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def _says(services: Services, event: str) -> int:
    """How many lines of the scheduler's log are about an event."""
    lines = (services.folder / "scheduler.log").read_text().splitlines()
    return sum(f'"event":"{event}"' in line for line in lines)


def _ids(services: Services, *what: str) -> list[str]:
    calls = ", ".join(f"waits.submit({word!r}).id" for word in what)
    return services.run(f"print({calls})").split()


def test_c123_a_disk_that_fills_under_running_tasks_and_is_freed(services: Services, disk: SmallDisk) -> None:
    """Ends that fall into the full time count once afterwards; what runs goes on past the worker's lease."""
    services.start_scheduler()
    services.start_worker(slots=4)
    ended = _ids(services, "now", "now", "now")
    (lasting,) = _ids(services, "later")
    everyone = [*ended, lasting]
    services.until(lambda: all(services.witnessed(each) for each in everyone))
    services.until(lambda: all(services.state(each) == ("running", 1) for each in everyone))
    disk.fill()
    services.until(lambda: _asked(services, "/readyz")[0] == 503)
    scheduler = psutil.Process(services.processes["scheduler"].pid)
    before, began = scheduler.cpu_times(), time.monotonic()
    (services.folder / "now").touch()
    services.until(lambda: all(services.witnessed(each) == {1: ["start", "end"]} for each in ended))
    _assert_refused(services, "task", "trigger", "waits", "--payload", '{"what": "now"}')
    _assert_refused(services, "instance", "cancel", lasting)
    services.pass_time(FULL_SECONDS)
    after, took = scheduler.cpu_times(), time.monotonic() - began
    assert (after.user + after.system - before.user - before.system) / took < IDLE_SHARE_MAX
    assert all(services.state(each) == ("running", 1) for each in everyone)
    state = json.loads(_asked(services, "/readyz")[1])
    assert (state["ready"], state["running"], state["workers"]) == (False, 4, 1)
    assert "the disk is full" in state["database"]
    assert "ostinato_database_full 1.0" in _asked(services, "/metrics")[1]
    assert (_says(services, "database_full"), _says(services, "database_writable")) == (1, 0)
    assert _says(services, "loop_failed") == 0

    disk.free()
    freed = time.monotonic()
    services.until(lambda: all(services.state(each) == ("success", 1) for each in ended))
    services.until(lambda: _asked(services, "/readyz")[0] == 200)
    assert time.monotonic() - freed < 8
    assert "ostinato_database_full 0.0" in _asked(services, "/metrics")[1]
    (late,) = _ids(services, "now")
    services.until(lambda: services.state(late) == ("success", 1))
    assert services.state(lasting) == ("running", 1)
    (services.folder / "later").touch()
    services.until(lambda: services.state(lasting) == ("success", 1))
    for each in (*everyone, late):
        assert services.witnessed(each) == {1: ["start", "end"]}
        assert services.rows("select count(*) from history where instance_id = ?", each) == [(0,)]
    assert services.rows("select count(*) from instance where task = 'waits'") == [(5,)]
    assert (_says(services, "database_full"), _says(services, "database_writable")) == (1, 1)
    _assert_every_fire_ran_once(services)


def _assert_refused(services: Services, *arguments: str) -> None:
    refused = _command(services, *arguments)
    assert refused.returncode == 3, refused
    assert "DATABASE_FULL: OSTINATO_DATABASE: the disk is full" in refused.stderr
    assert "free space on the disk of the database" in refused.stderr


def _assert_every_fire_ran_once(services: Services) -> None:
    query = "select fire_us from instance where task = 'tick' order by fire_us"
    fires = [int(str(fire_us)) for (fire_us,) in services.rows(query)]
    assert fires == list(range(fires[0], fires[-1] + 1, 2_000_000))
    services.until(
        lambda: not services.rows("select 1 from instance where task = 'tick' and state <> 'success'")
    )
    for (identity,) in services.rows("select id from instance where task = 'tick'"):
        assert services.witnessed(str(identity)) == {1: ["start"]}


def test_c123_a_scheduler_that_starts_on_a_full_disk_says_so_and_starts_when_there_is_room(
    services: Services, disk: SmallDisk
) -> None:
    """Before there is a database, and with one."""
    for round_number in range(2):
        disk.fill()
        port = f"127.0.0.1:{services.workers_port}"
        refused = _command(services, "scheduler", "--worker-bind", port, "--bind", "127.0.0.1:0")
        assert refused.returncode == 3, refused
        assert "DATABASE_FULL: OSTINATO_DATABASE: the disk is full" in refused.stderr
        assert "Traceback" not in refused.stderr
        disk.free()
        services.start_scheduler()
        if round_number == 0:
            services.start_worker()
        (identity,) = _ids(services, "now")
        (services.folder / "now").touch()
        services.until(lambda each=identity: services.state(each) == ("success", 1))
        services.kill("scheduler")
