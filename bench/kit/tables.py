"""Markdown tables, aligned so that they read as text as well."""

from __future__ import annotations

from collections.abc import Sequence

#: What stands where there is no figure.
MISSING = "-"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column stands left, the others right."""
    widths = [max(len(row[place]) for row in (heads, *rows)) for place in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        shown = [
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(shown)} |"

    rule = ["-" * width if place == 0 else "-" * (width - 1) + ":" for place, width in enumerate(widths)]
    return "\n".join([line(heads), f"| {' | '.join(rule)} |", *map(line, rows)])


def ratio(value: float | None, other: float | None) -> str:
    """`value` as a multiple of `other`; `MISSING` where one of them was not measured."""
    if value is None or not other:
        return MISSING
    return f"{value / other:.2f}"


def rate(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}"
