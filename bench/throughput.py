"""How fast a backlog of no-op tasks is worked off: Ostinato, its databases' bound, and its peers, in one run.

Run ``python bench/throughput.py [--database postgres] [--against celery-redis,…] [--kind async|def]``.
One scheduler process and one worker process; a peer gets one worker with the concurrency and batches that
its documentation recommends. Everything that is compared is durable, on servers of its own, and a task counts
once its completion is committed. ``--while-submitting`` measures while as much again is submitted in batches;
``--failing-once`` lets every task fail once and be retried at once, and counts attempts; the plain drain is
measured beside both. Printed are medians of runs taken in turn, as ratios in a table.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kit.bare import Size
from kit.draining import LOOK_S, drain_rate, look, wait_until
from kit.rounds import RunError, Series, in_turn, median, reasons
from kit.servers import Servers
from kit.tables import rate, ratio, table
from limit import Limit
from peers.catalogue import OSTINATO, PEERS, add_options, contender, names_of, notes
from peers.interface import Contender, Load

_BATCH = 500


class Plan(NamedTuple):
    """What every run does."""

    task_count: int
    load: Load
    is_submitting: bool
    limit_s: float

    @property
    def completions(self) -> int:
        """Of a whole backlog."""
        return self.task_count * (2 if self.load.is_failing_once else 1)

    @property
    def is_plain(self) -> bool:
        """Nothing but a drain."""
        return self == self.plain

    @property
    def plain(self) -> Plan:
        """The drain of as many tasks that succeed, with nothing submitted meanwhile."""
        return self._replace(load=Load(self.load.kind), is_submitting=False)


def run_once(kind: type[Contender], plan: Plan, *, servers: Servers) -> float:
    """Completions a second of one run. Raises ``RunError`` where there is no figure."""
    with (
        tempfile.TemporaryDirectory(prefix="ostinato-bench-") as folder,
        kind(servers=servers, folder=Path(folder), load=plan.load) as running,
    ):
        running.submit(plan.task_count)
        running.start_workers()
        if plan.is_submitting:
            return _rate_meanwhile(running, plan)
        return drain_rate(running, plan.completions, limit_s=plan.limit_s)


def _rate_meanwhile(running: Contender, plan: Plan) -> float:
    """From the first completion until the submitter has submitted as much again, or all is done before."""
    first = last = wait_until(running, 1, limit_s=plan.limit_s)
    submitter = running.start_submitting("meanwhile", str(plan.task_count), str(_BATCH))
    while submitter.poll() is None and last.completed < 2 * plan.completions:
        if last.at_s - first.at_s > plan.limit_s:
            raise RunError(f"the submitter has not ended within {plan.limit_s:g} s")
        running.require_running()
        time.sleep(LOOK_S)
        last = look(running)
    running.require_running()
    if last.completed == first.completed:
        raise RunError("nothing was done while the submitter ran")
    return last.rate_since(first)


def measure(names: Sequence[str], plan: Plan, *, runs: int, servers: Servers) -> dict[str, Series[float]]:
    """Series of the contenders by name, and of the bound of Ostinato's databases as ``limit DATABASE``."""
    subjects: dict[str, Callable[[], float]] = {}
    why_not: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            kind = contender(name)
            subjects[name] = partial(run_once, kind, plan, servers=servers)
            why_not[name] = kind.why_not(servers, plan.load)
            if name in OSTINATO.values() and not plan.is_plain:
                subjects[f"{name} plain"] = partial(run_once, kind, plan.plain, servers=servers)
                why_not[f"{name} plain"] = why_not[name]
            elif name in OSTINATO.values():
                way = "in turn" if kind.server == "sqlite" else "pipelined"
                limit = Limit(kind.server, way, servers=servers, folder=Path(folder))
                subjects[f"limit {kind.server}"] = partial(limit.measure, Size(plan.task_count, _BATCH))
                why_not[f"limit {kind.server}"] = why_not[name]
        return in_turn(subjects, runs=runs, why_not=why_not)


def shown(series: dict[str, Series[float]]) -> str:
    """The table: Ostinato's rate as a multiple of each row's."""
    first = median(next(iter(series.values())))
    rows = [[name, rate(median(each)), ratio(first, median(each))] for name, each in series.items()]
    heads = ["contender", "per second", f"{next(iter(series))} : it"]
    contenders = [name for name in series if name in (*OSTINATO.values(), *PEERS)]
    return "\n\n".join([table(heads, rows), "\n".join([*notes(contenders), *reasons(series)])])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--while-submitting", action="store_true")
    parser.add_argument("--failing-once", action="store_true")
    options = parser.parse_args()
    names = names_of(parser, options)
    load = Load(options.kind, is_failing_once=options.failing_once)
    plan = Plan(options.count, load, options.while_submitting, options.limit)
    with Servers() as servers:
        series = measure(names, plan, runs=options.runs, servers=servers)
    what = "attempts" if load.is_failing_once else "tasks"
    meanwhile = ", while as many again are submitted" if plan.is_submitting else ""
    print(
        f"{plan.completions:,} {what} ({load.shown}){meanwhile}; completions a second, medians of"
        f" {options.runs} runs in turn\n"
    )
    print(shown(series))


if __name__ == "__main__":
    main()
