"""Nodes that reach PostgreSQL through PgBouncer, which pools transactions: the counter tells who lives."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.pooling_proxy import PrivatePgbouncer
from support.servers import fresh_database

_BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(_BENCH))

from chaos.databases import Outsider, upgrade  # noqa: E402 - found on the path above
from chaos.processes import Node, Worker, environment_of  # noqa: E402 - found on the path above
from chaos.verdict import read_executions  # noqa: E402 - found on the path above

#: Ownership lease and margin, a look and the take-over itself: what the ownership lease of 3 s allows in all.
_TAKE_OVER_S = 3.0 + 1.5
_SUBMISSIONS = """
import time
from ostinato import App

app = App("soak")
end, number = time.monotonic() + {seconds}, 1
while time.monotonic() < end:
    app.submit(f"quick-{{number % 16}}", {{"number": number}}, key=str(number))
    number += 1
app.close()
"""


class Stage:
    """Two nodes, a worker and those who submit behind the proxy; an outsider at the server itself."""

    def __init__(self, pooled: str, direct: str, folder: Path) -> None:
        (folder / "witness").mkdir()
        self.environment = environment_of(folder, pooled, worker_lease="6s")
        self.environment |= {
            "SOAK_WITNESS": str(folder / "witness"),
            "PYTHONPATH": str(_BENCH / "chaos"),
        }
        self.folder = folder
        self.nodes = [Node(number, folder=folder, environment=self.environment) for number in range(2)]
        self.worker = Worker(
            0,
            self.nodes,
            app="witness_app:app",
            slots=1,
            async_slots=50,
            folder=folder,
            environment=self.environment,
        )
        self.outsider = Outsider(direct)

    def start(self) -> None:
        for node in self.nodes:
            node.start()
            node.wait_until_ready()
        self.worker.start()
        self.outsider.wait_for_tasks()
        self.until(lambda: len(self.owners()) == 2)

    def stop(self) -> None:
        for member in (self.worker, *self.nodes):
            member.stop()
        with self.outsider:
            pass

    def owners(self) -> set[str]:
        """Addresses of those who own a partition; one that is gone has none."""
        return {
            address
            for (address,) in self.outsider.query(
                "select distinct coalesce(node.address, '') from partition_owner"
                " left join node on node.id = partition_owner.owner"
            )
        }

    def submit(self, *, seconds: float) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", _SUBMISSIONS.format(seconds=seconds)], env=self.environment
        )

    def until(self, look: Callable[[], object], *, limit_s: float = 60) -> None:
        end = time.monotonic() + limit_s
        while not look():
            assert time.monotonic() < end, "".join(node.log()[-3000:] for node in self.nodes)
            time.sleep(0.02)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with (
        fresh_database("postgresql", has_schema=False) as database,
        PrivatePgbouncer(database.server_url) as proxy,
    ):
        pooled = proxy.url_of(database.server_url.database)
        # Schema changes go the same way.
        upgrade(pooled)
        made = Stage(pooled, database.url, tmp_path)
        try:
            made.start()
            yield made
        finally:
            made.stop()


def test_a_node_that_dies_behind_a_proxy_is_taken_over_by_its_counter_and_nothing_is_lost(
    stage: Stage,
) -> None:
    assert (
        stage.outsider.query(
            "select 1 from pg_locks where locktype = 'advisory' and database ="
            " (select oid from pg_database where datname = current_database())"
        )
        == []
    )
    submitting = stage.submit(seconds=8)
    stage.until(lambda: len(read_executions(stage.folder / "witness")) >= 20)
    dead, heir = stage.nodes
    dead.kill()
    killed_at = time.monotonic()
    stage.until(lambda: stage.owners() == {heir.address}, limit_s=30)
    took_s = time.monotonic() - killed_at
    assert took_s <= _TAKE_OVER_S
    # No lock was seen to be free: it takes the time in which the counter could still have changed.
    assert took_s > 2
    assert submitting.wait(60) == 0
    stage.until(lambda: not stage.outsider.live_count())
    rows = stage.outsider.rows()
    assert len(rows) > 100
    assert {row.state for row in rows.values()} == {"success"}
    executions = read_executions(stage.folder / "witness")
    assert set(executions) == set(rows)
    assert "prepared statement" not in "".join(node.log() for node in stage.nodes)
