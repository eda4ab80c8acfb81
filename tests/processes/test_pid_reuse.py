"""A worker where process ids are used again within moments: it kills what it means to, and nobody else."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from support.pid_namespace import kill_first, require_own_pid_limit, start_first
from support.services import Services

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"
COMMAND_COUNT = 400 if FULL else 80

APP = """
FAST = {"retry": Retry.none(), "overlap": "allow", "env": {"PIDS": str(HERE / "pids")}}
NOTE = "echo $$ >> $PIDS; "

# Ended by its time-out; about to end by itself when its time-out comes; long ended by then.
app.shell("stuck", NOTE + "sleep 100 & sleep 100", timeout="100ms", grace="50ms", **FAST)
app.shell("close", NOTE + "sleep 0.1", timeout="100ms", grace="50ms", **FAST)
app.shell("quick", NOTE + "true", timeout="100ms", grace="50ms", **FAST)


@app.task(timeout="100ms", retry=Retry.none(), overlap="allow")
def stuck_function() -> None:
    with (HERE / "pids").open("a") as note:
        print(os.getpid(), file=note)
    time.sleep(100)
"""

#: Process 1: the worker beside it, and witnesses of the same user that come and go all the time.
FIRST = """
import json, os, pathlib, signal, subprocess, sys

here = pathlib.Path.cwd()
pathlib.Path("/proc/sys/kernel/pid_max").write_text("400")
worker = subprocess.Popen(sys.argv[1:])
worker_status = None
running, used, hit = set(), set(), []


def wait_for_one():
    global worker_status
    pid, status = os.waitpid(-1, 0)
    if pid == worker.pid:
        worker_status = os.waitstatus_to_exitcode(status)
    elif pid in running:
        running.discard(pid)
        if status:
            hit.append([pid, os.waitstatus_to_exitcode(status)])


while worker_status is None:
    if (here / "stop").exists():
        worker.send_signal(signal.SIGTERM)
        (here / "stop").unlink()
    while len(running) < 60:
        try:
            pid = os.posix_spawn("/bin/sleep", ["sleep", "0.05"], {})
        except BlockingIOError:
            break  # every id is in use
        running.add(pid)
        used.add(pid)
    wait_for_one()
(here / "report.json").write_text(json.dumps({"hit": hit, "used": sorted(used), "worker": worker_status}))
"""


def test_c135_a_witness_that_gets_the_id_of_an_ended_process_is_never_hit(tmp_path: Path) -> None:
    require_own_pid_limit()
    services = Services(tmp_path, APP)
    try:
        services.start_scheduler()
        worker = [sys.executable, "-m", "ostinato.cli", "worker"]
        worker += ["--scheduler", f"127.0.0.1:{services.workers_port}", "--app", "app:app"]
        worker += ["--slots", "3", "--data-dir", str(tmp_path / "worker")]
        services.processes["worker"] = start_first(
            [sys.executable, "-c", FIRST, *worker],
            folder=tmp_path,
            environment=services.environment,
            log=tmp_path / "worker.log",
        )
        kinds = "('stuck', 'close', 'quick', 'stuck')"
        services.run(
            f"for number in range({COMMAND_COUNT}): app.submit({kinds}[number % 4])\n"
            f"for number in range({COMMAND_COUNT // 8}): app.submit('stuck_function')"
        )
        left = "select count(*) from instance where state not in ('success', 'failed')"
        services.until(lambda: services.rows(left) == [(0,)], within_s=240)
        (tmp_path / "stop").touch()
        services.processes.pop("worker").wait(60)
        report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    finally:
        if "worker" in services.processes:
            kill_first(services.processes.pop("worker"))
        services.close()
    assert report["hit"] == []
    assert report["worker"] == 0
    # It was put to the test: many witnesses had the id of a process that the worker has watched or ended.
    watched = {int(line) for line in (tmp_path / "pids").read_text().split()}
    assert len(watched & set(report["used"])) > 20
    codes = {
        code for (code,) in services.rows("select distinct json_extract(failure, '$.code') from instance")
    }
    assert codes == {None, "TIMEOUT"}
