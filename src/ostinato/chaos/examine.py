"""What is so before anything is broken: all that a scenario names, looked at and not touched; pure looks.

All that is wrong is found at once. What answers only once chaos has opened its proxies and started its own
processes is told as it is now, and is no fault.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ostinato.chaos.ballast import free_bytes, shown_size
from ostinato.chaos.commands import require_program
from ostinato.chaos.own_process import OwnProcess
from ostinato.chaos.probes import Probes, connect
from ostinato.chaos.proxy import bound_socket
from ostinato.chaos.scenario import CommandEntry, Disk, Scenario
from ostinato.chaos.targets import Target, find_target
from ostinato.clock import Clock
from ostinato.control.document.errors import InvalidDocument
from ostinato.errors import ConflictError, OstinatoError, UserError
from ostinato.settings_readers import Address


class Examined:
    """What a look has found: processes, what is wrong, and how things are, by their fields."""

    def __init__(self) -> None:
        #: Processes that run already, by name.
        self.targets: dict[str, Target] = {}
        self.faults: list[UserError] = []
        #: How what can be asked is at this moment, by field: ``answers``, ``does not answer: …``.
        self.now: dict[str, str] = {}

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep what the block is refused for, and go on after it."""
        try:
            yield
        except UserError as fault:
            self.faults.append(fault)

    def require(self) -> None:
        """Raise ``CHAOS_REFUSED`` with all that is wrong."""
        if self.faults:
            raise InvalidDocument(self.faults)


def examine(scenario: Scenario) -> Examined:
    """Look at processes, programs, folders, disks and ports; nobody is asked anything."""
    found = Examined()
    for name, process in scenario.processes.items():
        with found.keeping():
            if process.start:
                OwnProcess(process, scenario).check()
            else:
                target = find_target(process, scenario)
                _require_single(name, target, found)
                found.targets[name] = target
        if process.again:
            with found.keeping():
                require_program(process.again, folder=scenario.folder, field=f"processes.{name}.again")
    for name, proxy in scenario.proxies.items():
        with found.keeping():
            _require_free_port(proxy.listen, field=f"proxies.{name}.listen")
    for name, disk in scenario.disks.items():
        with found.keeping():
            _require_room(disk, scenario, field=f"disks.{name}")
    for name, command in scenario.commands.items():
        _examine_command(command, scenario, found, field=f"commands.{name}")
    if scenario.witness:
        with found.keeping():
            _require_folder(scenario.path(scenario.witness), field="witness")
    return found


async def examine_all(scenario: Scenario, *, clock: Clock) -> Examined:
    """As `examine`, and ask what answers: targets of proxies, probes, the workload's API for its task."""
    found = examine(scenario)
    has_own = any(process.start for process in scenario.processes.values())
    for name, proxy in scenario.proxies.items():
        why = await connect(proxy.target)
        _note(found, f"proxies.{name}.target", why, is_early=has_own)
    is_early = has_own or bool(scenario.proxies)
    async with Probes(scenario.probes, clock=clock) as probes:
        silent = await probes.silent()
    for name in scenario.probes:
        _note(found, f"probes.{name}", silent.get(name, ""), is_early=is_early)
    if scenario.workload is not None:
        # Not at the top: it brings the whole SDK, which most scenarios do without.
        from ostinato.chaos.workload import require_task

        try:
            await require_task(scenario.workload, clock=clock)
        except OstinatoError as error:
            field = "workload.task" if error.code in ("TASK_NOT_FOUND", "INVALID_NAME") else "workload.url"
            _note(found, field, error.message, is_early=is_early, hint=error.hint)
        else:
            found.now["workload.task"] = "is known there"
    return found


def _note(found: Examined, field: str, why: str, *, is_early: bool, hint: str = "") -> None:
    """What came of asking; a fault unless chaos itself may still bring what was asked."""
    if not why:
        found.now[field] = "answers"
    elif is_early:
        found.now[field] = f"not yet: {why}"
    else:
        found.now[field] = f"does not answer: {why}"
        hint = hint or "look whether it runs and the address is right"
        found.faults.append(UserError("CHAOS_REFUSED", why, field=field, hint=hint))


def _require_single(name: str, target: Target, found: Examined) -> None:
    """One process under two names would be paused twice, and continued with the end of the first pause."""
    for other, known in found.targets.items():
        if known.process == target.process:
            message = f"{name} and {other} are one process, {target.pid}"
            hint = "name it once, and use that name in all steps"
            raise UserError("CHAOS_REFUSED", message, subject=name, field=f"processes.{name}", hint=hint)


def _require_free_port(listen: Address, *, field: str) -> None:
    try:
        bound_socket(listen).close()
    except ConflictError as error:
        hint = "end what listens there, or let the proxy listen elsewhere"
        raise UserError("CHAOS_REFUSED", error.message, field=field, hint=hint) from None


def _require_folder(folder: Path, *, field: str) -> None:
    if not folder.is_dir():
        hint = "make it, or correct the path; relative ones begin at the scenario's folder"
        raise UserError("CHAOS_REFUSED", f"there is no folder {folder}", field=field, hint=hint)


def _require_room(disk: Disk, scenario: Scenario, *, field: str) -> None:
    folder = scenario.path(disk.folder)
    _require_folder(folder, field=f"{field}.folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError("CHAOS_REFUSED", f"{folder} is not writable", field=f"{field}.folder")
    room_bytes = free_bytes(folder)
    if room_bytes <= disk.leave_free_bytes:
        message = (
            f"{folder} has {shown_size(room_bytes)} free, and {shown_size(disk.leave_free_bytes)} are left"
        )
        hint = "nothing could be taken: free some room, or leave less"
        raise UserError("CHAOS_REFUSED", message, field=f"{field}.leave_free", hint=hint)


def _examine_command(command: CommandEntry, scenario: Scenario, found: Examined, *, field: str) -> None:
    with found.keeping():
        require_program(command.run, folder=scenario.folder, field=f"{field}.run")
    if command.undo:
        with found.keeping():
            require_program(command.undo, folder=scenario.folder, field=f"{field}.undo")
