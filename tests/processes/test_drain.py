"""SIGTERM to a worker: what can end in time ends, the rest is handed back before SIGKILL comes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.pid_namespace import first_of, kill_first, require_namespaces, start_first
from support.services import Services

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"
#: As a platform has it: SIGKILL 30 s after SIGTERM, a drain limit of 25 s, tasks of 5, 20 and 60 s.
SCALE = 1.0 if FULL else 0.2
PATIENCE_S, DRAIN_S = 30 * SCALE, 25 * SCALE
SHORT_S, MIDDLE_S, LONG_S = 5 * SCALE, 20 * SCALE, 60 * SCALE

APP = f"""
def lasts(context, seconds):
    witness(context, "start")
    time.sleep(seconds)
    witness(context, "end")


@app.task(overlap="allow")
def function(context: Context, seconds: float) -> None:
    lasts(context, seconds)


@app.task(overlap="allow")
async def coroutine(context: Context, seconds: float) -> None:
    import asyncio

    witness(context, "start")
    await asyncio.sleep(seconds)
    witness(context, "end")


for seconds in ({SHORT_S}, {MIDDLE_S}, {LONG_S}):
    # The child does the work, in a session of its own, and is asked for by its shell.
    app.shell(
        f"command-{{seconds:g}}",
        f"setsid sh -c 'echo start >> $FILE; sleep {{seconds}}2004; echo end >> $FILE' & wait".replace(
            "$FILE", "$WITNESS/$OSTINATO_INSTANCE_ID-$OSTINATO_ATTEMPT"
        ),
        env={{"WITNESS": str(HERE / "witness")}},
    )
"""
#: Part of the command line of everything that the commands leave running.
TAG = "2004"

#: Orphans that end while the worker runs.
ORPHANS = """
app.shell("orphans", "for n in 1 2 3 4 5; do (setsid env -i sh -c 'sleep 0.1' &) ; done; exit 0")
app.shell("lasting", "for n in 1 2 3 4 5; do (setsid env -i sh -c 'sleep 0.1' &) ; done; sleep 1000.77")
"""


#: What counts against an instance.
COUNTED = """
    select coalesce(json_extract(counters, '$.failures'), 0), coalesce(json_extract(counters, '$.lost'), 0)
    from instance where id = ?
"""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    started = Services(tmp_path, APP + ORPHANS)
    yield started
    # Where the worker is the first of its namespace, the process that we know outside passes no signal on.
    if _is_namespaced(started):
        kill_first(started.processes.pop("worker"))
    started.close()


def _is_namespaced(services: Services) -> bool:
    worker = services.processes.get("worker")
    return worker is not None and isinstance(worker.args, list) and worker.args[0] == "unshare"


def _worker_command(services: Services) -> list[str]:
    return [
        *(sys.executable, "-m", "ostinato.cli", "worker"),
        *("--scheduler", f"127.0.0.1:{services.workers_port}"),
        *("--app", "app:app", "--slots", "8", "--data-dir", str(services.folder / "worker")),
        *("--worker-name", "worker", "--drain-timeout", f"{DRAIN_S * 1000:.0f}ms"),
    ]


def _start_worker(services: Services, *, first: bool) -> psutil.Process:
    """The worker, as a plain process or as the first of a PID namespace."""
    if not first:
        services.start_worker(slots=8, options=["--drain-timeout", f"{DRAIN_S * 1000:.0f}ms"])
        return psutil.Process(services.processes["worker"].pid)
    parent = start_first(
        _worker_command(services),
        folder=services.folder,
        environment=services.environment,
        log=services.folder / "worker.log",
    )
    services.processes["worker"] = parent
    return services.until(lambda: first_of(parent))


def _alive(tag: str) -> list[str]:
    return [
        " ".join(process.info["cmdline"])
        for process in psutil.process_iter(["cmdline", "status"])
        if tag in " ".join(process.info["cmdline"] or ()) and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.parametrize("first", [False, True], ids=["plain", "first-of-its-namespace"])
def test_c133_what_ends_in_time_ends_and_the_rest_is_handed_back_before_the_kill(
    services: Services, first: bool
) -> None:
    """Tasks of 5 and 20 s end, those of 60 s are handed back by 25 s; the worker exits 0 before 30 s."""
    if first:
        require_namespaces()
    services.start_scheduler()
    worker = _start_worker(services, first=first)
    ids = {
        seconds: services.run(
            f"print(function.submit({seconds}).id, coroutine.submit({seconds}).id, "
            f"app.submit('command-{seconds:g}').id)"
        ).split()
        for seconds in (LONG_S, MIDDLE_S, SHORT_S)
    }
    everything = [identity for group in ids.values() for identity in group]
    services.until(lambda: all(services.witnessed(identity) for identity in everything))
    asked = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    status = services.processes.pop("worker").wait(PATIENCE_S)
    lasted_s = time.monotonic() - asked
    assert status == 0
    assert lasted_s < PATIENCE_S
    assert _alive(TAG) == []
    for identity in ids[SHORT_S] + ids[MIDDLE_S]:
        assert services.state(identity) == ("success", 1)
        assert services.witnessed(identity) == {1: ["start", "end"]}
    for identity in ids[LONG_S]:
        assert services.state(identity)[0] in ("pending", "retry_waiting")
        assert services.witnessed(identity) == {1: ["start"]}
        kinds = services.rows("select kind from history where instance_id = ?", identity)
        assert kinds == [("handed_back",)]
        counted = services.rows(COUNTED, identity)
        assert counted == [(0, 0)]


@pytest.mark.parametrize("first", [False, True], ids=["plain", "first-of-its-namespace"])
def test_c133_orphans_that_end_while_the_worker_runs_are_no_zombies(services: Services, first: bool) -> None:
    """Nobody else reaps them where the worker is process 1 and there is no init."""
    if first:
        require_namespaces()
    services.start_scheduler()
    worker = _start_worker(services, first=first)
    lasting = services.run("print(app.submit('lasting').id)")
    services.until(lambda: _alive("1000.77"))
    for _ in range(3):
        identity = services.run("print(app.submit('orphans').id)")
        services.until(lambda identity=identity: services.state(identity) == ("success", 1))
    services.until(lambda: not _zombies(worker), within_s=5)
    assert services.state(lasting)[0] == "running"
    services.run(f"app.handle({lasting!r}).cancel()")
    services.until(lambda: services.state(lasting)[0] == "cancelled")
    services.until(lambda: not _zombies(worker), within_s=5)
    assert _alive("1000.77") == []


def _zombies(worker: psutil.Process) -> list[str]:
    found = []
    for child in worker.children(recursive=True):
        try:
            if child.status() == psutil.STATUS_ZOMBIE:
                found.append(f"{child.pid} {child.name()}")
        except psutil.NoSuchProcess:
            continue  # reaped while we looked
    return found
