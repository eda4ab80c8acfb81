"""Whether an instance costs the scheduler the same, however much there is beside it.

Run ``python bench/backlog.py [--database postgres] [--only waiting,finished,workers,partitions] [--runs 3]``.
Measured is the CPU time of the scheduler's process, user and system, for each instance that it takes from
`pending` to a committed success, while one thing at a time grows:

* ``waiting``: 1,000 → 5,000,000 waiting instances (``--waiting``), half of them due behind those that are
  measured, half due from tomorrow on
* ``finished``: 0 → 10,000,000 finished ones of the last days (``--finished``)
* ``workers``: one worker → 200 (``--workers``), each with as many slots (``--slots``); measured once each has
  found out how short its attempts are (``--warm-workers``)
* ``partitions``: 16 → 256 (``--partitions``), work in all of them

The workers are supervisors with a stream each that run nothing and answer at once. What is beside is made by
the database itself before the scheduler starts. Runs of the small and the large side alternate; printed are
medians, their ratio, and the scheduler's memory beside the waiting ones.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import NamedTuple

from kit.draining import LOOK_S, wait_until
from kit.filling import Rows, Target, task_name
from kit.registering import apply_all, not_in_force
from kit.rounds import RunError, Series, in_turn, reasons
from kit.servers import Servers
from kit.tables import MISSING, ratio, table
from peers.answered_ostinato import AnsweredOstinato, Taken, new_database
from peers.catalogue import OSTINATO

from ostinato.core.definition import ShellSpec, TaskDefinition

_PREFIX = "flat-"
_HOUR_US = 3_600_000_000
_SETTLE_S = 120.0
_BOUND = 1.3
_MEMORY_BOUND_MB = 300
_MEMORY_WAITING = 1_000_000


class Beside(NamedTuple):
    """What there is beside the instances that are measured."""

    waiting: int = 1_000
    finished: int = 0
    workers: int = 1
    #: Of each worker.
    slots: int = 1_000
    partitions: int = 64
    #: Instances are of so many tasks in turn. Of few where many workers have to be told of each.
    tasks: int = 500
    #: Instances before those that are measured; 0: as many as for every other.
    warm: int = 0


class Cost(NamedTuple):
    """Of one run."""

    cpu_us: float
    #: The most that was seen.
    resident_mb: float


class Size(NamedTuple):
    """How much is measured."""

    drained: int
    #: Before that, while caches fill and workers are told of the tasks.
    warm: int
    limit_s: float


class Side:
    """One database, filled at its first run."""

    def __init__(self, kind: str, beside: Beside, *, size: Size, servers: Servers, folder: Path) -> None:
        self._kind = kind
        self._beside = beside
        self._size = size._replace(warm=beside.warm or size.warm)
        self._servers = servers
        self._folder = folder
        self._url = ""
        self._runs = count(1)

    def measure(self) -> Cost:
        """Raises ``RunError`` where there is no figure."""
        if not self._url:
            self._prepare()
        self._refill(next(self._runs))
        with (
            tempfile.TemporaryDirectory(prefix="ostinato-bench-") as folder,
            AnsweredOstinato(self._url, servers=self._servers, folder=Path(folder)) as running,
        ):
            running.start_scheduler()
            with Target(self._url) as target:
                _wait_until_in_force(target, running)
            running.start_answering(workers=self._beside.workers, slots=self._beside.slots)
            return _cost(running, self._size)

    def _prepare(self) -> None:
        beside = self._beside
        name = "-".join(map(str, beside))
        self._url = new_database(
            self._kind, servers=self._servers, folder=self._folder, name=name, partitions=beside.partitions
        )
        definitions = [
            TaskDefinition("default", task_name(_PREFIX, number), ShellSpec(command=("true",)))
            for number in range(beside.tasks)
        ]
        asyncio.run(apply_all(self._url, definitions))
        with Target(self._url) as target:
            with target.without_keys():
                target.make(Rows("finished-", "finished", beside.finished, beside.tasks, _PREFIX))
                target.make(Rows("future-", "future", beside.waiting // 2, beside.tasks, _PREFIX))
                target.make(self._behind("behind-", beside.waiting - beside.waiting // 2))
            target.settle()

    def _refill(self, number: int) -> None:
        """What is measured, and what the run before has taken beyond it."""
        beside, size = self._beside, self._size
        with Target(self._url) as target:
            waiting = target.number("SELECT count(*) FROM instance WHERE state = 'pending'")
            target.make(self._behind(f"more-{number}-", max(0, beside.waiting - waiting)))
            measured = size.warm + size.drained
            target.make(
                Rows(f"measured-{number}-", "due", measured, beside.tasks, _PREFIX, age_us=2 * _HOUR_US)
            )

    def _behind(self, name: str, rows: int) -> Rows:
        return Rows(name, "due", rows, self._beside.tasks, _PREFIX, age_us=_HOUR_US)


def _wait_until_in_force(target: Target, running: AnsweredOstinato) -> None:
    end_s = time.monotonic() + _SETTLE_S
    while left := not_in_force(target):
        running.require_running()
        if time.monotonic() > end_s:
            raise RunError(f"{left} tasks are not in force within {_SETTLE_S:g} s")
        time.sleep(LOOK_S)


def _cost(running: AnsweredOstinato, size: Size) -> Cost:
    """From the first look that finds the warm-up done."""
    first = wait_until(running, size.warm, limit_s=size.limit_s)
    before = running.taken()
    looks: list[Taken] = [before]
    end_s = time.monotonic() + size.limit_s
    while (completed := running.completed()) < size.warm + size.drained:
        running.require_running()
        if time.monotonic() > end_s:
            raise RunError(f"{completed} were done within {size.limit_s:g} s")
        time.sleep(LOOK_S)
        looks.append(running.taken())
    if completed == first.completed:
        raise RunError(f"all {completed} were done between two looks; ask for more")
    cpu_us = (running.taken().cpu_us - before.cpu_us) / (completed - first.completed)
    return Cost(cpu_us, max(look.resident_mb for look in looks))


def sides_of(options: argparse.Namespace) -> dict[str, tuple[Beside, Beside]]:
    """The small and the large side by what grows."""
    # Each worker is told of each task once: with many of both nothing else would be measured.
    # More waits than they have under way, or the end would be what is measured.
    told = Beside(waiting=20_000, tasks=20, slots=options.slots, warm=options.warm_workers)
    return {
        "waiting": (Beside(waiting=1_000), Beside(waiting=options.waiting)),
        "finished": (Beside(finished=0), Beside(finished=options.finished)),
        "workers": (told._replace(workers=1), told._replace(workers=options.workers)),
        "partitions": (Beside(partitions=16), Beside(partitions=options.partitions)),
    }


def shown(sides: dict[str, tuple[Beside, Beside]], series: dict[str, Series[Cost]]) -> str:
    """Two tables: costs and their ratios, then memory."""
    rows: list[list[str]] = []
    memory: list[list[str]] = []
    for what, pair in sides.items():
        costs = [_median(series[f"{what} {place}"], "cpu_us") for place in ("small", "large")]
        sizes = [f"{getattr(beside, what):,}" for beside in pair]
        figures = [MISSING if cost is None else f"{cost:.0f}" for cost in costs]
        rows.append([what, *sizes, *figures, ratio(costs[1], costs[0]), f"{_BOUND}"])
        if what == "waiting":
            resident = _median(series["waiting large"], "resident_mb")
            size = f"{_MEMORY_BOUND_MB} at {_MEMORY_WAITING:,}"
            memory.append(["scheduler", sizes[1], MISSING if resident is None else f"{resident:.0f}", size])
    heads = ["what grows", "from", "to", "CPU µs each", "then", "ratio", "bound"]
    tables = [table(heads, rows)]
    if memory:
        tables.append(table(["memory", "beside waiting", "MB", "bound"], memory))
    return "\n\n".join([*tables, "\n".join(reasons(series))])


def _median(series: Series[Cost], name: str) -> float | None:
    return statistics.median(getattr(each, name) for each in series.values) if series.values else None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", choices=tuple(OSTINATO), default="postgres")
    parser.add_argument("--only", default="waiting,finished,workers,partitions")
    parser.add_argument("--waiting", type=int, default=5_000_000)
    parser.add_argument("--finished", type=int, default=10_000_000)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--slots", type=int, default=100, help="of each worker, where these grow")
    parser.add_argument("--partitions", type=int, default=256)
    parser.add_argument("--drained", type=int, default=20_000, help="instances that are measured")
    parser.add_argument("--warm", type=int, default=5_000, help="instances before that")
    parser.add_argument("--warm-workers", type=int, default=60_000, help="the same, where workers grow")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--limit", type=float, default=300, help="seconds that a run may take")
    options = parser.parse_args()
    known = sides_of(options)
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    sides = {what: known[what] for what in chosen}
    size = Size(options.drained, options.warm, options.limit)
    with Servers() as servers, tempfile.TemporaryDirectory(prefix="ostinato-bench-") as folder:
        subjects: dict[str, Callable[[], Cost]] = {}
        for what, pair in sides.items():
            for place, beside in zip(("small", "large"), pair, strict=True):
                side = Side(options.database, beside, size=size, servers=servers, folder=Path(folder) / what)
                subjects[f"{what} {place}"] = side.measure
            (Path(folder) / what).mkdir()
        why_not = dict.fromkeys(subjects, servers.why_not(options.database))
        series = in_turn(subjects, runs=options.runs, why_not=why_not)
    print(
        f"CPU time of the scheduler for each of {size.drained:,} instances ({options.database}), medians of"
        f" {options.runs} runs in turn\n"
    )
    print(shown(sides, series))


if __name__ == "__main__":
    main()
