"""``python -m ostinato.simulation``: run seeds, tell which fail and how to repeat them, and what it costs."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count

from ostinato.core.instants import HOUR, SECOND
from ostinato.simulation.history import Event, Tick
from ostinato.simulation.mutations.catalogue import MUTATIONS
from ostinato.simulation.mutations.mutation import Mutation
from ostinato.simulation.run import RunReport, run_seed
from ostinato.simulation.shrink import shrink
from ostinato.simulation.swarm import SwarmOptions, long_options_of, options_of
from ostinato.simulation.trace import Trace, line_of

_COMMAND = "python -m ostinato.simulation"
#: The longest run of one seed: a week.
_HOURS_MAX = 168


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: no seed failed; 1: some did."""
    parser = argparse.ArgumentParser(prog=_COMMAND, description=__doc__)
    parser.add_argument(
        "--seeds", type=_range, default="0:100", help="FIRST:LAST (LAST not included), or one seed"
    )
    parser.add_argument(
        "--hours", type=_hours, help="have each cluster live for so many hours, not one or two minutes"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes to use")
    parser.add_argument("--minutes", type=float, help="go on with later seeds for so long")
    parser.add_argument("--trace", type=int, metavar="SEED", help="tell one run, event by event")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="make a failing run smaller, and tell it")
    parser.add_argument("--mutation", choices=MUTATIONS, help="run with a deliberate bug until it is found")
    said = parser.parse_args(arguments)
    _quiet()
    if said.mutation is not None:
        if said.hours is not None:
            parser.error("--mutation has seeds of its own, which are short: leave out --hours")
        return _find(MUTATIONS[said.mutation])
    if said.trace is not None:
        return _trace(_options(said.trace, said.hours))
    if said.shrink is not None:
        return _shrink(_options(said.shrink, said.hours))
    seeds = said.seeds if said.minutes is None else count(said.seeds.start)
    return _many(seeds, hours=said.hours, jobs=said.jobs, minutes=said.minutes)


def _range(text: str) -> range:
    """Seeds as they are said: one, or the first and the one behind the last."""
    first, colon, last = text.partition(":")
    try:
        seeds = range(int(first), int(last) if colon else int(first) + 1)
    except ValueError:
        seeds = range(0)
    if not seeds or seeds.start < 0:
        raise argparse.ArgumentTypeError(f"{text!r} names no seed; such as 0:500, or 7")
    return seeds


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours <= _HOURS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of hours up to {_HOURS_MAX}; such as 0.5, or 3"
        )
    return hours


def _options(seed: int, hours: float | None) -> SwarmOptions:
    return options_of(seed) if hours is None else long_options_of(seed, hours)


def _one(seed: int, *, hours: float | None) -> tuple[RunReport, float]:
    began_s = time.process_time()
    report = run_seed(_options(seed, hours))
    return report, time.process_time() - began_s


def _many(seeds: Iterable[int], *, hours: float | None, jobs: int, minutes: float | None) -> int:
    totals = _Totals()
    length = "" if hours is None else f"--hours {hours:g} "
    for report, cpu_s in _reports(seeds, hours=hours, jobs=jobs, minutes=minutes):
        totals.add(report, cpu_s)
        for sentence in report.sentences():
            sys.stdout.write(f"{sentence}\n")
        if report.violations:
            again = f"{_COMMAND} {length}--trace {report.seed}, or {length}--shrink {report.seed}"
            sys.stdout.write(f"  repeat: {again}\n")
            sys.stdout.flush()
    sys.stdout.write(totals.text())
    return 1 if totals.failed else 0


def _quiet() -> None:
    """Workers lose their nodes hundreds of times in a run: what counts of that is in the history."""
    logging.getLogger("ostinato").setLevel(logging.CRITICAL)


def _reports(
    seeds: Iterable[int], *, hours: float | None, jobs: int, minutes: float | None
) -> Iterator[tuple[RunReport, float]]:
    one = partial(_one, hours=hours)
    if jobs == 1 and minutes is None:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(jobs, initializer=_quiet) as pool:
        if minutes is None:
            yield from pool.map(one, seeds, chunksize=4 if hours is None else 1)
            return
        left_s = 60.0 * minutes * jobs
        numbers = iter(seeds)
        while left_s > 0:
            batch = [next(numbers) for _ in range((8 if hours is None else 1) * jobs)]
            for report, cpu_s in pool.map(one, batch):
                left_s -= cpu_s
                yield report, cpu_s


class _Totals:
    """What all runs together were."""

    def __init__(self) -> None:
        self.seed_count = self.fault_count = self.event_count = 0
        self.execution_count = self.commit_count = self.simulated_us = 0
        self.cpu_s = 0.0
        self.failed: list[int] = []

    def add(self, report: RunReport, cpu_s: float) -> None:
        self.seed_count += 1
        self.fault_count += report.fault_count
        self.event_count += report.event_count
        self.execution_count += report.execution_count
        self.commit_count += report.commit_count
        self.simulated_us += report.simulated_us
        self.cpu_s += cpu_s
        if report.violations:
            self.failed.append(report.seed)

    def text(self) -> str:
        hours = max(self.simulated_us / HOUR, 1e-9)
        apart_s = self.simulated_us / SECOND / max(self.fault_count, 1)
        failed = ", ".join(map(str, self.failed)) or "none"
        return (
            f"{self.seed_count} seeds, {hours:.2f} cluster-hours, {self.fault_count} faults "
            f"(one every {apart_s:.1f} s), {self.execution_count} executions, {self.commit_count} commits, "
            f"{self.event_count} events\n"
            f"CPU: {self.cpu_s:.1f} s, {self.cpu_s / max(self.seed_count, 1):.3f} s a seed, "
            f"{self.cpu_s / hours:.1f} s a cluster-hour\n"
            f"failed: {failed}\n"
        )


def _trace(options: SwarmOptions) -> int:
    return _conclude(run_seed(options, listeners=[_tell]))


def _tell(event: Event) -> None:
    """At once, so that a run of hours is not kept."""
    if not isinstance(event, Tick):
        sys.stdout.write(f"{line_of(event)}\n")


def _shrink(options: SwarmOptions) -> int:
    report = run_seed(options)
    if not report.violations:
        sys.stdout.write(f"seed {options.seed} violates nothing\n")
        return 0
    options, report = shrink(options, report)
    trace = Trace()
    report = run_seed(options, listeners=[trace])
    for line in trace.essence(report.violations):
        sys.stdout.write(f"{line}\n")
    sys.stdout.write(f"{options}\n")
    return _conclude(report)


def _find(mutation: Mutation) -> int:
    """Exit code 1, as for any bug that was found; 0 if it went unnoticed."""
    with mutation.applied():
        for options in mutation.options():
            report = run_seed(options, ends_early=True)
            if report.violations:
                return _conclude(report)
    sys.stdout.write(f"{mutation.name} went unnoticed in {mutation.seed_count} seeds\n")
    return 0


def _conclude(report: RunReport) -> int:
    for sentence in report.sentences():
        sys.stdout.write(f"{sentence}\n")
    sys.stdout.write(f"digest {report.digest}\n")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
