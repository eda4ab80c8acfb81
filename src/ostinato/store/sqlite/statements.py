"""Loads the hot statements from their files, and widens a statement of one row to many."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import TypeAlias

Value: TypeAlias = str | bytes | int | None
Row: TypeAlias = tuple[Value, ...]

#: Rows per statement, largest first: few different texts, so that all of them stay prepared.
_WIDTHS = (128, 32, 8, 1)
_ROW = re.compile(r"VALUES\s*(\(\?(?:, \?)*\))")


def _read_all() -> dict[str, str]:
    """Texts of all statements by name, without their comments."""
    texts: dict[str, str] = {}
    for file in files(__package__).joinpath("sql").iterdir():
        if file.name.endswith(".sql"):
            lines = file.read_text("utf-8").splitlines()
            text = "\n".join(line for line in lines if not line.startswith("--")).strip()
            texts[file.name.removesuffix(".sql")] = text
    return texts


#: Read at once: at the first use of one of them there may be no descriptor left to open it with.
_TEXTS = _read_all()


def statement(name: str) -> str:
    """Text of ``sql/<name>.sql`` without its comments."""
    return _TEXTS[name]


@cache
def _widened(name: str, width: int) -> str:
    text, count = _ROW.subn(lambda match: "VALUES " + ", ".join([match[1]] * width), statement(name))
    if count != 1:
        raise ValueError(f"sql/{name}.sql has {count} lists of values, not one")
    return text


def run_rows(connection: sqlite3.Connection, name: str, *, rows: Sequence[Row], last: Row = ()) -> int:
    """Run the statement for all rows, many at a time; returns how many rows of the table it changed.

    `last` are the values that stand once behind the rows.
    """
    changed = 0
    for width, values in _chunks(rows):
        values.extend(last)
        changed += connection.execute(_widened(name, width), values).rowcount
    return changed


def owned(partitions: Sequence[int], partition_count: int, *, column: str = "partition") -> str:
    """Condition for the place of ``{owned}`` in a statement: empty where all partitions are meant."""
    if len(partitions) == partition_count:
        return ""
    return f"AND {column} IN ({', '.join(str(int(partition)) for partition in sorted(partitions))})"


def _chunks(rows: Sequence[Row]) -> Iterator[tuple[int, list[Value]]]:
    start = 0
    for width in _WIDTHS:
        while len(rows) - start >= width:
            yield width, list(chain.from_iterable(rows[start : start + width]))
            start += width
