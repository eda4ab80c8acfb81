"""What commands write: plain tables for people, JSON for programs, complaints on stderr.

Nothing here needs a terminal. A table that does not fit is written as a block a row, and so can be read at
20 columns; where the width is unknown (a pipe), nothing is cut or folded. No character of data reaches the
terminal that it would obey, and none that the output's encoding lacks stops a command.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO
from unicodedata import category, combining, east_asian_width

import typer

from ostinato.core.failure.text import escape_unseen, escape_unseen_in_json

_GAP = "  "
#: Columns that a cut cell keeps at least.
_CUT_WIDTH_MIN = 16


class OutputLost(Exception):
    """What was to be shown could not be written: the disk is full, or the terminal is gone."""


def prepare_streams() -> None:
    """Make the standard streams fit to be written to: all open, and forgiving to characters.

    A stream that was closed by the caller (``>&-``) leads nowhere from then on. Left closed, its number
    would go to the next file that is opened, such as the database, and output would be written into that.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if not _is_open(number):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def flush_output() -> None:
    """Write what is buffered for stdout. Raises ``BrokenPipeError`` (no reader), `OutputLost`."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputLost(error.strerror or str(error)) from None


def drop_output() -> None:
    """Let what cannot be written any more go nowhere, so that the end of the process does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(nowhere, stream.fileno())


def safe(value: object) -> str:
    """Text of a value on one line, with unsafe characters as escapes; None is empty."""
    text = "" if value is None else str(value)
    return escape_unseen(text)


def safe_lines(text: str) -> str:
    """As `safe`, but tabs stay and lines stay lines."""
    return "\n".join("\t".join(map(safe, line.split("\t"))) for line in re.split("\r?\n", text))


def say(text: str = "") -> None:
    """One or more lines on stdout; the caller has made the data in it safe."""
    write(f"{text}\n")


def say_lines(lines: Iterable[str]) -> None:
    """Lines on stdout; the caller has made the data in them safe."""
    for line in lines:
        say(line)


def write(text: str) -> None:
    """Text on stdout as it is. Raises ``BrokenPipeError`` for a reader that is gone, `OutputLost`."""
    try:
        typer.echo(text, nl=False)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputLost(error.strerror or str(error)) from None


def complain(text: str) -> None:
    """What went wrong, on stderr."""
    typer.echo(f"ostinato: {safe(text)}", err=True)


def note(text: str) -> None:
    """A remark for people on stderr, which leaves stdout to the data."""
    typer.echo(safe(text), err=True)


def print_json(value: object, *, on_one_line: bool = False) -> None:
    """One JSON document on stdout."""
    indent = None if on_one_line else 2
    say(_json_text(value, ascii_only=not is_unicode(sys.stdout), indent=indent))


class JsonArray:
    """A JSON array on stdout, an element a line, written as the elements come."""

    def __init__(self) -> None:
        self._has_begun = False

    def add(self, value: object) -> None:
        """Write one more element."""
        write(",\n  " if self._has_begun else "[\n  ")
        self._has_begun = True
        write(_json_text(value, ascii_only=not is_unicode(sys.stdout), indent=None))

    def end(self) -> None:
        """Write the end of the array."""
        say("\n]" if self._has_begun else "[]")


def note_json(value: object) -> None:
    """One line of JSON on stderr, for programs."""
    typer.echo(_json_text(value, ascii_only=True, indent=None), err=True)


def _json_text(value: object, *, ascii_only: bool, indent: int | None) -> str:
    return escape_unseen_in_json(json.dumps(value, ensure_ascii=ascii_only, indent=indent, default=str))


def is_unicode(stream: object) -> bool:
    """Whether a stream can carry every character."""
    return str(getattr(stream, "encoding", None) or "").lower().replace("-", "").startswith("utf")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table with a heading on stdout; `empty` is the sentence for no rows."""
    say_lines(table_lines(columns, rows, empty=empty, width=output_width()))


def table_lines(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str,
    width: int | None,
    cuts_last: bool = False,
) -> list[str]:
    """A table with a heading, or a block a row where `width` columns do not hold it; None: any width.

    With `cuts_last` the last column is cut to what is left for it, where that is enough to recognise it by.
    """
    cells = [[safe(value) for value in row] for row in rows]
    if not cells:
        return [empty]
    widths = [max(map(text_width, column)) for column in zip(columns, *cells, strict=True)]
    excess = 0 if width is None else sum(widths) + len(_GAP) * (len(widths) - 1) - width
    if excess > 0:
        if not cuts_last or widths[-1] - excess < _CUT_WIDTH_MIN:
            return _block_lines(columns, cells)
        widths[-1] -= excess
        cells = [[*row[:-1], cut(row[-1], widths[-1], stream=sys.stdout)] for row in cells]
    return [
        _GAP.join(_pad(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (list(columns), *cells)
    ]


def _block_lines(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines: list[str] = []
    for row in rows:
        lines += [""] if lines else []
        lines += fact_lines(zip(columns, row, strict=True))
    return lines


def fact_lines(facts: Iterable[tuple[str, object]]) -> list[str]:
    """Lines ``name: value``; facts without a value are left out."""
    texts = ((name, safe(value)) for name, value in facts)
    return [f"{name}: {text}" for name, text in texts if text]


def is_terminal(stream: TextIO) -> bool:
    """Whether lines that were written to it can be drawn over."""
    return os.environ.get("TERM", "") not in ("", "dumb") and stream.isatty()


def output_width(stream: TextIO | None = None) -> int | None:
    """Columns of stdout or `stream`: ``COLUMNS``, else the terminal's, else None (a pipe: any width)."""
    said = os.environ.get("COLUMNS", "")
    if said.isascii() and said.isdigit() and 0 < len(said) < 9 and int(said) > 0:
        return int(said)
    try:
        return os.get_terminal_size((stream or sys.stdout).fileno()).columns or None
    except (OSError, ValueError):
        return None


def text_width(text: str) -> int:
    """Columns that a terminal needs for `text`: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(
        0 if combining(one) or category(one) in ("Mn", "Me", "Cf") else 1 + (east_asian_width(one) in "WF")
        for one in text
    )


def cut(text: str, width: int, *, stream: TextIO) -> str:
    """`text`, safe and on one line, cut with ``...`` to the columns that it may take on `stream`."""
    whole = safe(text)
    if not is_unicode(stream):  # what the encoding lacks is written as an escape, and takes its columns
        encoding = stream.encoding or "ascii"
        whole = whole.encode(encoding, "backslashreplace").decode(encoding)
    if text_width(whole) <= width:
        return whole
    mark = "..."[: max(width, 0)]
    # No character takes less than nothing, so that the longest prefix is found from the end.
    kept = whole[:width]
    while kept and text_width(kept) > width - len(mark):
        kept = kept[:-1]
    return kept + mark


def _pad(text: str, width: int) -> str:
    return text + " " * (width - text_width(text))
