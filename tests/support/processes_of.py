"""The processes of a worker by their role, as an outsider finds them; and whether processes are gone."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass, field

import psutil

GUARDIAN = "ostinato.worker.guardian_main"
SLOT = "ostinato.worker.slot_main"
LOOP = "ostinato.worker.loop_main"


@dataclass
class WorkerProcesses:
    """All processes that descend from one supervisor. `others` are commands and what they started."""

    supervisor: psutil.Process
    guardians: list[psutil.Process] = field(default_factory=list)
    slots: list[psutil.Process] = field(default_factory=list)
    loops: list[psutil.Process] = field(default_factory=list)
    others: list[psutil.Process] = field(default_factory=list)

    @property
    def tasks(self) -> list[psutil.Process]:
        """All that runs or may run a task."""
        return [*self.slots, *self.loops, *self.others]

    @property
    def all(self) -> list[psutil.Process]:
        return [self.supervisor, *self.guardians, *self.tasks]


def processes_of(supervisor_pid: int) -> WorkerProcesses:
    """What is there at this moment; raises ``psutil.NoSuchProcess`` if there is no supervisor."""
    found = WorkerProcesses(psutil.Process(supervisor_pid))
    for process in found.supervisor.children(recursive=True):
        try:
            command = process.cmdline()
        except psutil.NoSuchProcess:
            continue  # ended while we looked
        if GUARDIAN in command:
            found.guardians.append(process)
        elif SLOT in command:
            found.slots.append(process)
        elif LOOP in command:
            found.loops.append(process)
        else:
            found.others.append(process)
    return found


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Signal processes; those that have ended are passed over, as is whoever has their pids now."""
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue  # what was to be signalled is gone already


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended; a zombie has."""
    return [process for process in processes if is_living(process)]


def is_living(process: psutil.Process) -> bool:
    """Whether exactly this process still lives."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
