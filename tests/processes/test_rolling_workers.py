"""Workers are drained one after another while a trigger fires all the time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.services import Services

APP = """
for name in ("one", "two", "three", "four"):
    app.shell(name, "true", triggers=[every("100ms")], overlap="allow")
"""
#: Twenty drains, or fewer where time is short.
WORKERS, ROUNDS = 4, 5 if os.environ.get("OSTINATO_CASES_FULL") == "1" else 2
#: Far more than `true` takes, and less than the worker lease.
RUNNING_S_MAX = 4
OLDEST = "select min(assigned_us) from instance where state = 'running'"
#: What was handed back unstarted counts nothing.
COUNTED = """
    select count(*) from instance
    where coalesce(json_extract(counters, '$.failures'), 0) > 0
        or coalesce(json_extract(counters, '$.lost'), 0) > 0
"""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    started = Services(tmp_path, APP)
    yield started
    started.close()


def test_i9_nothing_hangs_running_when_workers_are_drained_while_a_trigger_fires(services: Services) -> None:
    services.start_scheduler()
    ended = "select count(*) from instance where state = 'success'"
    for turn in range(ROUNDS):
        names = [f"worker-{turn}-{number}" for number in range(WORKERS)]
        for name in names:
            services.start_worker(name, slots=2)
        connected = (
            f"select count(*) from worker where worker_name like 'worker-{turn}-%' and state = 'connected'"
        )
        services.until(lambda query=connected: services.rows(query) == [(WORKERS,)])
        ((before,),) = services.rows(ended)
        services.until(lambda seen=int(str(before)): int(str(services.rows(ended)[0][0])) > seen + 5)
        drained = [services.processes.pop(name) for name in names]
        for process in drained:
            process.send_signal(signal.SIGTERM)
        for process in drained:
            assert process.wait(30) == 0, services.logs()
        since_us = time.time_ns() // 1000

        def has_ended(since_us: int = since_us) -> bool:
            ((oldest_us,),) = services.rows(OLDEST)
            return oldest_us is None or int(str(oldest_us)) > since_us

        services.until(has_ended, within_s=RUNNING_S_MAX)
    assert services.rows(COUNTED) == [(0,)]
