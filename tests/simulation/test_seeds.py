"""Whole clusters under faults, seed by seed: nothing is violated, and a seed is one history."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.resources import files

import pytest

from ostinato.core.instants import SECOND
from ostinato.simulation.run import RunReport, run_seed
from ostinato.simulation.swarm import options_of

#: At full size: OSTINATO_SIMULATION_SEEDS=10000.
SEED_COUNT = int(os.environ.get("OSTINATO_SIMULATION_SEEDS", "500"))
#: Seeds of one test.
CHUNK_COUNT = 25
_DIGEST = (
    "from ostinato.simulation.run import run_seed; from ostinato.simulation.swarm import options_of; "
    "print(run_seed(options_of({seed})).digest)"
)


def _report(seed: int) -> RunReport:
    return run_seed(options_of(seed))


def banked_seeds() -> list[int]:
    """Seeds that have found something once."""
    lines = files("ostinato.simulation").joinpath("seeds.txt").read_text().splitlines()
    said = [line.partition("#")[0].strip() for line in lines]
    return [int(seed) for seed in said if seed]


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


@pytest.mark.parametrize("seed", banked_seeds())
def test_a_seed_that_found_something_once_finds_nothing_now(seed: int) -> None:
    assert _report(seed).sentences() == []


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
