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
from unicodedata import category, combining, east_asian_width

import typer

#: Controls, direction overrides, separators and surrogates: what a terminal or browser would obey.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_GAP = "  "


def prepare_streams() -> None:
    """Make stdout and stderr survive characters that their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def safe(value: object) -> str:
    """Text of a value on one line, with unsafe characters as escapes; None is empty."""
    text = "" if value is None else str(value)
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def safe_lines(text: str) -> str:
    """As `safe`, but tabs stay and lines stay lines."""
    return "\n".join("\t".join(map(safe, line.split("\t"))) for line in re.split("\r?\n", text))


def say(text: str = "") -> None:
    """One or more lines on stdout; the caller has made the data in it safe."""
    typer.echo(text)


def complain(text: str) -> None:
    """What went wrong, on stderr."""
    typer.echo(f"ostinato: {safe(text)}", err=True)


def note(text: str) -> None:
    """A remark for people on stderr, which leaves stdout to the data."""
    typer.echo(safe(text), err=True)


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    typer.echo(_json_text(value, ascii_only=not _is_unicode(sys.stdout), indent=2))


def note_json(value: object) -> None:
    """One line of JSON on stderr, for programs."""
    typer.echo(_json_text(value, ascii_only=True, indent=None), err=True)


def _json_text(value: object, *, ascii_only: bool, indent: int | None) -> str:
    whole = json.dumps(value, ensure_ascii=ascii_only, indent=indent, default=str)
    # Unsafe characters above ASCII only occur inside strings, where an escape means the same.
    return re.sub("[^\x00-\x7e]", lambda found: _json_escape(found[0]), whole)


def _json_escape(character: str) -> str:
    return json.dumps(character)[1:-1] if _UNSAFE.fullmatch(character) else character


def _is_unicode(stream: object) -> bool:
    return str(getattr(stream, "encoding", None) or "").lower().replace("-", "").startswith("utf")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table with a heading; `empty` is the sentence for no rows."""
    cells = [[safe(value) for value in row] for row in rows]
    if not cells:
        say(empty)
        return
    widths = [max(map(text_width, column)) for column in zip(columns, *cells, strict=True)]
    limit = output_width()
    if limit is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > limit:
        print_blocks(columns, cells)
        return
    for row in (list(columns), *cells):
        say(_GAP.join(_pad(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_blocks(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Each row as lines ``NAME: value``, with an empty line between rows; empty values are left out."""
    for number, row in enumerate(rows):
        if number:
            say()
        print_facts([(name, value) for name, value in zip(columns, row, strict=True)])


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Lines ``name: value``; facts without a value are left out."""
    for name, value in facts:
        if text := safe(value):
            say(f"{name}: {text}")


def output_width() -> int | None:
    """Columns to write to: ``COLUMNS``, else the terminal's, else None (a pipe or file: any width)."""
    said = os.environ.get("COLUMNS", "")
    if said.isdigit() and int(said) > 0:
        return int(said)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
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


def _pad(text: str, width: int) -> str:
    return text + " " * (width - text_width(text))
