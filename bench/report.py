"""All figures of docs/performance.md in one Markdown table: value, bound, whether it holds, and the command.

Run ``python bench/report.py [--quick] [--only throughput,schedules,…] [--against celery-redis,…]``, or ``make
bench``. Each command is run once, one after the other, and may be run by itself; what it says meanwhile goes
to the standard error. It takes about two hours on two cores, with ``--quick`` ten minutes: small sizes, one
run each, which show that everything works and not how fast it is. Ends with 1 where a bound does not hold;
not with ``--quick``.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kit.tables import MISSING, table
from peers.catalogue import PEERS

_BENCH = Path(__file__).parent
_DATABASES = ("postgres", "mariadb", "sqlite")


class Command(NamedTuple):
    """One benchmark as it is run, and what it is given in addition for a quick look."""

    program: str
    arguments: str = ""
    quick: str = ""

    def shown(self, *, is_quick: bool) -> str:
        """As a person types it."""
        return " ".join(
            filter(None, ["python", f"bench/{self.program}", self.arguments, self.quick * is_quick])
        )


class Cell(NamedTuple):
    """Where a figure stands: a command's row, by its first cell, and the number of the cell from 0 on."""

    command: Command
    row: str
    column: int


class Figure(NamedTuple):
    """A cell of the table that a command prints."""

    name: str
    command: Command
    #: First cell of the row.
    row: str
    #: Number of the cell, the first being 0.
    column: int
    #: ``≤ 50``; empty: told, not judged.
    bound: str = ""
    #: The bound holds also where this figure is at least as large as the second one.
    or_as_much: tuple[Cell, Cell] | None = None


_QUICK_SCHEDULES = (
    "--runs 1 --tasks 2000 --period 60 --seconds 10 --burst 500 --drained 4000 --registered 5000"
)
_QUICK_BACKLOG = (
    "--runs 1 --waiting 20000 --finished 20000 --workers 20 --drained 4000 --warm 1000 --warm-workers 5000"
)
_SCHEDULES = Command("schedules.py", "", _QUICK_SCHEDULES)
_BACKLOG = Command("backlog.py", "", _QUICK_BACKLOG)
_DECISION = Command("decision.py", "", "--runs 1 --count 2000")
#: Idle p50 and p99, and p99 at half of the maximal rate.
_LATENCY_BOUNDS = {"postgres": ("≤ 2", "≤ 6", "≤ 50")}
_MEMORY = Command("memory.py", "", "--runs 1 --count 5000")


#: A multiple of the rate of each peer that the same tasks have to reach; of the others `_OF_PEER`.
_OF_FASTEST = {"pgqueuer": "≥ 1.3"}
_OF_PEER = "≥ 4"
_OF_PROCESSES = {"celery-redis": "≥ 3", "celery-rabbitmq": "≥ 1"}


def _throughput(database: str, against: str) -> Iterator[Figure]:
    name = f"ostinato-{database}"
    peers = [peer for peer in against.split(",") if peer]
    command = _draining(database, "", peers)
    rate = Cell(command, name, 1)
    yield Figure(f"no-op tasks a second, {database}", *rate)
    # However fast a database is, no more is asked than PostgreSQL gives.
    enough = (
        None
        if database == "postgres"
        else (rate, Cell(_draining("postgres", "", peers), "ostinato-postgres", 1))
    )
    yield Figure(
        f"… as a multiple of the bare driver's, {database}",
        *Cell(command, f"limit {database}", 2),
        "≥ 0.4",
        enough,
    )
    for peer in peers if database == "postgres" else ():
        yield Figure(f"… as a multiple of {peer}'s", *Cell(command, peer, 2), _OF_FASTEST.get(peer, _OF_PEER))
    prefork = [peer for peer in peers if peer in _OF_PROCESSES and database == "postgres"]
    plain_def = _draining(database, " --kind def", prefork)
    yield Figure(f"the same with def in processes, {database}", plain_def, name, 1)
    for peer in prefork:
        yield Figure(f"… as a multiple of {peer}'s", plain_def, peer, 2, _OF_PROCESSES[peer])
    submitting = _draining(database, " --while-submitting", ())
    yield Figure(f"while as many are submitted, {database}", submitting, name, 1)
    yield Figure("… as a share of the plain drain", submitting, f"{name} plain", 2, "≥ 0.6")
    failing = _draining(database, " --failing-once", ())
    yield Figure(f"attempts a second, each first one fails, {database}", failing, name, 1)
    yield Figure("… as a share of the plain drain", failing, f"{name} plain", 2, "≥ 0.4")
    submit = Command("submit.py", f"--database {database}", "--runs 1 --count 4000")
    yield Figure(f"instances submitted a second by one call, {database}", submit, database, 1)
    yield Figure("… as a share of bare insertion", submit, database, 3, "≥ 0.5")


def _draining(database: str, more: str, peers: Sequence[str]) -> Command:
    against = f" --against {','.join(peers)}" if peers and database == "postgres" else ""
    return Command("throughput.py", f"--database {database}{more}{against}", "--runs 1 --count 4000")


def _latency(database: str, against: str) -> Iterator[Figure]:
    arguments = f"--database {database}" + (f" --against {against}" if against else "")
    command = Command("latency.py", arguments, "--runs 1 --count 4000 --seconds 3")
    name = f"ostinato-{database}"
    p50, p99, loaded = _LATENCY_BOUNDS.get(database, ("", "", ""))
    yield Figure(f"submission → start, idle, p50 ms, {database}", command, name, 1, p50)
    yield Figure(f"submission → start, idle, p99 ms, {database}", command, name, 2, p99)
    yield Figure(f"… at half of the maximal rate, p50 ms, {database}", command, name, 4)
    yield Figure(f"… at half of the maximal rate, p99 ms, {database}", command, name, 5, loaded)
    for peer in filter(None, against.split(",")):
        yield Figure(f"… idle p50, p99 as a multiple of {peer}'s", command, peer, 6)


def _fixed() -> Iterator[Figure]:
    yield Figure(
        "100,000 cron tasks: instant → instance, p99 ms", _SCHEDULES, "instant → instance p99, ms", 1
    )
    yield Figure("100,000 cron tasks: instant → start, p50 ms", _SCHEDULES, "instant → start p50, ms", 1)
    yield Figure(
        "100,000 cron tasks: instant → start, p99 ms", _SCHEDULES, "instant → start p99, ms", 1, "≤ 50"
    )
    yield Figure(
        "10,000 fires at once, instances made a second", _SCHEDULES, "burst: instances made a second", 1
    )
    yield Figure("10,000 fires at once, drained : no-op drain", _SCHEDULES, "burst : no-op drain", 1, "≥ 0.5")
    yield Figure("start beside 1,000,000 tasks, s", _SCHEDULES, "start beside registered, s", 1, "< 60")
    yield Figure("scheduler's memory then, MB", _SCHEDULES, "memory then, MB", 1, "< 1000")
    for what, said in (
        ("waiting", "1,000 → 5,000,000 waiting"),
        ("finished", "0 → 10,000,000 finished"),
        ("workers", "1 → 200 workers"),
        ("partitions", "16 → 256 partitions"),
    ):
        yield Figure(f"scheduler's CPU for each instance, {said}, ratio", _BACKLOG, what, 5, "≤ 1.3")
    yield Figure("scheduler's memory beside 5,000,000 waiting, MB", _BACKLOG, "scheduler", 2, "< 300")
    yield Figure("scheduler's memory beside 1,000,000 waiting, MB", _MEMORY, "ostinato-postgres", 2, "< 300")
    yield Figure("supervisor's memory, MB", _MEMORY, "ostinato-postgres", 3, "< 60")
    for row in ("nothing said: exponential, ±10 %", "Retry-After", "lost worker"):
        yield Figure(f"retry decision, {row}, µs", _DECISION, row, 1, "≤ 10")
    yield Figure(
        "the whole step of a failed attempt, µs", _DECISION, "the owner's step for a failed attempt", 1
    )


def figures(against: str) -> list[Figure]:
    """All of them; peers are compared with Ostinato on PostgreSQL."""
    found: list[Figure] = []
    for database in _DATABASES:
        peers = against if database == "postgres" else ""
        found += [*_throughput(database, against), *_latency(database, peers)]
    return [*found, *_fixed()]


def cells_of(text: str) -> dict[str, list[str]]:
    """The rows of all Markdown tables in `text`, by their first cell."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row for row in rows}


def number_of(value: str) -> float | None:
    """The figure in a cell; None where there is none."""
    found = re.fullmatch(r"[\d,]+(\.\d+)?", value)
    return None if found is None else float(value.replace(",", ""))


def holds(value: str, bound: str) -> bool | None:
    """Whether a figure keeps its bound; None where there is no figure or no bound."""
    figure = number_of(value)
    if figure is None or not bound:
        return None
    sign, limit = bound.split()
    most = float(limit)
    return {"≤": figure <= most, "<": figure < most, "≥": figure >= most}[sign]


def run(command: Command, *, is_quick: bool) -> str:
    """What it prints; nothing where it fails, and then its own words are on the standard error."""
    given = shlex.split(f"{command.arguments} {command.quick if is_quick else ''}")
    print(f"── {command.shown(is_quick=is_quick)}", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, str(_BENCH / command.program), *given],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(done.stdout, file=sys.stderr, flush=True)
    return done.stdout if done.returncode == 0 else ""


def report(chosen: Sequence[Figure], *, is_quick: bool) -> tuple[str, list[str]]:
    """The table, and the names of the figures that do not keep their bounds."""
    found = {
        command: cells_of(run(command, is_quick=is_quick))
        for command in dict.fromkeys(figure.command for figure in chosen)
    }

    def value_at(cell: Cell) -> str:
        cells = found.get(cell.command, {}).get(cell.row, [])
        return cells[cell.column] if len(cells) > cell.column else MISSING

    rows: list[list[str]] = []
    broken: list[str] = []
    for figure in chosen:
        value = value_at(Cell(figure.command, figure.row, figure.column))
        verdict = holds(value, figure.bound)
        if verdict is False and figure.or_as_much is not None:
            ours, enough = (number_of(value_at(cell)) for cell in figure.or_as_much)
            verdict = ours is not None and enough is not None and ours >= enough
        if verdict is False or (verdict is None and figure.bound):
            broken.append(figure.name)
        shown = {True: "yes", False: "no", None: MISSING}[verdict]
        command = f"`{figure.command.shown(is_quick=is_quick)}`"
        rows.append([figure.name, value, figure.bound or MISSING, shown, command])
    return table(["figure", "measured", "bound", "holds", "command"], rows), broken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, one run of each")
    parser.add_argument("--against", default="", help=f"any of {','.join(PEERS)}")
    known = figures("")
    programs = dict.fromkeys(figure.command.program.removesuffix(".py") for figure in known)
    parser.add_argument("--only", default=",".join(programs), help="these benchmarks alone")
    options = parser.parse_args()
    only = options.only.split(",")
    if unknown := set(only) - set(programs):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    chosen = [
        figure for figure in figures(options.against) if figure.command.program.removesuffix(".py") in only
    ]
    shown, broken = report(chosen, is_quick=options.quick)
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    print(
        f"{machine}, Python {platform.python_version()}{', small sizes' if options.quick else ''}\n\n{shown}"
    )
    if broken:
        print(f"\nno figure within its bound: {'; '.join(broken)}", file=sys.stderr)
    sys.exit(1 if broken and not options.quick else 0)


if __name__ == "__main__":
    main()
