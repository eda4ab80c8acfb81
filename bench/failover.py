"""How long a kill -9 of the owner stops its tasks: from the kill to the next start of one of them, 20 trials.

Run ``python bench/failover.py --private postgres|mariadb [--trials 20] [--no-lock]``, or with ``--database
URL``. Three nodes and one worker; a task whose partition a node owns is submitted every 20 ms; the owner
is killed, and the first execution of what was submitted after the kill is waited for. ``--no-lock`` leaves
the session lock out, as behind a proxy that pools transactions. A long attempt runs meanwhile and must be
adopted, not restarted.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from chaos.databases import Outsider, private_server, upgrade
from chaos.processes import Node, Worker, environment_of
from chaos.verdict import read_executions

_HERE = Path(__file__).parent
_LIMIT_S = 30.0
_SETTLE_S = 60.0
_EVERY_S = 0.02
_TASK = "quick-0"


class Trial(NamedTuple):
    """One kill."""

    gap_ms: float
    long_attempts: int


class Stage(NamedTuple):
    nodes: list[Node]
    worker: Worker
    outsider: Outsider
    folder: Path


def owner_of_task(stage: Stage) -> Node:
    """The node that owns the task's partition, once every partition has an owner that lives."""
    end = time.monotonic() + _SETTLE_S
    while time.monotonic() < end:
        rows = stage.outsider.query(
            "select node.address from task join partition_owner on partition_owner.partition = task.partition"
            f" join node on node.id = partition_owner.owner where task.name = '{_TASK}'"
        )
        (settled,) = stage.outsider.query(
            "select count(distinct owner), min(length(owner)) from partition_owner"
        )
        if rows and settled[0] == len(stage.nodes) and settled[1] > 0:
            return next(node for node in stage.nodes if node.address == rows[0][0])
        time.sleep(0.1)
    raise SystemExit("the partitions are not shared among the nodes")


def submit_for(stage: Stage, *, first: int, seconds: float) -> subprocess.Popen[bytes]:
    code = (
        "import time\nfrom ostinato import App\n"
        f"app = App('soak'); end = time.monotonic() + {seconds}; number = {first}\n"
        f"app.submit('long-0', {{'number': {first - 1}}})\n"
        "while time.monotonic() < end:\n"
        f"    app.submit('{_TASK}', {{'number': number}}); number += 1; time.sleep({_EVERY_S})\n"
        "app.close()\n"
    )
    return subprocess.Popen([sys.executable, "-c", code], env=stage.worker.environment)


def boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def starts_after(stage: Stage, at_ns: int, *, first: int) -> list[int]:
    """When executions began after `at_ns`, on the clock of the machine."""
    executions = read_executions(stage.folder / "witness")
    return sorted(
        execution.began_ns
        for number, ran in executions.items()
        if number >= first
        for execution in ran
        if execution.began_ns > at_ns
    )


def one_trial(stage: Stage, number: int) -> Trial:
    first = number * 1_000_000 + 1
    owner = owner_of_task(stage)
    submitting = submit_for(stage, first=first, seconds=6)
    end = time.monotonic() + _LIMIT_S
    while len(starts_after(stage, 0, first=first)) < 20:
        if time.monotonic() > end:
            raise SystemExit("nothing runs before the kill")
        time.sleep(0.05)
    killed_ns = boot_ns()
    owner.kill()
    # What had been sent before the kill may still start; a worker has at most that much under way.
    sent_ns = killed_ns + 20_000_000
    while not (later := starts_after(stage, sent_ns, first=first)):
        if time.monotonic() > end:
            raise SystemExit(f"nothing has run for {_LIMIT_S:g} s after the kill")
        time.sleep(0.02)
    submitting.wait()
    owner.start()
    owner.wait_until_ready()
    executions = read_executions(stage.folder / "witness")
    while not any(execution.has_ended for execution in executions.get(first - 1, [])):
        if time.monotonic() > end:
            raise SystemExit("the long attempt has not ended")
        time.sleep(0.1)
        executions = read_executions(stage.folder / "witness")
    return Trial((later[0] - killed_ns) / 1e6, len(executions[first - 1]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--database")
    target.add_argument("--private", choices=("postgres", "mariadb"))
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--no-lock", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        database = options.database or stack.enter_context(private_server(options.private)).url
        upgrade(database)
        if options.no_lock:
            database += "?session_lock=off"
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "witness").mkdir()
        environment = environment_of(folder, database, worker_lease="6s")
        environment |= {"SOAK_WITNESS": str(folder / "witness"), "PYTHONPATH": str(_HERE / "chaos")}
        nodes = [Node(number, folder=folder, environment=environment) for number in range(3)]
        worker = Worker(
            0, nodes, app="witness_app:app", slots=1, async_slots=100, folder=folder, environment=environment
        )
        stage = Stage(nodes, worker, stack.enter_context(Outsider(database.partition("?")[0])), folder)
        try:
            for node in nodes:
                node.start()
                node.wait_until_ready()
            worker.start()
            stage.outsider.wait_for_tasks()
            trials: list[Trial] = []
            for number in range(options.trials):
                trials.append(one_trial(stage, number))
                print(f"{trials[-1].gap_ms:.0f} ms, long attempts: {trials[-1].long_attempts}", flush=True)
        finally:
            for member in (worker, *nodes):
                member.stop()
    gaps = sorted(trial.gap_ms for trial in trials)
    p95 = gaps[max(0, round(len(gaps) * 0.95) - 1)]
    restarted = sum(trial.long_attempts != 1 for trial in trials)
    print(
        f"kill -9 of the owner → next start of its task, {len(gaps)} trials, ms: least {gaps[0]:.0f}, "
        f"median {statistics.median(gaps):.0f}, p95 {p95:.0f}, most {gaps[-1]:.0f}; "
        f"running attempts restarted instead of adopted: {restarted}"
    )


if __name__ == "__main__":
    main()
