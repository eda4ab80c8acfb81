"""C091: a database server is away when results are to be stored; they are in the spool, and stored once.

``OSTINATO_CASES_FULL=1`` has 200 runs end, and the server away for 10 minutes.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.matrix import FULL, WORKER_LEASE_S
from support.private_databases import with_schema
from support.private_servers import PrivateMariadb, PrivatePostgres, PrivateServer
from support.spools import spooled
from support.stage import Load, Stage
from support.witness import boot_ns

#: Longer than any lease.
AWAY_S = 600.0 if FULL else WORKER_LEASE_S + 3
LOAD = (
    Load({"hold": 160, "block": 30, "command": 5, "escaping": 5})
    if FULL
    else Load({"hold": 20, "block": 6, "command": 2, "escaping": 2})
)


@pytest.fixture(params=[PrivatePostgres, PrivateMariadb])
def server(request: pytest.FixtureRequest) -> Iterator[PrivateServer]:
    with request.param() as server:
        yield server


@pytest.fixture
def stage(tmp_path: Path, server: PrivateServer) -> Iterator[Stage]:
    database = with_schema(server, "jobs")
    stage = Stage(tmp_path / "stage", slots=LOAD.slots, database=database.url)
    yield stage
    stage.close()


@pytest.mark.parametrize("number", [None, signal.SIGKILL], ids=["worker-stays", "worker-killed"])
def test_c091_results_of_runs_that_end_while_the_database_is_away_are_stored_once_and_nothing_runs_again(
    stage: Stage, server: PrivateServer, number: signal.Signals | None
) -> None:
    stage.open("a")
    round = stage.begin(LOAD)
    server.kill()
    away_ns = boot_ns()
    round.open_gate()
    stage.services.until(lambda: spooled(stage.services.folder, "a") == set(round.gated), within_s=4)
    if number is not None:
        stage.services.kill("a", number)
        stage.start_worker("a")
    round.go_on(AWAY_S, since_ns=away_ns)
    server.start()
    back_ns = boot_ns()
    round.judge()
    round.expect_attempts([])
    # A worker repeats what nobody acknowledges, and that is all that may be on record.
    assert {event.kind for event in round.witness.events(round.gated)} <= {"late_result"}
    assert boot_ns() - back_ns < 30e9
