"""The plan of a scenario: what it would touch, as it is now, and what it would do, without doing it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ostinato.chaos.ballast import free_bytes, shown_size
from ostinato.chaos.commands import shown_command
from ostinato.chaos.examine import Examined
from ostinato.chaos.own_process import OwnProcess
from ostinato.chaos.scenario import Scenario, Step
from ostinato.core.instants import format_duration
from ostinato.core.url_text import shown_url, without_passwords

#: Whose disk everybody needs.
_SYSTEM_FOLDERS = ("/", "/tmp", "/var")


def plan_lines(scenario: Scenario, found: Examined) -> Iterator[str]:
    """The plan for people: everything that a run would touch and do, also what is wrong with it."""
    plan = plan_json(scenario, found)
    for kind in ("processes", "proxies", "disks", "commands", "probes"):
        for entry in plan[kind]:
            yield f"{kind} {entry['name']}: {entry['what']}"
    if plan["workload"]:
        yield f"workload: {plan['workload']}"
    if plan["witness"]:
        yield f"witness: {plan['witness']}"
    for step in plan["steps"]:
        yield f"+{step['at']:<8} {step['what']}"
    yield f"+{plan['ends']:<8} the schedule is over"
    for fault in plan["wrong"]:
        yield f"wrong: {fault['field']}: {fault['what']}"
    yield "nothing was done; " + (
        "a run would be refused" if plan["wrong"] else "with --yes-break-things it is"
    )


def plan_json(scenario: Scenario, found: Examined) -> dict[str, Any]:
    """The plan for programs; `wrong` is what a run would be refused for."""
    return {
        "processes": [
            {"name": name, "what": _process_words(name, scenario, found)} for name in scenario.processes
        ],
        "proxies": [
            {
                "name": name,
                "what": f"listens at {proxy.listen}, forwards to {proxy.target}"
                + _now(found, f"proxies.{name}.target", " (which {})"),
            }
            for name, proxy in scenario.proxies.items()
        ],
        "disks": [{"name": name, "what": _disk_words(name, scenario)} for name in scenario.disks],
        "commands": [
            {
                "name": name,
                "what": shown_command(command.run)
                + (f"; undone by {shown_command(command.undo)}" if command.undo else "; never undone"),
            }
            for name, command in scenario.commands.items()
        ],
        "probes": [
            {"name": name, "what": without_passwords(probe) + _now(found, f"probes.{name}")}
            for name, probe in scenario.probes.items()
        ],
        "workload": _workload_words(scenario, found),
        "witness": str(scenario.path(scenario.witness)) if scenario.witness else "",
        "steps": [
            {"at": format_duration(step.at_us), "what": _step_words(step, scenario), "step": step.index}
            for step in scenario.schedule
        ],
        "ends": format_duration(scenario.end_us),
        "wrong": [
            {"field": fault.field, "what": fault.message, "hint": fault.hint or None}
            for fault in found.faults
        ],
    }


def _now(found: Examined, field: str, form: str = ": {}") -> str:
    """How it is at this moment, where somebody has asked."""
    return form.format(found.now[field]) if field in found.now else ""


def _step_words(step: Step, scenario: Scenario) -> str:
    """What a step does, and how that ends where the step itself does not say so."""
    if step.verb == "kill":
        process = scenario.processes[step.target]
        if process.start or process.again:
            by = "chaos" if process.start else shown_command(process.again)
            after = format_duration(process.again_after_us)
            return f"{step.words}; started again after {after} by {by}"
        return f"{step.words}; somebody else starts it again"
    if step.verb == "run" and step.for_us is None and scenario.commands[step.target].undo:
        return f"{step.words}; undone at the end"
    return step.words


def _process_words(name: str, scenario: Scenario, found: Examined) -> str:
    process = scenario.processes[name]
    if process.start:
        log = OwnProcess(process, scenario).log
        return f"started and ended by chaos: {shown_command(process.start)}, its output in {log}"
    again = f"; after a kill {shown_command(process.again)}" if process.again else ""
    if name not in found.targets:
        return "not found, or not to be touched"
    return f"{found.targets[name].words}{again}"


def _disk_words(name: str, scenario: Scenario) -> str:
    disk = scenario.disks[name]
    folder = scenario.path(disk.folder)
    if not folder.is_dir():
        return f"{folder}: not found"
    now_bytes = free_bytes(folder)
    taken_bytes = max(0, now_bytes - disk.leave_free_bytes)
    return (
        f"{folder}: {shown_size(now_bytes)} free, of which {shown_size(taken_bytes)} would be taken "
        f"and {shown_size(disk.leave_free_bytes)} left{_shared_words(folder)}"
    )


def _shared_words(folder: Path) -> str:
    """Whether what is filled is the system's own disk too."""
    device = folder.stat().st_dev
    same = [name for name in _SYSTEM_FOLDERS if Path(name).is_dir() and Path(name).stat().st_dev == device]
    return f"; this is also the disk of {' and '.join(same)}" if same else ""


def _workload_words(scenario: Scenario, found: Examined) -> str:
    workload = scenario.workload
    if workload is None:
        return ""
    what = f"{workload.rate:g} a second of {workload.namespace}/{workload.task} at {shown_url(workload.url)}"
    return what + _now(found, "workload.url") + _now(found, "workload.task", ": the task {}")
