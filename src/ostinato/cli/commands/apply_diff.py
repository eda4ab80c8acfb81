"""The difference that an apply would make, in the words of ``tasks.yaml``, in colour where that is wanted."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from ostinato.cli.output import safe, safe_lines, say

if TYPE_CHECKING:
    from ostinato.control.plan import Change, Plan

_RESET = "\x1b[0m"
_BOLD, _RED, _GREEN, _CYAN = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[36m"
#: By the first characters of a line; the longer ones come first.
_COLOURS = (("---", _BOLD), ("+++", _BOLD), ("@@", _CYAN), ("-", _RED), ("+", _GREEN))


class Colour(StrEnum):
    """When to write colours."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def is_coloured(colour: Colour, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether stdout gets colours; ``auto``: on a terminal, unless ``NO_COLOR`` says no (no-color.org)."""
    if colour is not Colour.AUTO:
        return colour is Colour.ALWAYS
    return sys.stdout.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def show_diff(plan: Plan, *, coloured: bool) -> None:
    """A unified diff on stdout for each task that changes; nothing for none."""
    for change in plan.changes:
        for line in diff_lines(change):
            if coloured:
                # Said outright, as `--color always` holds for a pipe too.
                typer.echo(_painted(line), color=True)
            else:
                say(line)


def diff_lines(change: Change) -> Iterator[str]:
    """Unified diff of one task, without characters that a terminal would obey; none if it is unchanged."""
    if change.action == "unchanged":
        return
    name = safe(change.ref)
    lines = difflib.unified_diff(
        _entry_lines(change.before),
        _entry_lines(change.after),
        f"{name} (version {change.version})" if change.before is not None else "no task",
        name if change.after is not None else "no task",
        lineterm="",
    )
    yield from map(safe_lines, lines)


def _entry_lines(entry: dict[str, Any] | None) -> list[str]:
    from ostinato.control.document.yaml_text import write_yaml

    if entry is None:
        return []
    return write_yaml(entry).splitlines()


def _painted(line: str) -> str:
    for start, colour in _COLOURS:
        if line.startswith(start):
            return f"{colour}{line}{_RESET}"
    return line
