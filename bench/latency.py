"""How long a task waits from before its submission to its start, idle and at half of the maximal rate.

Run ``python bench/latency.py [--database postgres] [--against celery-redis,pgqueuer,…]``. A run first works
off a backlog, which gives the maximal rate of that contender; then single tasks are submitted slowly, then
half of that rate in ticks of 10 ms. A task records its start on the machine's monotonic clock, as the
submitter does before it submits, so that the submission's own commit is included. Printed are medians of
the runs' p50 and p99, in a table. The settings are those of ``throughput.py``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kit.draining import LOOK_S, drain_rate
from kit.rounds import RunError, Series, in_turn, percentile, reasons
from kit.servers import Servers
from kit.tables import MISSING, rate, ratio, table
from peers.catalogue import add_options, contender, names_of, notes
from peers.interface import Contender, Load

#: Slow enough that each finds the cluster idle.
_IDLE_RATE = 20.0


class Waits(NamedTuple):
    """Of one run, in milliseconds, and the rate that was submitted in the second part."""

    idle_p50: float
    idle_p99: float
    rate: float
    loaded_p50: float
    loaded_p99: float


class Plan(NamedTuple):
    """What every run does."""

    task_count: int
    seconds: float
    load: Load
    limit_s: float


def run_once(kind: type[Contender], plan: Plan, *, servers: Servers) -> Waits:
    """Raises ``RunError`` where there is no figure."""
    with (
        tempfile.TemporaryDirectory(prefix="ostinato-bench-") as folder,
        kind(servers=servers, folder=Path(folder), load=plan.load) as running,
    ):
        running.submit(plan.task_count)
        running.start_workers()
        most = drain_rate(running, plan.task_count, limit_s=plan.limit_s)
        idle = _waits_ms(running, _IDLE_RATE, plan=plan)
        loaded = _waits_ms(running, most / 2, plan=plan)
        return Waits(
            percentile(idle, 0.5),
            percentile(idle, 0.99),
            len(loaded) / plan.seconds,
            percentile(loaded, 0.5),
            percentile(loaded, 0.99),
        )


def _waits_ms(running: Contender, tasks_per_s: float, *, plan: Plan) -> list[float]:
    """Of all tasks that were submitted at this rate; waits until the last of them has started."""
    since_ns = time.monotonic_ns()
    count = int(running.submitting("steady", str(tasks_per_s), str(plan.seconds)))
    end_s = time.monotonic() + plan.limit_s
    while True:
        starts = [start for start in running.starts() if start.submitted_ns >= since_ns]
        if len(starts) >= count:
            return [(start.started_ns - start.submitted_ns) / 1e6 for start in starts]
        running.require_running()
        if time.monotonic() > end_s:
            raise RunError(f"{len(starts)} of {count} had started within {plan.limit_s:g} s")
        time.sleep(LOOK_S)


def measure(names: Sequence[str], plan: Plan, *, runs: int, servers: Servers) -> dict[str, Series[Waits]]:
    """Series by the contender's name."""
    kinds = {name: contender(name) for name in names}
    subjects: dict[str, Callable[[], Waits]] = {
        name: partial(run_once, kind, plan, servers=servers) for name, kind in kinds.items()
    }
    why_not = {name: kind.why_not(servers, plan.load) for name, kind in kinds.items()}
    return in_turn(subjects, runs=runs, why_not=why_not)


def shown(series: dict[str, Series[Waits]]) -> str:
    """The table; the last column says how many times as long Ostinato's tasks waited on an idle cluster."""
    first = next(iter(series))
    rows = [_row(name, each, first=series[first]) for name, each in series.items()]
    heads = [
        "contender",
        "idle p50 ms",
        "p99 ms",
        "at tasks/s",
        "p50 ms",
        "p99 ms",
        f"{first} : it, p50, p99",
    ]
    return "\n\n".join([table(heads, rows), "\n".join([*notes(series), *reasons(series)])])


def _row(name: str, series: Series[Waits], *, first: Series[Waits]) -> list[str]:
    if not series.values:
        return [name, *[MISSING] * 6]
    own = _medians(series)
    ratios = MISSING
    if first.values:
        ours = _medians(first)
        ratios = f"{ratio(ours.idle_p50, own.idle_p50)}, {ratio(ours.idle_p99, own.idle_p99)}"
    figures = [f"{own.idle_p50:.1f}", f"{own.idle_p99:.1f}", rate(own.rate)]
    return [name, *figures, f"{own.loaded_p50:.1f}", f"{own.loaded_p99:.1f}", ratios]


def _medians(series: Series[Waits]) -> Waits:
    return Waits(*(statistics.median(column) for column in zip(*series.values, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--seconds", type=float, default=15, help="of each of the two steady parts")
    options = parser.parse_args()
    names = names_of(parser, options)
    plan = Plan(options.count, options.seconds, Load(options.kind), options.limit)
    with Servers() as servers:
        series = measure(names, plan, runs=options.runs, servers=servers)
    print(
        f"Submission → start ({plan.load.shown}): idle at {_IDLE_RATE:g} tasks/s, then at half of each"
        f" contender's maximal rate; medians of {options.runs} runs in turn\n"
    )
    print(shown(series))


if __name__ == "__main__":
    main()
