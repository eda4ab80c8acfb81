"""Tasks end while there is no scheduler: all results arrive once it is back, whatever the worker met with."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.matrix import FULL
from support.stage import Load, Stage
from support.witness import boot_ns

from ostinato.worker.spool_file import read_spool

#: How long there is no scheduler.
AWAY_S = 60.0 if FULL else 6.0
LOAD = (
    Load({"hold": 160, "block": 30, "command": 5, "escaping": 5})
    if FULL
    else Load({"hold": 20, "block": 6, "command": 2, "escaping": 2})
)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path / "stage", slots=LOAD.slots)
    yield stage
    stage.close()


@pytest.mark.parametrize(
    "number", [None, signal.SIGTERM, signal.SIGKILL], ids=["worker-stays", "worker-drained", "worker-killed"]
)
def test_results_of_tasks_that_end_while_the_scheduler_is_away_arrive_once_when_it_is_back(
    stage: Stage, number: signal.Signals | None
) -> None:
    """They are in the worker's spool before it is restarted, so that there is no reason to do them again."""
    stage.open("a")
    round = stage.begin(LOAD)
    stage.services.kill("scheduler")
    away_ns = boot_ns()
    round.open_gate()
    stage.services.until(lambda: _spooled(stage) == set(round.gated), within_s=3)
    if number is not None:
        stage.services.kill("a", number)
        stage.start_worker("a")
    round.go_on(AWAY_S, since_ns=away_ns)
    stage.services.start_scheduler()
    back_ns = boot_ns()
    round.judge()
    round.expect_attempts([])
    assert round.witness.events(round.gated) == []
    assert boot_ns() - back_ns < 10e9


def _spooled(stage: Stage) -> set[str]:
    """Instances whose outcomes worker a has on its disk, read from a copy: its own file is locked."""
    copy = stage.services.folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    # The file before its log: what moves from the log to the file meanwhile stays in both.
    shutil.copytree(stage.services.folder / "a" / "spool", copy)
    for path in (stage.services.folder / "a" / "spool").glob("*.db-wal"):
        shutil.copy(path, copy)
    return {outcome.instance_id for path in copy.glob("*.db") for outcome in read_spool(path).outcomes}
