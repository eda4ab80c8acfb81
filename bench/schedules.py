"""A hundred thousand cron tasks on one node: how late they fire, what a burst costs, a start beside more.

Run ``python bench/schedules.py [--tasks 100000] [--burst 10000] [--registered 1000000]``, on PostgreSQL
unless ``--database`` says otherwise.

* The rate at which the node drains a backlog of no-op instances comes first: the measure of the burst.
* Then the tasks are applied to the running node. Each fires once in ``--period`` seconds (3,600), spread
  evenly over minutes and seconds. Of those that fire within ``--seconds``: from the scheduled instant to the
  instance, and to the start of its run.
* Then so many more tasks are applied that all fire at one boundary: how fast they become instances, and how
  fast they are drained, from the boundary to the last end.
* At last the start of a node beside a million registered tasks, until it says that it is ready, and its
  memory while they fire; each of them does so once a day.

All times are stored columns. Workers are streams that run nothing and answer at once. Tasks are applied by
the store, as the SDK and ``ostinato apply`` do; the million is inserted as rows (``kit/registering.py``).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kit.draining import LOOK_S, drain_rate
from kit.filling import Rows, Target, task_name
from kit.registering import apply_all, insert_in_force, not_in_force
from kit.rounds import RunError, Series, in_turn, percentile, reasons
from kit.servers import Servers
from kit.tables import MISSING, table
from peers.answered_ostinato import AnsweredOstinato, new_database
from peers.catalogue import OSTINATO

from ostinato.core.definition import ShellSpec, TaskDefinition
from ostinato.core.schedule.trigger import CronTrigger

_SLOTS = 1_000
_NOOP_TASKS = 100
_DAY_S = 86_400
_SECOND_US = 1_000_000
#: Between two questions to the database, so that they cost it nothing to speak of.
_POLL_S = 0.25
#: After the tasks have come into force, before lateness counts.
_SETTLE_S = 3.0
#: What the boundary of a burst is later than when its tasks are expected to be in force.
_LEAD_S = 5.0
_BOUNDS = {
    "instant → start p99, ms": "≤ 50",
    "burst : no-op drain": "≥ 0.5",
    "start beside registered, s": "< 60",
    "memory then, MB": "< 1,000",
}


class Plan(NamedTuple):
    """What every run does."""

    tasks: int
    period_s: int
    seconds: float
    burst: int
    drained: int
    registered: int
    limit_s: float


class Scheduling(NamedTuple):
    """Of one run, in the order of the table."""

    applied_per_s: float
    in_force_per_s: float
    fires: float
    made_p50_ms: float
    made_p99_ms: float
    started_p50_ms: float
    started_p99_ms: float
    noop_per_s: float
    burst_made_per_s: float
    burst_drained_per_s: float
    burst_ratio: float


class Starting(NamedTuple):
    """Of one start, in the order of the table."""

    ready_s: float
    resident_mb: float


#: Parts of a run, as ``--only`` names them.
_PARTS: dict[str, type[Scheduling | Starting]] = {"scheduling": Scheduling, "starting": Starting}
_HEADS: dict[type[Scheduling | Starting], tuple[str, ...]] = {
    Scheduling: (
        "tasks applied a second",
        "tasks put in force a second",
        "fires that were measured",
        "instant → instance p50, ms",
        "instant → instance p99, ms",
        "instant → start p50, ms",
        "instant → start p99, ms",
        "no-op drain, a second",
        "burst: instances made a second",
        "burst: drained a second",
        "burst : no-op drain",
    ),
    Starting: ("start beside registered, s", "memory then, MB"),
}


def tasks_of(prefix: str, count: int, *, cron: Callable[[int], str]) -> Iterator[TaskDefinition]:
    """Tasks with a command, each with the expression for its number."""
    for number in range(count):
        triggers = (CronTrigger(cron=cron(number)),)
        name = task_name(prefix, number)
        yield TaskDefinition("default", name, ShellSpec(command=("true",)), triggers=triggers)


def spread_evenly(period_s: int) -> Callable[[int], str]:
    """Expressions of six fields that begin anew after a period: a minute, an hour or a day."""

    def cron(number: int) -> str:
        at_s = number % period_s
        fields = [str(at_s % 60), str(at_s // 60 % 60), str(at_s // 3600)]
        kept = {60: 1, 3600: 2, _DAY_S: 3}[period_s]
        return " ".join([*fields[:kept], *["*"] * (6 - kept)])

    return cron


def scheduling(plan: Plan, *, kind: str, servers: Servers) -> Scheduling:
    """One run; raises ``RunError`` where there is no figure."""
    with tempfile.TemporaryDirectory(prefix="ostinato-bench-") as name:
        folder = Path(name)
        url = new_database(kind, servers=servers, folder=folder, name="schedules")
        noop = [
            TaskDefinition("default", task_name("noop-", number), ShellSpec(command=("true",)))
            for number in range(_NOOP_TASKS)
        ]
        asyncio.run(apply_all(url, noop))
        with (
            Target(url) as target,
            AnsweredOstinato(url, servers=servers, folder=folder) as running,
        ):
            target.make(Rows("noop-", "due", plan.drained, _NOOP_TASKS, "noop-", age_us=_SECOND_US))
            running.start_scheduler()
            _until_in_force(target, running, limit_s=plan.limit_s)
            running.start_answering(workers=1, slots=_SLOTS)
            noop_per_s = drain_rate(running, plan.drained, limit_s=plan.limit_s)
            spread = list(tasks_of("spread-", plan.tasks - plan.burst, cron=spread_evenly(plan.period_s)))
            began_s = time.monotonic()
            applied_s = asyncio.run(apply_all(url, spread))
            _until_in_force(target, running, limit_s=plan.limit_s)
            in_force_s = time.monotonic() - began_s
            time.sleep(_SETTLE_S)
            made_ms, started_ms = _lateness(target, running, plan)
            each_s = in_force_s / len(spread)
            made_per_s, drained_per_s = _burst(target, running, plan, url=url, each_s=each_s)
    return Scheduling(
        len(spread) / applied_s,
        len(spread) / in_force_s,
        len(made_ms),
        *(percentile(late_ms, share) for late_ms in (made_ms, started_ms) for share in (0.5, 0.99)),
        noop_per_s,
        made_per_s,
        drained_per_s,
        drained_per_s / noop_per_s,
    )


def _until_in_force(target: Target, running: AnsweredOstinato, *, limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while left := not_in_force(target):
        running.require_running()
        if time.monotonic() > end_s:
            raise RunError(f"{left} tasks are not in force within {limit_s:g} s")
        time.sleep(_POLL_S)


def _lateness(target: Target, running: AnsweredOstinato, plan: Plan) -> tuple[list[float], list[float]]:
    """Milliseconds from the scheduled instants to the instances, and to the starts of their runs."""
    since_us = time.time_ns() // 1000
    time.sleep(plan.seconds)
    until_us = time.time_ns() // 1000
    end_s = time.monotonic() + plan.limit_s
    question = (
        "SELECT fire_us, created_us, started_us FROM instance"
        f" WHERE fire_us BETWEEN {since_us} AND {until_us} AND task LIKE 'spread-%'"
    )
    while True:
        running.require_running()
        rows = target.query(question)
        waiting = sum(started_us is None for _, _, started_us in rows)
        if rows and not waiting:
            break
        if time.monotonic() > end_s:
            raise RunError(f"{waiting} of {len(rows)} fires have not run within {plan.limit_s:g} s")
        time.sleep(_POLL_S)
    return [(row[1] - row[0]) / 1e3 for row in rows], [(row[2] - row[0]) / 1e3 for row in rows]


def _burst(
    target: Target, running: AnsweredOstinato, plan: Plan, *, url: str, each_s: float
) -> tuple[float, float]:
    """Instances made, and drained, a second from a boundary at which many tasks fire at once."""
    boundary_s = int(time.time() + _LEAD_S + 2 * each_s * plan.burst) + 1
    at_s = boundary_s % _DAY_S
    cron = f"{at_s % 60} {at_s // 60 % 60} {at_s // 3600} * * *"
    asyncio.run(apply_all(url, list(tasks_of("burst-", plan.burst, cron=lambda _: cron))))
    _until_in_force(target, running, limit_s=plan.limit_s)
    if time.time() > boundary_s:
        raise RunError("the tasks of the burst were not in force before their boundary")
    which = f"namespace = 'default' AND task >= 'burst-' AND task < 'burst.' AND fire_us = {boundary_s}000000"
    end_s = time.monotonic() + plan.limit_s
    while (done := target.number(f"SELECT count(*) FROM instance WHERE {which} AND state = 'success'")) < (
        plan.burst
    ):
        running.require_running()
        if time.monotonic() > end_s:
            raise RunError(f"{done} of {plan.burst} fires have run within {plan.limit_s:g} s")
        time.sleep(_POLL_S)
    rows = target.query(f"SELECT created_us, assigned_us, finished_us FROM instance WHERE {which}")
    boundary_us = boundary_s * _SECOND_US
    last_us = max(row[0] for row in rows)
    # What the last transaction has made was there only after it; all before it was there when it began.
    before = [row for row in rows if row[0] < last_us]
    made_us = last_us if before else min(row[1] for row in rows)
    made_per_s = (len(before) or len(rows)) / (made_us - boundary_us) * 1e6
    return made_per_s, plan.burst / (max(row[2] for row in rows) - boundary_us) * 1e6


def starting(plan: Plan, *, kind: str, servers: Servers) -> Starting:
    """One start beside many registered tasks; raises ``RunError`` where there is no figure."""
    with tempfile.TemporaryDirectory(prefix="ostinato-bench-") as name:
        folder = Path(name)
        url = new_database(kind, servers=servers, folder=folder, name="start")
        with Target(url) as target:
            insert_in_force(target, tasks_of("daily-", plan.registered, cron=spread_evenly(_DAY_S)))
            target.settle()
        with AnsweredOstinato(url, servers=servers, folder=folder) as running:
            began_s = time.monotonic()
            running.start_scheduler(limit_s=plan.limit_s)
            ready_s = time.monotonic() - began_s
            running.start_answering(workers=1, slots=_SLOTS)
            resident_mb = 0.0
            end_s = time.monotonic() + plan.seconds
            while time.monotonic() < end_s:
                running.require_running()
                resident_mb = max(resident_mb, running.taken().resident_mb)
                time.sleep(LOOK_S)
    return Starting(ready_s, resident_mb)


def shown(series: dict[str, Series[Scheduling | Starting]]) -> str:
    """The table of medians."""
    rows: list[list[str]] = []
    for name, each in series.items():
        kind = _PARTS[name]
        columns = list(zip(*each.values, strict=True)) or [()] * len(_HEADS[kind])
        for head, values in zip(_HEADS[kind], columns, strict=True):
            value = _figure(statistics.median(values)) if values else MISSING
            rows.append([head, value, _BOUNDS.get(head, MISSING)])
    return "\n\n".join([table(["figure", "value", "bound"], rows), "\n".join(reasons(series))])


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", choices=tuple(OSTINATO), default="postgres")
    parser.add_argument("--tasks", type=int, default=100_000, help="with cron, those of the burst among them")
    parser.add_argument("--only", default=",".join(_PARTS), help="these parts alone")
    parser.add_argument("--period", type=int, choices=(60, 3600, _DAY_S), default=3600)
    parser.add_argument("--seconds", type=float, default=60, help="in which fires are measured")
    parser.add_argument("--burst", type=int, default=10_000)
    parser.add_argument("--drained", type=int, default=20_000, help="no-op instances of the drain")
    parser.add_argument("--registered", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--limit", type=float, default=600, help="seconds that a part of a run may take")
    options = parser.parse_args()
    plan = Plan(
        options.tasks,
        options.period,
        options.seconds,
        options.burst,
        options.drained,
        options.registered,
        options.limit,
    )
    only = options.only.split(",")
    if unknown := set(only) - set(_PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    with Servers() as servers:
        measured: dict[str, Callable[[], Scheduling | Starting]] = {
            "scheduling": partial(scheduling, plan, kind=options.database, servers=servers),
            "starting": partial(starting, plan, kind=options.database, servers=servers),
        }
        subjects = {name: measured[name] for name in only}
        why_not = dict.fromkeys(subjects, servers.why_not(options.database))
        series = in_turn(subjects, runs=options.runs, why_not=why_not)
    print(
        f"{plan.tasks:,} cron tasks, each once in {plan.period_s:,} s, {plan.burst:,} of them at one"
        f" boundary; a start beside {plan.registered:,} ({options.database}); medians of {options.runs}\n"
    )
    print(shown(series))


if __name__ == "__main__":
    main()
