"""What the witness and the database say at the end: lost, overlapping, repeated, beyond the policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ostinato.chaos import witness
from ostinato.chaos.witness import Execution

#: Of the policy in ``witness_app``.
MAX_RETRY = 5
MAX_LOST = 50


class Row(NamedTuple):
    """What the database says of one submission."""

    number: int
    task: str
    state: str
    attempt: int


class Verdict(NamedTuple):
    """All that must be empty, and what is only counted."""

    lost: list[str]
    overlaps: list[str]
    beyond_policy: list[str]
    #: Numbers whose task ran to its end more often than its story asks for: their result was lost.
    repeated_count: int
    execution_count: int
    accepted_count: int

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.overlaps or self.beyond_policy)


def read_executions(folder: Path) -> dict[int, list[Execution]]:
    """By number, in order of their starts; a line that a kill has cut is left out."""
    return {int(number): ran for number, ran in witness.read_executions(folder).items()}


def read_accepted(path: Path) -> dict[int, str]:
    """Number and task of what was accepted."""
    pairs = (line.split(" ") for line in path.read_text("utf-8").splitlines())
    return {int(number): task for number, task in pairs}


def decision_latencies_ms(
    decisions: Iterable[tuple[int, int, int]],
    executions: Mapping[int, list[Execution]],
    *,
    wall_offset_ns: int,
) -> list[float]:
    """From the last line of a failed attempt to the commit of its retry; each (number, attempt, instant)."""
    ends = {
        (number, execution.attempt): execution.last_ns
        for number, ran in executions.items()
        for execution in ran
        if execution.has_ended
    }
    return sorted(
        (at_us * 1000 - wall_offset_ns - ends[number, attempt]) / 1e6
        for number, attempt, at_us in decisions
        if (number, attempt) in ends
    )


def judge(
    accepted: Mapping[int, str], rows: Mapping[int, Row], *, executions: Mapping[int, list[Execution]]
) -> Verdict:
    """Compare what was accepted with what is stored and what was executed."""
    lost: list[str] = []
    beyond: list[str] = []
    repeated_count = 0
    for number, task in accepted.items():
        row = rows.get(number)
        if row is None:
            lost.append(f"{number}: accepted, and there is no instance")
            continue
        ran = executions.get(number, [])
        if row.state != "success":
            lost.append(f"{number} ({task}): {row.state} after {len(ran)} executions")
        elif not any(execution.has_ended for execution in ran):
            lost.append(f"{number} ({task}): success, and nobody saw it end")
        needed = 3 if task.startswith("flaky") else 1
        ended_count = sum(execution.has_ended for execution in ran)
        repeated_count += ended_count > needed
        if row.attempt > MAX_RETRY + MAX_LOST + 2:
            beyond.append(f"{number}: {row.attempt} attempts")
    overlaps = witness.overlaps({str(number): ran for number, ran in executions.items()})
    count = sum(len(ran) for ran in executions.values())
    return Verdict(lost, overlaps, beyond, repeated_count, count, len(accepted))
