"""The scheduler is away when tasks end, and their worker is restarted: no result is lost or counted twice."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.services import Services

from ostinato.worker.spool_file import read_spool

#: `make cases-full` asks for the sizes of the catalogue.
FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"
COUNT = 500 if FULL else 30
AWAY_SECONDS = 600.0 if FULL else 0.0

APP = """
async def until_go():
    while not (HERE / "go").exists():
        await asyncio.sleep(0.02)


@app.task(timeout="1h", retry=Retry.none())
async def ends(context: Context, number: int) -> int:
    witness(context, "start")
    await until_go()
    witness(context, "end")
    return number


@app.task(timeout="1h")
async def lasts(context: Context) -> None:
    witness(context, "start")
    while True:
        await asyncio.sleep(600)
"""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    started = Services(tmp_path, f"import asyncio\n{APP}")
    yield started
    started.close()


def _start(services: Services) -> None:
    # Less than the lease of 6 s, so that a drain ends before the lease does.
    services.start_worker(options=["--async-slots", str(COUNT + 10), "--drain-timeout", "3s"])


def _spooled(services: Services) -> set[str]:
    """Instances whose outcome is on the disk, as after a power cut: read from a copy of the files."""
    copy = services.folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(services.folder / "worker" / "spool", copy)
    return {item.instance_id for path in copy.glob("*.db") for item in read_spool(path).outcomes}


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_c091_results_that_end_while_the_scheduler_is_away_survive_a_restart_of_their_worker(
    services: Services, end: signal.Signals
) -> None:
    services.start_scheduler()
    _start(services)
    made = services.run(
        f"print(*[each.id for each in app.submit_many(ends, [{{'number': n}} for n in range({COUNT})])])"
    )
    ids = made.split()
    services.until(lambda: all(services.witnessed(each) == {1: ["start"]} for each in ids))
    services.kill("scheduler")
    (services.folder / "go").touch()
    services.until(lambda: _spooled(services) == set(ids))
    began = time.monotonic()
    services.kill("worker", end)
    assert time.monotonic() - began < 8
    _start(services)
    services.until(lambda: '"spool_taken_over"' in services.logs())
    services.pass_time(AWAY_SECONDS)

    services.start_scheduler()
    services.until(lambda: all(services.state(each)[0] == "success" for each in ids), within_s=120)
    assert [services.state(each) for each in ids] == [("success", 1)] * COUNT
    assert all(services.witnessed(each) == {1: ["start", "end"]} for each in ids)
    results = services.rows("select result from instance order by id")
    assert sorted(
        int(bytes(result)) if isinstance(result, bytes) else int(str(result)) for (result,) in results
    ) == list(range(COUNT))
    assert services.rows("select kind, sentence from history where kind != 'adopted'") == []
    services.until(lambda: _spooled(services) == set())


def test_a_worker_that_drains_while_the_scheduler_is_away_ends_in_time_and_leaves_what_it_hands_back(
    services: Services,
) -> None:
    services.start_scheduler()
    _start(services)
    ended = services.run("print(ends.submit(number=1).id)")
    lasting = services.run("print(lasts.submit().id)")
    services.until(lambda: services.witnessed(ended) and services.witnessed(lasting))
    services.kill("scheduler")
    (services.folder / "go").touch()
    began = time.monotonic()
    services.kill("worker", signal.SIGTERM)
    assert time.monotonic() - began < 8
    outcomes = {
        item.instance_id: item
        for path in (services.folder / "worker" / "spool").glob("*.db")
        for item in read_spool(path).outcomes
    }
    assert outcomes[ended].result == b"1"
    handed_back = outcomes[lasting].failure
    assert handed_back is not None
    assert handed_back.code == "HANDED_BACK"
    # Its processes are gone, so their scratch directories are too.
    assert list((services.folder / "worker").glob("workers/*/attempts/*")) == []
