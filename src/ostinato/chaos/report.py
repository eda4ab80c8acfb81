"""The report of a run: what happened, what recovered and how long it took, what was violated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ostinato.chaos.scenario import Step
from ostinato.chaos.verdict import Violation, WorkloadReport
from ostinato.core.instants import MILLISECOND, SECOND, format_duration, format_instant

#: Of one rule, in the report for people.
_VIOLATIONS_SHOWN_MAX = 20


class FaultReport(msgspec.Struct, kw_only=True):
    """One fault: when it was done, to what exactly, and how long the probes needed after it."""

    step: Step
    began_us: int | None = None
    #: When all that it broke was restored.
    ended_us: int | None = None
    detail: str = ""
    #: Why it could not be done; empty: it was.
    error: str = ""
    #: What of it could not be restored, and why; empty: all of it was.
    unrestored: str = ""
    #: From its end until all probes answered and a killed process had a successor; None: they did not.
    recovered_after_us: int | None = None


class Report(msgspec.Struct, kw_only=True):
    """A whole run. `interrupted` names the signal that ended it early; then nothing was judged."""

    scenario: str
    began_us: int
    ended_us: int | None = None
    faults: list[FaultReport] = []
    #: How long each probe did not answer, altogether.
    away_us: dict[str, int] = {}
    workload: WorkloadReport | None = None
    #: Executions that the witness saw; None: there is none.
    executions: int | None = None
    #: What was restored on the way out, because its fault had not come to its end.
    restored: list[str] = []
    violations: list[Violation] = []
    interrupted: str = ""

    @property
    def is_good(self) -> bool:
        """Whether nothing was violated."""
        return not self.violations


def report_json(report: Report) -> dict[str, Any]:
    """What ``--json`` shows; durations are texts with units, instants ISO 8601."""
    return {
        "ok": report.is_good,
        "scenario": report.scenario,
        "began": _instant(report.began_us),
        "ended": _instant(report.ended_us),
        "interrupted": report.interrupted or None,
        "faults": [_fault_json(fault) for fault in report.faults],
        "probes": [{"name": name, "away": shown_lag(away_us)} for name, away_us in report.away_us.items()],
        "workload": None if report.workload is None else msgspec.to_builtins(report.workload),
        "executions": report.executions,
        "restored": report.restored,
        "violations": [{"rule": found.rule, "what": found.what} for found in report.violations],
    }


def report_lines(report: Report) -> Iterator[str]:
    """The report for people."""
    for fault in report.faults:
        yield f"+{format_duration(fault.step.at_us):<8} {fault.step.words}: {_fault_words(fault)}"
    for name, away_us in report.away_us.items():
        if away_us:
            yield f"probe {name}: did not answer for {shown_lag(away_us)} altogether"
    if report.workload is not None:
        yield _workload_line(report.workload)
    if report.executions is not None:
        yield f"witness: {report.executions} executions"
    for what in report.restored:
        yield f"restored on the way out: {what}"
    if report.interrupted:
        yield f"ended early by {report.interrupted}; nothing was judged"
    yield from _violation_lines(report.violations)
    if report.is_good and not report.interrupted:
        yield "nothing was violated"


def _violation_lines(violations: Sequence[Violation]) -> Iterator[str]:
    by_rule: dict[str, list[Violation]] = {}
    for found in violations:
        by_rule.setdefault(found.rule, []).append(found)
    for rule, of_rule in by_rule.items():
        for found in of_rule[:_VIOLATIONS_SHOWN_MAX]:
            yield f"VIOLATED {rule}: {found.what}"
        if len(of_rule) > _VIOLATIONS_SHOWN_MAX:
            yield f"VIOLATED {rule}: {len(of_rule)} times altogether; --json shows all"


def _fault_json(fault: FaultReport) -> dict[str, Any]:
    return {
        "fault": fault.step.verb,
        "target": fault.step.target,
        "step": fault.step.index,
        "at": format_duration(fault.step.at_us),
        "began": _instant(fault.began_us),
        "ended": _instant(fault.ended_us),
        "detail": fault.detail or None,
        "error": fault.error or None,
        "not_restored": fault.unrestored or None,
        "recovered_after": None if fault.recovered_after_us is None else shown_lag(fault.recovered_after_us),
    }


def _fault_words(fault: FaultReport) -> str:
    if fault.error:
        return f"could not be done: {fault.error}"
    if fault.began_us is None:
        return "did not come to that"
    if fault.ended_us is None:
        return "was not over"
    if fault.unrestored:
        return f"{fault.detail}; not restored"
    if fault.recovered_after_us is None:
        return f"{fault.detail}; not recovered"
    return f"{fault.detail}; recovered {shown_lag(fault.recovered_after_us)} after it"


def _workload_line(workload: WorkloadReport) -> str:
    states = ", ".join(f"{count} {state}" for state, count in sorted(workload.states.items()))
    line = f"workload: {workload.accepted} accepted: {states or 'none'}; {workload.attempts} attempts, "
    line += f"{workload.failures} failed, {workload.lost} lost"
    if workload.repeated:
        line += f"; {workload.repeated} calls repeated"
    if workload.unanswered:
        line += f"; {workload.unanswered} without an answer"
    return line


def _instant(instant_us: int | None) -> str | None:
    return None if instant_us is None else format_instant(instant_us)


def shown_lag(duration_us: int) -> str:
    """How long something took, to the millisecond, above ten seconds to the tenth."""
    step_us = MILLISECOND if duration_us < 10 * SECOND else SECOND // 10
    return format_duration(duration_us // step_us * step_us)
