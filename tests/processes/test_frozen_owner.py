"""An owner that is stopped for longer than its lease: another takes over, and it writes nothing late."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.servers import SERVER_KINDS, ServerKind, fresh_database

_BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(_BENCH))

from chaos.databases import Outsider  # noqa: E402 - found on the path above
from chaos.processes import Node, Worker, environment_of  # noqa: E402 - found on the path above
from chaos.verdict import Execution, read_executions  # noqa: E402 - found on the path above

_FROZEN_S = 10.0 if os.environ.get("OSTINATO_CASES_FULL") else 5.0
_TASK = "quick-0"


class Stage:
    """Two nodes and a worker over one server."""

    def __init__(self, database: str, folder: Path) -> None:
        (folder / "witness").mkdir()
        environment = environment_of(folder, database, worker_lease="6s")
        environment |= {"SOAK_WITNESS": str(folder / "witness"), "PYTHONPATH": str(_BENCH / "chaos")}
        self.folder = folder
        self.nodes = [Node(number, folder=folder, environment=environment) for number in range(2)]
        self.worker = Worker(
            0,
            self.nodes,
            app="witness_app:app",
            slots=1,
            async_slots=50,
            folder=folder,
            environment=environment,
        )
        self.outsider = Outsider(database)

    def start(self) -> None:
        for node in self.nodes:
            node.start()
            node.wait_until_ready()
        self.worker.start()
        self.outsider.wait_for_tasks()
        self.until(lambda: len(self.outsider.query("select distinct owner from partition_owner")) == 2)

    def stop(self) -> None:
        for member in (self.worker, *self.nodes):
            if member.is_running:
                member.signal(signal.SIGCONT)
            member.stop()
        with self.outsider:
            pass

    def owner(self) -> Node:
        """Who owns the partition of the task."""
        rows = self.outsider.query(
            "select node.address from task join partition_owner on partition_owner.partition = task.partition"
            f" join node on node.id = partition_owner.owner where task.name = '{_TASK}'"
        )
        return next(node for node in self.nodes if rows and node.address == rows[0][0])

    def submit(self, *, seconds: float) -> subprocess.Popen[bytes]:
        code = (
            "import time\nfrom ostinato import App\n"
            f"app = App('soak'); end = time.monotonic() + {seconds}; number = 1\n"
            "while time.monotonic() < end:\n"
            f"    app.submit('{_TASK}', {{'number': number}}, key=str(number))\n"
            "    number += 1; time.sleep(0.01)\n"
            "app.close()\n"
        )
        return subprocess.Popen([sys.executable, "-c", code], env=self.worker.environment)

    def executions(self) -> dict[int, list[Execution]]:
        return read_executions(self.folder / "witness")

    def until(self, look: Callable[[], object], *, limit_s: float = 60) -> None:
        end = time.monotonic() + limit_s
        while not look():
            assert time.monotonic() < end, "it has not come to that"
            time.sleep(0.05)


@pytest.fixture(params=SERVER_KINDS)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    kind: ServerKind = request.param
    with fresh_database(kind) as database:
        made = Stage(database.url, tmp_path)
        try:
            made.start()
            yield made
        finally:
            made.stop()


def test_i1_i5_a_frozen_owner_is_taken_over_and_writes_and_sends_nothing_when_it_wakes(stage: Stage) -> None:
    submitting = stage.submit(seconds=_FROZEN_S + 6)
    stage.until(lambda: len(stage.executions()) >= 20)
    frozen = stage.owner()
    frozen.signal(signal.SIGSTOP)
    frozen_at = time.monotonic()
    stage.until(lambda: stage.owner() is not frozen)
    ran_before = len(stage.executions())
    stage.until(lambda: len(stage.executions()) >= ran_before + 20)
    stage.until(lambda: time.monotonic() - frozen_at >= _FROZEN_S)
    frozen.signal(signal.SIGCONT)
    assert submitting.wait(60) == 0
    stage.until(lambda: not stage.outsider.live_count())
    rows = stage.outsider.rows()
    executions = stage.executions()
    assert {row.state for row in rows.values()} == {"success"}
    assert set(executions) == set(rows)
    overlaps = [
        number
        for number, ran in executions.items()
        for earlier, later in pairwise(ran)
        if later.began_ns < earlier.last_ns
    ]
    assert overlaps == []
    # It knows what has become of it, and is a node again, under another name.
    stage.until(lambda: '"event":"node_rejoined"' in frozen.log())
    stage.until(lambda: len(stage.outsider.query("select distinct owner from partition_owner")) == 2)
    assert '"event":"partitions_lost"' in frozen.log()
