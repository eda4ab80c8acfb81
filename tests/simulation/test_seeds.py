"""Whole clusters under faults, seed by seed: nothing is violated, and a seed is one history."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.resources import files

import msgspec
import pytest

from ostinato.core.instants import HOUR, SECOND
from ostinato.simulation import run
from ostinato.simulation.history import Event, RowCommitted
from ostinato.simulation.run import RunReport, run_seed
from ostinato.simulation.swarm import SwarmOptions, long_options_of, options_of

#: At full size: OSTINATO_SIMULATION_SEEDS=10000.
SEED_COUNT = int(os.environ.get("OSTINATO_SIMULATION_SEEDS", "500"))
#: Seeds of one test.
CHUNK_COUNT = 25
#: Clusters that live longer, and how long each.
LONG_SEED_COUNT = max(2, SEED_COUNT // 100)
LONG_HOURS = 0.5
_DIGEST = (
    "from ostinato.simulation.run import run_seed; from ostinato.simulation.swarm import options_of; "
    "print(run_seed(options_of({seed})).digest)"
)


def _report(seed: int) -> RunReport:
    return run_seed(options_of(seed))


def _long_report(seed: int) -> RunReport:
    return run_seed(long_options_of(seed, LONG_HOURS))


def banked_seeds() -> list[SwarmOptions]:
    """Seeds that have found something once: a number, and those of a long run with their hours."""
    lines = files("ostinato.simulation").joinpath("seeds.txt").read_text().splitlines()
    banked: list[SwarmOptions] = []
    for said in (line.partition("#")[0].split() for line in lines):
        match said:
            case [seed]:
                banked.append(options_of(int(seed)))
            case [seed, "--hours", hours]:
                banked.append(long_options_of(int(seed), float(hours)))
            case _:
                assert said == [], "a seed, and perhaps --hours and how many"
    return banked


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1)) as executor:
        yield executor


@pytest.mark.parametrize("first", range(0, SEED_COUNT, CHUNK_COUNT))
def test_no_seed_violates_anything(pool: ProcessPoolExecutor, first: int) -> None:
    """Also: the runs are not idle, and faults come at least every 30 simulated seconds."""
    seeds = range(first, min(first + CHUNK_COUNT, SEED_COUNT))
    reports = list(pool.map(_report, seeds, chunksize=2))
    sentences = [sentence for report in reports for sentence in report.sentences()]
    assert sentences == []
    simulated_us = sum(report.simulated_us for report in reports)
    assert simulated_us / sum(report.fault_count for report in reports) <= 30 * SECOND
    assert sum(report.execution_count for report in reports) >= 5 * len(seeds)


def test_no_cluster_that_lives_longer_violates_anything(pool: ProcessPoolExecutor) -> None:
    """Also: the runs are not idle, and faults come at least every 30 simulated seconds."""
    reports = list(pool.map(_long_report, range(LONG_SEED_COUNT)))
    sentences = [sentence for report in reports for sentence in report.sentences()]
    assert sentences == []
    assert all(report.simulated_us >= LONG_HOURS * HOUR for report in reports)
    simulated_us = sum(report.simulated_us for report in reports)
    assert simulated_us / sum(report.fault_count for report in reports) <= 30 * SECOND
    assert sum(report.execution_count for report in reports) >= 30 * len(reports)


class _Deletions:
    """Counts rows of instances that are deleted."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, RowCommitted) and event.after is None:
            self.count += 1


def test_what_a_long_run_gives_back_of_its_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One history, whenever memory is given back, or never; and what has ended is deleted while it runs."""
    options = long_options_of(1, LONG_HOURS)
    deletions = _Deletions()
    digest = run_seed(options, listeners=[deletions]).digest
    monkeypatch.setattr(run, "TIDY_US", 5 * HOUR)
    assert run_seed(options).digest == digest
    assert deletions.count > 0


def test_a_longer_run_begins_as_the_shorter_one_of_its_seed() -> None:
    short, long = long_options_of(5, 1), long_options_of(5, 3)
    assert msgspec.structs.replace(long, safety_us=short.safety_us) == short


@pytest.mark.parametrize("options", banked_seeds(), ids=lambda options: str(options.seed))
def test_a_seed_that_found_something_once_finds_nothing_now(options: SwarmOptions) -> None:
    assert run_seed(options).sentences() == []


def test_one_seed_is_one_history_in_every_process() -> None:
    """Whatever the hashes of texts are there."""
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", _DIGEST.format(seed=3)]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        digests.add(ran.stdout)
    assert len(digests) == 1


def test_two_seeds_are_two_histories() -> None:
    assert _report(3).digest != _report(4).digest
