"""How fast instances are submitted in bulk, beside the database's own bulk insertion of as many rows.

Run ``python bench/submit.py [--database postgres,mariadb,sqlite] [--count 50000] [--runs 5]``. One process
calls ``submit_many`` with all of them, and nobody works them off; the bare client of ``limit.py`` inserts as
many rows of the same width in batches of 500. Printed are medians of runs taken in turn, as a table.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from kit.bare import Size
from kit.rounds import Series, in_turn, median, reasons
from kit.servers import Servers
from kit.tables import rate, ratio, table
from limit import Limit
from peers.catalogue import OSTINATO, notes, ostinato_on
from peers.interface import Load
from peers.ostinato_contender import Ostinato

_BATCH = 500


def submitted(kind: type[Ostinato], count: int, *, servers: Servers) -> float:
    """Instances a second of one call."""
    with (
        tempfile.TemporaryDirectory(prefix="ostinato-bench-") as folder,
        kind(servers=servers, folder=Path(folder), load=Load()) as running,
    ):
        return running.submit(count)


def measure(databases: Sequence[str], count: int, *, runs: int, servers: Servers) -> dict[str, Series[float]]:
    """Series by ``ostinato-DATABASE`` and ``limit DATABASE``."""
    with tempfile.TemporaryDirectory() as folder:
        subjects: dict[str, Callable[[], float]] = {}
        why_not: dict[str, str] = {}
        for database in databases:
            kind = ostinato_on(database)
            limit = Limit(database, "insert", servers=servers, folder=Path(folder))
            subjects[kind.name] = partial(submitted, kind, count, servers=servers)
            subjects[f"limit {database}"] = partial(limit.measure, Size(count, _BATCH))
            for name in (kind.name, f"limit {database}"):
                why_not[name] = kind.why_not(servers, Load())
        return in_turn(subjects, runs=runs, why_not=why_not)


def shown(databases: Sequence[str], series: dict[str, Series[float]]) -> str:
    """The table, and below it what was durable and why a figure is missing."""
    rows: list[list[str]] = []
    for database in databases:
        ours, bare = median(series[OSTINATO[database]]), median(series[f"limit {database}"])
        rows.append([database, rate(ours), rate(bare), ratio(ours, bare)])
    heads = ["database", "submitted a second", "bare insertion a second", "submitted : bare"]
    below = [*notes([OSTINATO[database] for database in databases]), *reasons(series)]
    return "\n\n".join([table(heads, rows), "\n".join(below)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", default=",".join(OSTINATO))
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    databases = options.database.split(",")
    if unknown := set(databases) - set(OSTINATO):
        parser.error(f"unknown databases: {', '.join(sorted(unknown))}")
    with Servers() as servers:
        series = measure(databases, options.count, runs=options.runs, servers=servers)
    print(f"{options.count:,} instances, medians of {options.runs} runs in turn\n")
    print(shown(databases, series))


if __name__ == "__main__":
    main()
