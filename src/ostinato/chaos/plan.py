"""The plan of a scenario: what it would touch, as it is now, and what it would do, without doing it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ostinato.chaos.ballast import free_bytes, shown_size
from ostinato.chaos.commands import shown_command
from ostinato.chaos.own_process import OwnProcess
from ostinato.chaos.scenario import Scenario
from ostinato.chaos.targets import Target, find_target
from ostinato.core.instants import format_duration
from ostinato.core.url_text import shown_url
from ostinato.errors import UserError


def check_targets(scenario: Scenario) -> dict[str, Target]:
    """The processes that run already, each found and verified. Raises ``CHAOS_REFUSED``."""
    for name, disk in scenario.disks.items():
        _require_folder(scenario.path(disk.folder), field=f"disks.{name}.folder")
    if scenario.witness:
        _require_folder(scenario.path(scenario.witness), field="witness")
    return {
        name: find_target(process, scenario)
        for name, process in scenario.processes.items()
        if not process.start
    }


def _require_folder(folder: Path, *, field: str) -> None:
    if not folder.is_dir():
        hint = "make it, or correct the path; relative ones begin at the scenario's folder"
        raise UserError("CHAOS_REFUSED", f"there is no folder {folder}", field=field, hint=hint)


def plan_lines(scenario: Scenario) -> Iterator[str]:
    """The plan for people. Raises ``CHAOS_REFUSED`` for what a run would refuse."""
    plan = plan_json(scenario)
    for kind in ("processes", "proxies", "disks", "commands", "probes"):
        for entry in plan[kind]:
            yield f"{kind} {entry['name']}: {entry['what']}"
    if plan["workload"]:
        yield f"workload: {plan['workload']}"
    for step in plan["steps"]:
        yield f"+{step['at']:<8} {step['what']}"
    yield f"+{plan['ends']:<8} the schedule is over"
    yield "nothing was done; with --yes-break-things it is"


def plan_json(scenario: Scenario) -> dict[str, Any]:
    """The plan for programs. Raises ``CHAOS_REFUSED`` for what a run would refuse."""
    targets = check_targets(scenario)
    return {
        "processes": [
            {"name": name, "what": _process_words(name, scenario, targets)} for name in scenario.processes
        ],
        "proxies": [
            {"name": name, "what": f"listens at {proxy.listen}, forwards to {proxy.target}"}
            for name, proxy in scenario.proxies.items()
        ],
        "disks": [{"name": name, "what": _disk_words(name, scenario)} for name in scenario.disks],
        "commands": [
            {
                "name": name,
                "what": shown_command(command.run)
                + (f"; undone by {shown_command(command.undo)}" if command.undo else ""),
            }
            for name, command in scenario.commands.items()
        ],
        "probes": [{"name": name, "what": probe} for name, probe in scenario.probes.items()],
        "workload": _workload_words(scenario),
        "steps": [
            {"at": format_duration(step.at_us), "what": step.words, "step": step.index}
            for step in scenario.schedule
        ],
        "ends": format_duration(scenario.end_us),
    }


def _process_words(name: str, scenario: Scenario, targets: dict[str, Target]) -> str:
    process = scenario.processes[name]
    if process.start:
        log = OwnProcess(process, scenario).log
        return f"started and ended by chaos: {shown_command(process.start)}, its output in {log}"
    again = f"; after a kill {shown_command(process.again)}" if process.again else ""
    return f"{targets[name].words}{again}"


def _disk_words(name: str, scenario: Scenario) -> str:
    disk = scenario.disks[name]
    folder = scenario.path(disk.folder)
    now_bytes = free_bytes(folder)
    taken_bytes = max(0, now_bytes - disk.leave_free_bytes)
    return (
        f"{folder}: {shown_size(now_bytes)} free, of which {shown_size(taken_bytes)} would be taken "
        f"and {shown_size(disk.leave_free_bytes)} left"
    )


def _workload_words(scenario: Scenario) -> str:
    workload = scenario.workload
    if workload is None:
        return ""
    return f"{workload.rate:g} a second of {workload.namespace}/{workload.task} at {shown_url(workload.url)}"
