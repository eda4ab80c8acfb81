"""The supervisor's end of its guardian: asks it for processes, tells it of leases, replaces it.

See docs/worker.md for what the guardian is for. Here it is the parent of every process of every task:
`spawn` gives a `ChildProcess` of which the guardian reports the end. A guardian that ends takes its
processes with it; their attempts are lost, and a new one is started.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias

from ostinato.clock import Clock, SystemClock
from ostinato.core.instants import SECOND
from ostinato.worker.child import ChildProcess
from ostinato.worker.guardian_messages import (
    CHANNEL_ARGUMENT,
    Configure,
    Container,
    ContainerGone,
    Farewell,
    Lease,
    Mark,
    Nodes,
    ReportTarget,
    Spawn,
    ToGuardian,
)
from ostinato.worker.guardian_process import GuardianProcess, NotStartedError
from ostinato.worker.process_control import become_subreaper
from ostinato.worker.process_limits import ProcessLimits
from ostinato.worker.process_tree import MARKER_VARIABLE
from ostinato.worker.waiting import within

_log = logging.getLogger("ostinato.worker")

#: As a part of a command: the number of the first descriptor that is passed on.
CHANNEL = os.fsdecode(CHANNEL_ARGUMENT)

_PING_US = SECOND // 2
#: So many questions in a row unanswered, each asked while this process itself went on: it is frozen.
_SILENT_PINGS_MAX = 8
#: As above for one that has not answered yet: a busy machine starts it slowly.
_SILENT_PINGS_MAX_AT_START = 60
_CLOSE_US = 10 * SECOND
_RESTART_PAUSE_US = SECOND
_REPLACED_US_MAX = 10 * SECOND


class Launched(Protocol):
    """A guardian process as its keeper uses it; see ``GuardianProcess``."""

    pid: int
    silent_count: int
    has_answered: bool
    is_gone: asyncio.Event
    ended_containers: set[str]

    def send(self, message: ToGuardian) -> None: ...

    def ask(self) -> None: ...

    def kill(self) -> None: ...

    async def spawn(self, spawn: Spawn, descriptors: Sequence[int]) -> ChildProcess: ...

    async def bury(self, *, is_expected: bool) -> None: ...


#: Starts a guardian process that holds the descriptor of the lock. Raises ``OSError``.
Launch: TypeAlias = Callable[[Configure, int], Launched]


def launch_process(configure: Configure, lock_descriptor: int) -> Launched:
    """Start a guardian as a process of this machine; what it leaves behind is adopted by this one."""
    become_subreaper()
    return GuardianProcess(configure, lock_descriptor=lock_descriptor)


class Guardian:
    """Keeps one guardian process. Used by one event loop."""

    def __init__(
        self, *, clock: Clock, report: ReportTarget | None = None, launch: Launch = launch_process
    ) -> None:
        """`report`: where it reports that the supervisor is gone; None: nowhere.

        The processes that it starts are marked with the id of its worker.
        """
        self._launch = launch
        self._mark = secrets.token_hex(8) if report is None else report.worker_id
        self._clock = clock
        offset_us = clock.offset_us if isinstance(clock, SystemClock) else 0
        self._configure = Configure(offset_us, report)
        self._lock_descriptor = -1
        self._process: Launched | None = None
        self._watching: asyncio.Task[None] | None = None
        self._lease: Lease | None = None
        self._nodes: Nodes | None = None
        self._containers: dict[str, Container] = {}
        self._is_closed = False
        self._has_process = asyncio.Event()
        #: Starts of a guardian; for tests and logs.
        self.start_count = 0

    @property
    def pid(self) -> int:
        """Process id of the guardian; 0 when there is none."""
        return 0 if self._process is None else self._process.pid

    async def start(self, *, lock_descriptor: int = -1) -> None:
        """Start the process, which keeps `lock_descriptor` open as long as it lives; idempotent.

        Raises ``OSError`` when no process can be had.
        """
        if self._watching is None:
            self._lock_descriptor = lock_descriptor
            self._process = self._new_process()
            self._watching = asyncio.create_task(self._watch(), name="ostinato-guardian")

    async def spawn(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        marker: str,
        directory: str | None = None,
        stdout: int,
        stderr: int,
        pass_fds: Sequence[int] = (),
        lease_ends_us: int | None = None,
        limits: ProcessLimits | None = None,
    ) -> ChildProcess:
        """Start `command` in a session of its own, with nothing on its standard input.

        `marker` tells its tree from others. `lease_ends_us` (boot time) is the end of the lease of what it
        runs. Raises ``NotStartedError`` when that is over, or no guardian can be had; and ``OSError`` and
        ``ValueError`` as ``subprocess.Popen`` does.
        """
        mark = f"{self._mark}.{marker}"
        return await (await self._present()).spawn(
            Spawn(
                number=0,
                command=[os.fsencode(part) for part in command],
                environment={
                    **{os.fsencode(name): os.fsencode(value) for name, value in env.items()},
                    MARKER_VARIABLE.encode(): mark.encode(),
                },
                marker=mark,
                directory=None if directory is None else os.fsencode(directory),
                descriptor_count=2 + len(pass_fds),
                lease_ends_us=lease_ends_us,
                limits=limits,
            ),
            [stdout, stderr, *pass_fds],
        )

    async def _present(self) -> Launched:
        """The guardian, waited for while it is being replaced."""
        if self._process is None and not self._is_closed:
            self._has_process.clear()
            with suppress(TimeoutError):
                await within(self._clock, self._has_process.wait(), limit_us=_REPLACED_US_MAX)
        if self._process is None or self._is_closed:
            raise NotStartedError("the worker's guardian is not running")
        return self._process

    def mark(self, pid: int, lease_ends_us: int | None) -> None:
        """Say when the lease of what runs in a child ends (boot time); None: it depends on none."""
        if self._process is not None:
            self._process.send(Mark(pid, lease_ends_us))

    def guard_container(self, container: Container) -> None:
        """Have a container ended when its lease is over, or this process is gone; say it again if that moves.

        To be said before it is made: a guardian that takes another's place is told of it too.
        """
        self._containers[container.name] = container
        if self._process is not None:
            self._process.send(container)

    def container_gone(self, name: str) -> None:
        """A container has been removed; unknown ones are ignored."""
        if self._containers.pop(name, None) is not None and self._process is not None:
            self._process.send(ContainerGone(name))
            self._process.ended_containers.discard(name)

    def has_ended_container(self, name: str) -> bool:
        """Whether the guardian has ended it because its lease was over."""
        return self._process is not None and name in self._process.ended_containers

    def lease(self, heartbeat_sequence: int, *, worker_lease_us: int, last_end_us: int) -> None:
        """Say which heartbeat is the newest that a lease rests on, and when the last one ends (boot time)."""
        self._lease = Lease(heartbeat_sequence, worker_lease_us, last_end_us)
        if self._process is not None:
            self._process.send(self._lease)

    def nodes(self, addresses: Sequence[str]) -> None:
        """Say where the nodes are to whom it may have to report."""
        self._nodes = Nodes(list(addresses))
        if self._process is not None:
            self._process.send(self._nodes)

    async def close(self) -> None:
        """End the guardian with everything that it still has; idempotent."""
        self._is_closed = True
        if self._watching is None:
            return
        if self._process is not None:
            self._process.send(Farewell())
        limit = asyncio.ensure_future(self._clock.sleep_until_us(self._clock.boot_us() + _CLOSE_US))
        await asyncio.wait([self._watching, limit], return_when=asyncio.FIRST_COMPLETED)
        limit.cancel()
        if not self._watching.done() and self._process is not None:
            self._process.kill()
        await self._watching

    def _new_process(self) -> Launched:
        process = self._launch(self._configure, self._lock_descriptor)
        self.start_count += 1
        self._has_process.set()
        for message in (self._lease, self._nodes, *self._containers.values()):
            if message is not None:
                process.send(message)
        return process

    async def _watch(self) -> None:
        """Ask the guardian for signs of life, and start another one when it has gone."""
        while True:
            process = self._process
            if process is not None:
                await self._until_gone(process)
                await process.bury(is_expected=self._is_closed)
                self._process = None
                if not self._is_closed:
                    _log.error("guardian_lost", extra={"process_id": process.pid})
            if self._is_closed:
                return
            try:
                self._process = self._new_process()
            except OSError as error:
                _log.error("guardian_not_started", extra={"reason": str(error)})
            if self._process is None or process is None or not process.has_answered:
                await self._clock.sleep_until_us(self._clock.boot_us() + _RESTART_PAUSE_US)

    async def _until_gone(self, process: Launched) -> None:
        gone = asyncio.ensure_future(process.is_gone.wait())
        try:
            while not gone.done():
                process.ask()
                if process.silent_count > (
                    _SILENT_PINGS_MAX if process.has_answered else _SILENT_PINGS_MAX_AT_START
                ):
                    _log.error("guardian_silent", extra={"process_id": process.pid})
                    process.kill()
                tick = asyncio.ensure_future(self._clock.sleep_until_us(self._clock.boot_us() + _PING_US))
                await asyncio.wait([gone, tick], return_when=asyncio.FIRST_COMPLETED)
                tick.cancel()
        finally:
            gone.cancel()
