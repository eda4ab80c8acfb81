"""Runs in turn, one of each subject and then the next round: whatever slows the machine meets all of them."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

Measured = TypeVar("Measured")


class Series(NamedTuple, Generic[Measured]):
    """What the runs of one subject gave, and why there are none."""

    values: list[Measured]
    why_not: str = ""


def in_turn(
    subjects: Mapping[str, Callable[[], Measured]], *, runs: int, why_not: Mapping[str, str] | None = None
) -> dict[str, Series[Measured]]:
    """Call every subject `runs` times, one of each in turn; those of `why_not` are not called.

    The order is reversed with every round, so that none always follows the same neighbour. A run that fails
    ends its subject, with the failure as the reason, and not the whole comparison.
    """
    series = {name: Series[Measured]([], (why_not or {}).get(name, "")) for name in subjects}
    for number in range(runs):
        order = list(subjects) if number % 2 == 0 else list(subjects)[::-1]
        for name in order:
            if series[name].why_not:
                continue
            try:
                series[name].values.append(subjects[name]())
            except RunError as error:
                series[name] = Series([], f"failed in run {number + 1}: {error}")
            shown = series[name].why_not or series[name].values[-1]
            print(f"run {number + 1} of {runs}, {name}: {shown}", file=sys.stderr, flush=True)
    return series


def reasons(series: Mapping[str, Series[Measured]]) -> list[str]:
    """A line for each subject that has no figure; of what a failed process has said, the last line."""
    return [
        f"- {name}: not run: {each.why_not.strip().splitlines()[-1]}"
        for name, each in series.items()
        if each.why_not
    ]


class RunError(Exception):
    """A run gave no figure: what it needs is away, or it was not done within its time."""


def median(series: Series[float]) -> float | None:
    """Of the runs; None where there was none."""
    return statistics.median(series.values) if series.values else None


def percentile(values: list[float], share: float) -> float:
    """Nearest rank of at least one value."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
