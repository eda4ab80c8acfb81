"""What the databases can do: rows moved insert → assign → complete in batches by bare clients of our drivers.

Run ``python bench/limit.py [--database postgres,mariadb,sqlite] [--count 50000] [--batch 500] [--runs 5]``.
Each database is a server of its own in a temporary folder, with durable commits. Three figures for each, all
in rows a second: the three moves of each batch in turn over one connection; the same pipelined over three
connections, one for each move; and bulk insertion alone. SQLite has one writer, so its moves are not
pipelined. Printed are medians of runs taken in turn, as a table.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

from kit.bare import Size, completed_count, inserted, make_table, moved_in_pipeline, moved_in_turn
from kit.rounds import RunError, Series, in_turn, median
from kit.servers import DURABILITY, Servers
from kit.tables import rate, ratio, table

DATABASES = ("postgres", "mariadb", "sqlite")
_WAYS = {"in turn": moved_in_turn, "pipelined": moved_in_pipeline, "insert": inserted}


class Limit:
    """One way on one database; each call measures it on an empty database."""

    def __init__(self, database: str, way: str, *, servers: Servers, folder: Path) -> None:
        self._database = database
        self._way = way
        self._servers = servers
        self._folder = folder
        self._numbers = count(1)

    def measure(self, size: Size) -> float:
        """Rows a second. Raises ``RunError`` where rows are missing at the end."""
        if self._database == "sqlite":
            url = f"sqlite:///{self._folder / f'{self._way}-{next(self._numbers)}.db'}"
        else:
            url = self._servers.new_database(self._database)

        async def run() -> float:
            await make_table(self._database, url)
            value = await _WAYS[self._way](self._database, url, size=size)
            done = await completed_count(self._database, url)
            if done != (0 if self._way == "insert" else size.row_count):
                raise RunError(f"{done} of {size.row_count} rows have made every move")
            return value

        return asyncio.run(run())


def measure(databases: list[str], *, size: Size, runs: int, servers: Servers) -> dict[str, Series[float]]:
    """Series by ``database way``."""
    with tempfile.TemporaryDirectory() as folder:
        subjects: dict[str, Callable[[], float]] = {}
        why_not: dict[str, str] = {}
        for database in databases:
            for way in _WAYS:
                name = f"{database} {way}"
                limit = Limit(database, way, servers=servers, folder=Path(folder))
                subjects[name] = partial(limit.measure, size)
                why_not[name] = servers.why_not(database)
                if database == "sqlite" and way == "pipelined":
                    why_not[name] = "one writer"
        return in_turn(subjects, runs=runs, why_not=why_not)


def shown(databases: list[str], series: dict[str, Series[float]]) -> str:
    """The table, and below it why a figure is missing."""
    rows: list[list[str]] = []
    reasons: list[str] = []
    for database in databases:
        figures = [series[f"{database} {way}"] for way in _WAYS]
        medians = [median(figure) for figure in figures]
        rows.append([database, *map(rate, medians), ratio(medians[1], medians[0])])
        reasons += sorted({f"{database}: not run: {figure.why_not}" for figure in figures if figure.why_not})
    heads = ["database", "moved in turn/s", "pipelined/s", "insert alone/s", "pipelined : in turn"]
    notes = [DURABILITY[database] for database in databases]
    return "\n\n".join([table(heads, rows), *reasons, "; ".join(notes)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", default=",".join(DATABASES))
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    databases = options.database.split(",")
    if unknown := set(databases) - set(DATABASES):
        parser.error(f"unknown databases: {', '.join(sorted(unknown))}")
    size = Size(options.count, options.batch)
    with Servers() as servers:
        series = measure(databases, size=size, runs=options.runs, servers=servers)
    print(f"{size.row_count:,} rows, batches of {size.batch}, medians of {options.runs} runs\n")
    print(shown(databases, series))


if __name__ == "__main__":
    main()
