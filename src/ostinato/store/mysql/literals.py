"""Values as literals of a statement's text, and statements of many rows, cut by their bytes.

The driver binds values by putting them into the text itself. Doing that here, row by row, gives statements of
as many rows as the server takes, and refuses what UTF-8 cannot carry, which the driver would send as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import TypeAlias, TypeVar

from ostinato.store.rules import INTEGER_MAX, INTEGER_MIN

Value: TypeAlias = str | bytes | int | None
Row: TypeAlias = Sequence[Value]
Item = TypeVar("Item")

#: Bytes of one statement where the server would take more: longer ones are no faster, and cost memory.
STATEMENT_BYTES_MAX = 1024 * 1024
#: Of a statement, for what the protocol adds and `max_allowed_packet` counts.
_SLACK_BYTES = 1024
#: Rows of one statement: a derived table of more costs the optimiser more than a second statement.
_ROWS_MAX = 1000

#: Values of one IN: MariaDB turns a list of a thousand or more into a table, and may lose the index over it.
_LISTED_MAX = 900

#: ``{table: id, reason}`` is a derived table with these columns, ``{rows}`` are rows of an INSERT.
_PLACE = re.compile(r"\{(rows|table: ([a-z_]+(?:, [a-z_]+)*))\}")


class RowTooLong(Exception):
    """One row alone is longer than the server takes."""


def literal(value: Value) -> str:
    """`value` as it stands in a statement. Raises ``OverflowError`` for an integer over 64 bits."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return f"'{_escaped(value)}'"
    if isinstance(value, bytes):
        # Hexadecimal digits are text whatever the bytes are; mostly they are ASCII, and half as long.
        return f"_binary'{_escaped(value.decode('ascii'))}'" if value.isascii() else f"X'{value.hex()}'"
    if not INTEGER_MIN <= value <= INTEGER_MAX:
        raise OverflowError("an integer does not fit 64 bits")
    return str(int(value))


def _escaped(text: str) -> str:
    """`text` between apostrophes, in a session whose ``sql_mode`` has backslashes escape, as ours all have.

    The driver's own function also escapes what need not be, character by character: for tracebacks, full of
    ends of lines, that costs more than all the rest of a statement.
    """
    return text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0")


def listed(values: Sequence[Value]) -> str:
    """`values` between parentheses, as an IN takes them."""
    return f"({', '.join(map(literal, values))})"


def chunks(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """`items` in lists that one IN takes."""
    for start in range(0, len(items), _LISTED_MAX):
        yield items[start : start + _LISTED_MAX]


def _read_all() -> dict[str, str]:
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
def _template(name: str) -> tuple[bytes, bytes, tuple[str, ...]]:
    """What stands before and behind the rows, and the names of a derived table's columns."""
    text = statement(name)
    places = list(_PLACE.finditer(text))
    if len(places) != 1:
        raise ValueError(f"sql/{name}.sql has {len(places)} places for rows, not one")
    names = tuple((places[0][2] or "").split(", ")) if places[0][2] else ()
    return text[: places[0].start()].encode(), text[places[0].end() :].encode(), names


class Statements:
    """Statements of many rows for one server: how it spells a table of values, how much it takes at once."""

    def __init__(self, *, packet_bytes: int, is_mariadb: bool) -> None:
        """`packet_bytes` is the server's ``max_allowed_packet``."""
        self._bytes_max = packet_bytes - _SLACK_BYTES
        self._values = b" UNION ALL VALUES " if is_mariadb else b" UNION ALL VALUES ROW"
        self._between = b", " if is_mariadb else b", ROW"

    def of(self, name: str, rows: Sequence[Row]) -> Iterator[tuple[bytes, int]]:
        """Statements that together write all `rows`, in their order, each with its number of rows.

        Raises ``RowTooLong``, ``UnicodeEncodeError``, ``OverflowError`` for a row that none can carry.
        """
        before, behind, names = _template(name)
        fixed_bytes = len(before) + len(behind) + sum(len(column) + 8 for column in names) + 64
        bytes_max = min(STATEMENT_BYTES_MAX, self._bytes_max)
        chosen: list[bytes] = []
        size = fixed_bytes
        for row in rows:
            encoded = f"({', '.join(map(literal, row))})".encode()
            if len(encoded) + fixed_bytes > self._bytes_max:
                raise RowTooLong
            size += len(encoded) + len(self._between)
            if chosen and (size > bytes_max or len(chosen) == _ROWS_MAX):
                yield self._joined((before, behind), chosen), len(chosen)
                chosen, size = [], fixed_bytes + len(encoded)
            if names and not chosen:
                encoded = _named(row, names)
            chosen.append(encoded)
        if chosen:
            yield self._joined((before, behind), chosen), len(chosen)

    def _joined(self, around: tuple[bytes, bytes], rows: list[bytes]) -> bytes:
        before, behind = around
        if not rows[0].startswith(b"SELECT"):
            return b"".join((before, b", ".join(rows), behind))
        rest = self._values + self._between.join(rows[1:]) if len(rows) > 1 else b""
        return b"".join((before, b"(", rows[0], rest, b")", behind))


def _named(row: Row, names: tuple[str, ...]) -> bytes:
    """The first row of a derived table, which gives its columns their names: neither knows another way."""
    columns = (f"{literal(value)} AS {name}" for value, name in zip(row, names, strict=True))
    return f"SELECT {', '.join(columns)}".encode()
