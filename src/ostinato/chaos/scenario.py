"""A scenario: what may be touched, what is done to it and when, and what must hold afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from ostinato.core.instants import MINUTE, SECOND, format_duration
from ostinato.settings_readers import Address

#: What a fault does; each belongs to one kind of target.
Verb: TypeAlias = Literal["kill", "pause", "cut", "delay", "fill", "run"]
#: A text for ``/bin/sh -c``, or words.
Command: TypeAlias = str | tuple[str, ...]


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process that may be killed and paused: found by one of four ways, or started by chaos itself."""

    name: str = ""
    pid: int | None = None
    #: When it was started; None: not said.
    started_us: int | None = None
    pidfile: str = ""
    #: Its whole command line, which exactly one process of this user must have.
    command_line: str = ""
    #: A part of its command line, to tell it from whoever has its pid by now.
    command: str = ""
    start: Command = ()
    environment: dict[str, str] = {}
    log: str = ""
    #: Run after it was killed.
    again: Command = ()
    again_after_us: int = SECOND


class Proxy(msgspec.Struct, frozen=True, kw_only=True):
    """A listening address of chaos that forwards to a target."""

    name: str = ""
    listen: Address
    target: Address


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """A folder on the disk that may be filled."""

    name: str = ""
    folder: str
    leave_free_bytes: int


class CommandEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A command of the user's that breaks something, and one that mends it."""

    name: str = ""
    run: Command
    undo: Command = ()
    limit_us: int = MINUTE


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One fault on the schedule."""

    verb: Verb = "kill"
    target: str
    #: From the beginning of the schedule.
    at_us: int
    #: How long it lasts; None: it is over at once.
    for_us: int | None = None
    #: Of a delay, in each direction.
    by_us: int = 0
    how: str = "reset"
    every_us: int | None = None
    times: int = 1
    #: Which entry of ``steps`` it is.
    index: int = 0

    @property
    def words(self) -> str:
        """``pause node-a for 5s``."""
        parts = [self.verb, self.target]
        if self.verb == "delay":
            parts += ["by", format_duration(self.by_us)]
        if self.verb == "cut" and self.how != "reset":
            parts.append(self.how)
        if self.for_us is not None:
            parts += ["for", format_duration(self.for_us)]
        return " ".join(parts)

    @property
    def end_us(self) -> int:
        """When it is over, from the beginning of the schedule."""
        return self.at_us + (self.for_us or 0)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Instances of a task of the user's, submitted at a steady rate while things break."""

    url: str
    task: str
    namespace: str = "default"
    #: Submissions a second.
    rate: float
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    #: Longest run of one attempt, undisturbed.
    runs_for_us: int = 10 * SECOND
    worker_lease_us: int = MINUTE
    #: Longest wait for all of them to end, after the schedule.
    settle_us: int = 5 * MINUTE

    @property
    def hang_bound_us(self) -> int:
        """I9: longest time after the last fault that an attempt from before may go on."""
        return 2 * OWNERSHIP_LEASE_US + self.worker_lease_us + 2 * SECOND + self.runs_for_us


#: Not a setting of the scheduler's, so that it is not one here.
OWNERSHIP_LEASE_US = 3 * SECOND


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file."""

    #: Where relative paths begin and commands are run: the file's own folder.
    folder: Path = Path()
    processes: dict[str, Process] = {}
    proxies: dict[str, Proxy] = {}
    disks: dict[str, Disk] = {}
    commands: dict[str, CommandEntry] = {}
    #: What must answer: an HTTP address with 2xx, or ``HOST:PORT`` a connection.
    probes: dict[str, str] = {}
    steps: tuple[Step, ...]
    #: How long the schedule goes on; None: until the last fault is over.
    lasts_us: int | None = None
    #: Longest time from the end of a fault until all probes answer.
    recover_within_us: int = MINUTE
    workload: Workload | None = None
    #: Folder in which tasks write down what they do; empty: they do not.
    witness: str = ""

    @property
    def schedule(self) -> list[Step]:
        """Every fault in its order, repeated ones each time."""
        found = [
            msgspec.structs.replace(step, at_us=step.at_us + turn * (step.every_us or 0))
            for step in self.steps
            for turn in range(step.times)
        ]
        return sorted(found, key=lambda step: (step.at_us, step.index))

    @property
    def end_us(self) -> int:
        """When the schedule is over, from its beginning."""
        last_us = max((step.end_us for step in self.schedule), default=0)
        return max(last_us, self.lasts_us or 0)

    def path(self, text: str) -> Path:
        """A path as the scenario means it."""
        return self.folder / text
