"""Resident memory of a scheduler beside many waiting instances, and of a worker's supervisor.

Run ``python bench/memory.py [--database postgres] [--count 1000000] [--runs 5]``. The scheduler is measured
with nothing to do, then with `count` instances waiting for a worker that does not come; the supervisor while
it works some of them off. Printed are medians in MB.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
from kit.draining import wait_until
from kit.rounds import Series, in_turn, reasons
from kit.servers import Servers
from kit.tables import MISSING, table
from peers.catalogue import OSTINATO, ostinato_on
from peers.interface import Load
from peers.ostinato_contender import Ostinato

_LOOKS = 20
_LOOK_S = 0.25
_MB = 1024**2


class Held(NamedTuple):
    """Resident memory of one run, in MB."""

    scheduler_idle: float
    scheduler_waiting: float
    supervisor: float


def run_once(kind: type[Ostinato], count: int, *, servers: Servers, limit_s: float) -> Held:
    """Raises ``RunError`` where there is no figure."""
    with (
        tempfile.TemporaryDirectory(prefix="ostinato-bench-") as folder,
        kind(servers=servers, folder=Path(folder), load=Load()) as running,
    ):
        scheduler = running.start_scheduler()
        idle = _resident_mb(scheduler.pid)
        running.submit(count)
        waiting = _resident_mb(scheduler.pid)
        supervisor = running.start_worker()
        wait_until(running, min(count, 1_000), limit_s=limit_s)
        return Held(idle, waiting, _resident_mb(supervisor.pid))


def _resident_mb(pid: int) -> float:
    """The most within a few seconds."""
    process = psutil.Process(pid)
    most = 0
    for _ in range(_LOOKS):
        most = max(most, process.memory_info().rss)
        time.sleep(_LOOK_S)
    return most / _MB


def _medians(series: Series[Held]) -> list[str]:
    if not series.values:
        return [MISSING] * len(Held._fields)
    return [f"{statistics.median(column):.0f}" for column in zip(*series.values, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", default="postgres", help=f"any of {','.join(OSTINATO)}")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--limit", type=float, default=300, help="seconds that working some off may take")
    options = parser.parse_args()
    kinds = [ostinato_on(database) for database in options.database.split(",")]
    with Servers() as servers:
        subjects = {
            kind.name: partial(run_once, kind, options.count, servers=servers, limit_s=options.limit)
            for kind in kinds
        }
        why_not = {kind.name: kind.why_not(servers, Load()) for kind in kinds}
        series = in_turn(subjects, runs=options.runs, why_not=why_not)
    rows = [[name, *_medians(each)] for name, each in series.items()]
    heads = ["contender", "scheduler, idle, MB", f"beside {options.count:,} waiting", "supervisor"]
    print("\n\n".join([table(heads, rows), "\n".join(reasons(series))]))


if __name__ == "__main__":
    main()
