"""A simulated guardian: the rules of ``worker/guardian_main.py``, on the processes of a simulated machine.

The supervisor's end is the real ``worker/guardian.py``; what is here stands for the guardian's process, and
for the kernel, which tells it of exits and kills its children when it is killed itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress

from ostinato.errors import OstinatoError, invariant
from ostinato.simulation.event_loop import Handle
from ostinato.simulation.machine import Machine
from ostinato.simulation.process import Process
from ostinato.wire.protocol import WorkerTransport
from ostinato.worker.guardian_main import KILL_MARGIN_US, START_MARGIN_US
from ostinato.worker.guardian_messages import (
    Configure,
    Container,
    ContainerGone,
    Exited,
    Farewell,
    Lease,
    LeaseEnded,
    Mark,
    Nodes,
    NotSpawned,
    Ping,
    Pong,
    Release,
    Report,
    Spawn,
    Spawned,
    ToGuardian,
)
from ostinato.worker.guardian_report import NotRecordedError, SpoolAccess, deliver

#: Makes the transport of a process that reports.
TransportOf = Callable[[Process], WorkerTransport]
#: What a killed process takes to vanish, at most; microseconds.
KILL_US_MAX = 5_000


class Root:
    """A process that was started for the supervisor, as the guardian knows it."""

    def __init__(self, pid: int, process: Process, *, lease_ends_us: int | None) -> None:
        self.pid = pid
        self.process = process
        self.lease_ends_us = lease_ends_us
        self.has_exited = False


class GuardianProgram:
    """What runs in the guardian's process. `handle` and `supervisor_gone` are called by that process."""

    def __init__(
        self,
        machine: Machine,
        process: Process,
        *,
        send: Callable[..., None],
        transport_of: TransportOf,
        lock: str,
    ) -> None:
        """`send` takes a ``FromGuardian``, and with a ``Spawned`` the process.

        `lock` names the spool's lock that it holds, empty: none.
        """
        self._machine = machine
        self.process = process
        self._send = send
        self._transport_of = transport_of
        self._lock = lock
        self._roots: dict[int, Root] = {}
        self._configured = Configure(0)
        self._lease = Lease(0, 0)
        self._owes_report = False
        self.is_over = False
        self._look: Handle | None = None

    # ── what the supervisor says ──────────────────────────────────────────────────────────────────────

    def handle(self, message: ToGuardian) -> None:
        """One message."""
        if self.is_over:
            return
        if isinstance(message, Ping):
            self._send(Pong(message.number))
        elif isinstance(message, Mark):
            root = self._roots.get(message.pid)
            if root is not None:
                root.lease_ends_us = message.lease_ends_us
                self._look_again()
        elif isinstance(message, Lease):
            if message.heartbeat_sequence != self._lease.heartbeat_sequence:
                self._owes_report = False
            self._lease = message
            self._look_again()
        elif isinstance(message, Spawn):
            self._spawn(message)
        elif isinstance(message, Release):
            root = self._roots.get(message.pid)
            if root is not None and root.has_exited:
                del self._roots[message.pid]
        elif isinstance(message, Farewell):
            self._end_all(is_expected=True)
        elif isinstance(message, Nodes):
            report = self._configured.report
            if report is not None and report.addresses:
                report.addresses = message.addresses
        elif isinstance(message, Container | ContainerGone):
            # Workers of the simulator have no executor that asks an engine.
            invariant(False, "containers", "nothing of the simulator runs one", subject=message.name)
        else:
            self._configured = copy.deepcopy(message)

    def supervisor_gone(self) -> None:
        """The socket has ended, after everything that was said on it."""
        if not self.is_over:
            self._end_all(is_expected=False)

    def _spawn(self, spawn: Spawn) -> None:
        if self._is_lease_over(spawn.lease_ends_us, START_MARGIN_US):
            reason = "its lease was over just before its start"
            self._send(NotSpawned(spawn.number, 0, reason, is_lease_over=True))
            return
        pid = self._machine.next_number()
        process = self._machine.process("task", mark=spawn.marker.partition(".")[0])
        root = Root(pid, process, lease_ends_us=spawn.lease_ends_us)
        self._roots[pid] = root
        to_guardian = self._machine.pipe(self.process)
        process.on_crash(lambda: to_guardian.post(self._exited, root))
        self._die_with_parent(process)
        self._send(Spawned(spawn.number, pid, pid), process)

    def _die_with_parent(self, child: Process) -> None:
        loop, machine = self._machine.loop, self._machine

        def parent_died() -> None:
            took_us = int(machine.rng.random() * KILL_US_MAX)
            loop.call_at_us(loop.true_us + took_us, child.crash)

        self.process.on_crash(parent_died)
        child.on_crash(lambda: self.process.forget(parent_died))

    def _exited(self, root: Root) -> None:
        root.has_exited = True
        root.lease_ends_us = None
        self._send(Exited(root.pid, -9, is_alone=True))

    # ── leases ────────────────────────────────────────────────────────────────────────────────────────

    def _look_again(self) -> None:
        """Be woken when the first lease is over."""
        ends = [root.lease_ends_us for root in self._roots.values() if root.lease_ends_us is not None]
        if self._owes_report:
            ends.append(self._lease.last_end_us)
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if ends and not self.is_over:
            wait_us = max(0, min(ends) - KILL_MARGIN_US - self._machine.clock.boot_us())
            loop = self._machine.loop
            self._look = loop.call_at_us(
                loop.true_us + self._machine.clock.true_us_for(wait_us), self._on_look
            )

    def _on_look(self) -> None:
        self._look = None
        self._end_unleased()
        self._look_again()

    def _is_lease_over(self, lease_ends_us: int | None, margin_us: int) -> bool:
        return lease_ends_us is not None and self._machine.clock.boot_us() >= lease_ends_us - margin_us

    def _end_unleased(self) -> None:
        over = [
            root for root in self._roots.values() if self._is_lease_over(root.lease_ends_us, KILL_MARGIN_US)
        ]
        if over:
            for root in over:
                root.lease_ends_us = None
                root.process.crash()
            self._send(LeaseEnded([root.pid for root in over]))
            self._owes_report = True
        if self._owes_report and self._is_lease_over(self._lease.last_end_us, KILL_MARGIN_US):
            self._owes_report = any(root.lease_ends_us is not None for root in self._roots.values())
            if not self._owes_report:
                self._report("its lease ended", heartbeat_sequence=self._lease.heartbeat_sequence)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────

    def _end_all(self, *, is_expected: bool) -> None:
        self.is_over = True
        for root in self._roots.values():
            root.process.crash()
        reporting = None
        if not is_expected:
            reporting = self._report("the supervisor is gone", heartbeat_sequence=None)
        if reporting is None:
            self.process.crash()
        else:
            # It keeps the spool's lock until the report is there, or too late.
            reporting.on_crash(lambda: self.process.call_soon(self.process.crash))

    def _report(self, reason: str, *, heartbeat_sequence: int | None) -> Process | None:
        """Tell the nodes, from a process of its own; None if there is nobody to tell."""
        target = self._configured.report
        if target is None or not target.addresses or not self._lease.worker_lease_us:
            return None
        report = Report(
            target=copy.deepcopy(target),
            reason=reason,
            heartbeat_sequence=heartbeat_sequence,
            limit_us=self._lease.worker_lease_us,
        )
        reporter = self._machine.process("report")
        if self._lock:
            self._machine.disk.share_lock(self._lock, reporter)
        reporter.spawn(self._deliver(report, reporter))
        return reporter

    async def _deliver(self, report: Report, reporter: Process) -> None:
        """As ``tree_report.py``: it ends with the report, whatever has become of that."""
        disk = self._machine.disk
        # What it could not tell is found out by leases, and by later workers.
        with suppress(NotRecordedError, TimeoutError, OstinatoError):
            await deliver(
                report,
                transport=self._transport_of(reporter),
                clock=self._machine.clock,
                rng=self._machine.loop.random_for(reporter.name),
                spools=SpoolAccess(lambda path: disk.read(path.stem), lambda path: disk.delete(path.stem)),
            )
        reporter.crash()
