"""Tasks end while there is no scheduler: all results arrive once it is back, whatever the worker met with."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.matrix import FULL
from support.spools import spooled
from support.stage import Load, Stage
from support.witness import boot_ns

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
    stage.services.until(lambda: spooled(stage.services.folder, "a") == set(round.gated), within_s=3)
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
